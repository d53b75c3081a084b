"""Precision records as a table: accuracy, agreement, speed and bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from d2lpar.records.kinds import PrecisionRecord, group
from d2lpar.records.tables import plain_table

COLUMNS = ["weights", "precision", "test acc", "agreement", "images/s", "quartiles"]
COLUMNS += ["speedup", "bytes"]
WIDTH = 100  # of the lines below the table


def merged(rows: Iterable[PrecisionRecord]) -> list[PrecisionRecord]:
    """The repeats of each row as one row: the median speed, the widest quartiles.

    Accuracy, bytes and operators are the first repeat's. If a repeat was refused, the
    row is that repeat's.
    """
    repeats = group(rows, lambda row: (row.weights, row.precision)).values()
    return [_merged(same) for same in repeats]


def _merged(same: Sequence[PrecisionRecord]) -> PrecisionRecord:
    refused = [row for row in same if not row.supported]
    if refused:
        return refused[0]
    return replace(
        same[0],
        images_per_sec=median(row.images_per_sec for row in same),
        images_per_sec_q1=min(row.images_per_sec_q1 for row in same),
        images_per_sec_q3=max(row.images_per_sec_q3 for row in same),
        n=sum(row.n for row in same),
    )


def baseline(rows: Iterable[PrecisionRecord]) -> PrecisionRecord | None:
    """The measured row of the trained weights in float32, or None."""
    key = ("float32", "trained", True)
    rows = (row for row in rows if (row.precision, row.weights, row.supported) == key)
    return next(rows, None)


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
        f"{row.precision}: {_operators(row.operator_ms)}"
        for row in rows
        if row.operator_ms and row.weights == "trained"
    ]
    wrapped = [textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines]
    cells = plain_table(COLUMNS, [_cells(row, float32) for row in rows])
    return "\n".join([cells, *wrapped]) + "\n"


def _operators(ms: dict[str, float]) -> str:
    """The operators that took longest: "Convolution 19.70, Pooling 3.30"."""
    shown = [name for name in ms if ms[name] >= 0.01 * sum(ms.values())]
    shown.sort(key=ms.get, reverse=True)
    return ", ".join(f"{name} {ms[name]:.2f}" for name in shown)


def _cells(row: PrecisionRecord, float32: PrecisionRecord | None) -> list[str]:
    if not row.supported:
        return [row.weights, row.precision, *["-"] * (len(COLUMNS) - 2)]
    return [
        row.weights,
        row.precision,
        f"{row.test_acc:.4f}",
        f"{row.agreement:.4f}",
        f"{row.images_per_sec:,.0f}",
        f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
        f"{row.images_per_sec / float32.images_per_sec:.2f}x" if float32 else "-",
        f"{row.weight_bytes:,}",
    ]
