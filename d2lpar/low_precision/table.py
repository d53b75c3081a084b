"""Precision records as a table: accuracy, agreement, speed and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from d2lpar.records.kinds import PrecisionRecord, group
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
    repeats = group(rows, lambda row: (row.weights, row.precision)).values()
    return [_merged(same) for same in repeats]


def _merged(same: Sequence[PrecisionRecord]) -> PrecisionRecord:
    for row in same:
        if not row.supported:
            return row
    return msgspec.structs.replace(
        same[0],
        images_per_sec=median(row.images_per_sec for row in same),
        images_per_sec_q1=min(row.images_per_sec_q1 for row in same),
        images_per_sec_q3=max(row.images_per_sec_q3 for row in same),
        n=sum(row.n for row in same),
    )


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
    lines = [plain_table(COLUMNS, [_cells(row, float32) for row in rows])]
    lines += [
        f"{row.weights} {row.precision} not supported: {row.why_not}"
        for row in rows
        if not row.supported
    ]
    return "\n".join(lines) + "\n"


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
