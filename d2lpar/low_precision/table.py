"""Precision records as a table: accuracy, agreement, speed and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from d2lpar.figures import labels
from d2lpar.records.kinds import PrecisionRecord, Run, group
from d2lpar.text import plain_table

COLUMNS = (
    "weights", "precision", "test acc", "agreement", "images/s", "quartiles",
    "speedup", "bytes",
)  # fmt: skip


def merged(rows: Iterable[PrecisionRecord]) -> list[PrecisionRecord]:
    """The repeats of each row as one row: the median speed, the widest quartiles.

    Accuracy and bytes are the first repeat's. If a repeat was refused, the row is that
    repeat's.
    """
    rows_of = group(rows, lambda row: (row.weights, row.precision))
    result = []
    for same in rows_of.values():
        refused = [row for row in same if not row.supported]
        pooled = (
            refused[0]
            if refused
            else msgspec.structs.replace(
                same[0],
                images_per_sec=median(row.images_per_sec for row in same),
                images_per_sec_q1=min(row.images_per_sec_q1 for row in same),
                images_per_sec_q3=max(row.images_per_sec_q3 for row in same),
                n=sum(row.n for row in same),
            )
        )
        result.append(pooled)
    return result


def baseline(rows: Iterable[PrecisionRecord]) -> PrecisionRecord | None:
    """The measured row of the trained weights in float32, or None."""
    for row in rows:
        if row.supported and (row.precision, row.weights) == ("float32", "trained"):
            return row
    return None


def table(rows: Iterable[PrecisionRecord]) -> str:
    """A row per precision; below, why some were refused."""
    rows = merged(rows)
    float32 = baseline(rows)
    cells, refusals = [], []
    for row in rows:
        if not row.supported:
            cells.append([row.weights, row.precision, *["-"] * (len(COLUMNS) - 2)])
            why = f"{row.weights} {row.precision} not supported: {row.why_not}"
            refusals.append(why)
            continue
        speedup = row.images_per_sec / float32.images_per_sec if float32 else None
        cells.append([
            row.weights,
            row.precision,
            f"{row.test_acc:.4f}",
            f"{row.agreement:.4f}",
            f"{row.images_per_sec:,.0f}",
            f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
            "-" if speedup is None else f"{speedup:.2f}x",
            f"{row.weight_bytes:,}",
        ])  # fmt: skip
    return "\n".join([plain_table(COLUMNS, cells), *refusals]) + "\n"


def results(runs: Sequence[Run]) -> str:
    """The tables of all runs, each under its devices."""
    return "\n".join(
        f"{labels.devices(run.header)}\n{labels.stamp([run.header])}\n\n"
        f"{table(run.of(PrecisionRecord))}"
        for run in runs
    )
