"""What one numeric precision of inference gave: a record's line, and a table of them.

Pure data and text, without MXNet: the measuring is :mod:`d2lpar.low_precision`, the
picture :mod:`d2lpar.precision_figures`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

# "int8-<calibration>" has one scale a tensor, "int8-channels-<calibration>" one scale
# an output channel of the weights.
CALIBRATIONS = ("none", "naive", "entropy")
INT8 = tuple(f"int8-{calibration}" for calibration in CALIBRATIONS)
INT8_CHANNELS = tuple(f"int8-channels-{calibration}" for calibration in CALIBRATIONS)
PRECISIONS = ("float32", "bfloat16", "float16", *INT8, *INT8_CHANNELS)

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


@dataclass(frozen=True)
class PrecisionRecord:
    """What inference in one precision measured, or why it could not.

    `precision` is one of :data:`PRECISIONS`. `weights` is "trained", or what was done
    to them before: "stretched" or "equalised" (:mod:`d2lpar.equalization`).
    `why_not` is empty, or says in a line what the hardware or the build refused; then
    nothing below is measured. `test_acc` is in [0, 1]; `agreement` is the share of the
    test images that get the class that the trained network in float32 gives them.
    `images_per_sec` is the median of `n` passes over the test images on all devices,
    `images_per_sec_q1` and `_q3` its quartiles; a device takes `per_device_batch_size`
    images at a time. `weight_bytes` counts the parameters as one device keeps them.
    `operator_ms` are the milliseconds of each operator for one batch, run one by one.
    """

    precision: str
    weights: str
    per_device_batch_size: int
    why_not: str = ""
    test_acc: float | None = None
    agreement: float | None = None
    images_per_sec: float | None = None
    images_per_sec_q1: float | None = None
    images_per_sec_q3: float | None = None
    n: int = 0
    weight_bytes: int | None = None
    operator_ms: dict[str, float] = field(default_factory=dict)
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    @property
    def supported(self) -> bool:
        return not self.why_not


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
