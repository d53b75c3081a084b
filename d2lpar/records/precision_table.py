"""What one numeric precision of inference gave: a record's line, and a table of them.

Pure data and text, without MXNet: the measuring is :mod:`d2lpar.studies.low_precision`, the
picture :mod:`d2lpar.figures.precision`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from d2lpar.records.kinds import PrecisionRecord

COLUMNS = "{:11}{:22}{:>9}{:>11}{:>11}{:>17}{:>9}{:>10}".format
NAMES = COLUMNS(
    "weights",
    "precision",
    "test acc",
    "agreement",
    "images/s",
    "quartiles",
    "speedup",
    "bytes",
)
WIDTH = len(NAMES)


def merged(rows: Iterable[PrecisionRecord]) -> list[PrecisionRecord]:
    """One row for the repeats of each: the median speed, the widest quartiles.

    Accuracy, bytes and operators are the first repeat's. A row that any repeat could
    not measure is that repeat's.
    """
    repeats: dict = {}
    for row in rows:
        repeats.setdefault((row.weights, row.precision), []).append(row)
    return [_one(same) for same in repeats.values()]


def _one(same: Sequence[PrecisionRecord]) -> PrecisionRecord:
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
    """The row of the trained weights in float32, if it is there and was measured."""
    for row in rows:
        if (row.precision, row.weights) == ("float32", "trained") and row.supported:
            return row
    return None


def table(rows: Iterable[PrecisionRecord]) -> str:
    """A line a precision, what took its time below it, and the reasons why not."""
    rows = merged(rows)
    float32 = baseline(rows)
    lines = [NAMES, *(_line(row, float32) for row in rows)]
    lines += ["", "Milliseconds of each operator for one batch, run one by one:"]
    for row in rows:
        if row.operator_ms and row.weights == "trained":
            text = f"{row.precision}: {operators(row)}"
            lines += textwrap.wrap(text, WIDTH, subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def operators(row: PrecisionRecord) -> str:
    """The operators that took longest: "Convolution 19.7, Pooling 3.3"."""
    total = sum(row.operator_ms.values())
    slowest = sorted(row.operator_ms.items(), key=lambda item: -item[1])
    shown = [f"{name} {ms:.2f}" for name, ms in slowest if ms >= 0.01 * total]
    return ", ".join(shown)


def _line(row: PrecisionRecord, float32: PrecisionRecord | None) -> str:
    if not row.supported:
        text = f"{row.weights:11}{row.precision:22} not supported: {row.why_not}"
        return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=" " * 34))
    speedup = "-"
    if float32 is not None:
        speedup = f"{row.images_per_sec / float32.images_per_sec:.2f}x"
    return COLUMNS(
        row.weights,
        row.precision,
        f"{row.test_acc:.4f}",
        f"{row.agreement:.4f}",
        f"{row.images_per_sec:,.0f}",
        f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
        speedup,
        f"{row.weight_bytes:,}",
    )
