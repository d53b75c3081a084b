"""Precision records as a table: accuracy, agreement, speed and bytes.

The measuring is in :mod:`d2lpar.studies.low_precision`, the picture in
:mod:`d2lpar.figures.precision`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from d2lpar.records.kinds import PrecisionRecord
from d2lpar.records.tables import plain_table

COLUMNS = ["weights", "precision", "test acc", "agreement", "images/s", "quartiles"]
COLUMNS += ["speedup", "bytes"]
WIDTH = 100  # of the lines below the table


def merged(rows: Iterable[PrecisionRecord]) -> list[PrecisionRecord]:
    """The repeats of each row as one row: the median speed, the widest quartiles.

    Accuracy, bytes and operators are the first repeat's. If a repeat was refused, the
    row is that repeat's.
    """
    repeats: dict = {}
    for row in rows:
        repeats.setdefault((row.weights, row.precision), []).append(row)
    return [_merged(same) for same in repeats.values()]


def _merged(same: Sequence[PrecisionRecord]) -> PrecisionRecord:
    refused = [row for row in same if not row.supported]
    if refused or len(same) == 1:
        return (refused or same)[0]
    return replace(
        same[0],
        images_per_sec=median(row.images_per_sec for row in same),
        images_per_sec_q1=min(row.images_per_sec_q1 for row in same),
        images_per_sec_q3=max(row.images_per_sec_q3 for row in same),
        n=sum(row.n for row in same),
    )


def baseline(rows: Sequence[PrecisionRecord]) -> PrecisionRecord | None:
    """The measured row of the trained weights in float32, or None."""
    for row in rows:
        if (row.precision, row.weights) == ("float32", "trained") and row.supported:
            return row
    return None


def table(rows: Iterable[PrecisionRecord]) -> str:
    """A row per precision; below, why some were refused, and the operators' times."""
    rows = merged(rows)
    float32 = baseline(rows)
    lines = [
        f"{row.weights} {row.precision} not supported: {row.why_not}"
        for row in rows
        if not row.supported
    ]
    lines += ["", "Milliseconds of each operator for one batch, run one by one:"]
    lines += [
        f"{row.precision}: {operators(row)}"
        for row in rows
        if row.operator_ms and row.weights == "trained"
    ]
    wrapped = [textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines]
    cells = plain_table(COLUMNS, [_cells(row, float32) for row in rows])
    return "\n".join([cells, *wrapped]) + "\n"


def operators(row: PrecisionRecord) -> str:
    """The operators that took longest: "Convolution 19.7, Pooling 3.3"."""
    total = sum(row.operator_ms.values())
    slowest = sorted(row.operator_ms.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {ms:.2f}" for name, ms in slowest if ms >= 0.01 * total)


def _cells(row: PrecisionRecord, float32: PrecisionRecord | None) -> list[str]:
    if not row.supported:
        return [row.weights, row.precision, *["-"] * (len(COLUMNS) - 2)]
    speedup = "-"
    if float32 is not None:
        speedup = f"{row.images_per_sec / float32.images_per_sec:.2f}x"
    return [
        row.weights,
        row.precision,
        f"{row.test_acc:.4f}",
        f"{row.agreement:.4f}",
        f"{row.images_per_sec:,.0f}",
        f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
        speedup,
        f"{row.weight_bytes:,}",
    ]
