"""What the studies record: steps, all-reduces, scaled epochs, precisions, timings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from d2lpar.records.line import Line

# Where a step's time goes, in the order in which it does.
PARTS = ("split and copy", "forward", "backward", "all-reduce", "update")

# "int8-<calibration>" has one scale per tensor, "int8-channels-<calibration>" one scale
# per output channel of the weights.
INT8 = ("int8-none", "int8-naive", "int8-entropy")
PRECISIONS = (
    *("float32", "bfloat16", "float16", *INT8),
    *("int8-channels-none", "int8-channels-naive", "int8-channels-entropy"),
)


@dataclass(frozen=True)
class StepRecord(Line, kind="step", drawn_by="scaling", counts_as_progress=True):
    """How long one step takes on a run's devices.

    Each of `seconds` is the mean of `steps` steps in a row: Python runs ahead, and the
    devices are waited for at the end. `issue_seconds` is Python's time to issue a step.
    `parts` are the seconds per step of each of :data:`PARTS`, found by omission
    (:mod:`d2lpar.studies.step_parts`); they add up to the step. `without_overlap` are
    the seconds of a step that waits for the backward pass before the all-reduce. Both
    are empty where they were not measured.
    """

    global_batch_size: int
    steps: int
    seconds: list[float]
    issue_seconds: list[float]
    parts: dict[str, float] = field(default_factory=dict)
    without_overlap: list[float] = field(default_factory=list)
    without_python: list[float] = field(default_factory=list)
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        ms = 1e3 * median(self.seconds)
        return {"batch": str(self.global_batch_size), "step": f"{ms:.3g} ms"}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        steps = ((s.global_batch_size, median(s.seconds)) for s in lines[cls])
        speed, batch = max((batch / seconds, batch) for batch, seconds in steps)
        return f"up to {speed:,.0f} samples/s, at a batch of {batch:,}"


@dataclass(frozen=True)
class AllReduceRecord(Line, kind="all-reduce", counts_as_progress=True):
    """How long an all-reduce of `num_arrays` arrays takes.

    `num_bytes` counts one device's arrays together, float32. `why_not` is empty, or
    says why this build has no such all-reduce; then nothing was measured.
    """

    variant: str
    num_arrays: int
    num_bytes: int
    seconds: list[float] = field(default_factory=list)
    why_not: str = ""
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        return {"all-reduce": f"{self.variant}, {self.num_bytes:,} bytes"}


@dataclass(frozen=True)
class ScaledEpoch(Line, kind="scaled-epoch", counts_as_progress=True):
    """An epoch of training under weak scaling.

    `lr` is the epoch's own, scaled with the global batch and warmed up. `why_not` is
    empty, or says that the training diverged in this epoch; then nothing else counts.
    """

    global_batch_size: int
    epoch: int
    lr: float
    seconds: float = 0.0
    train_loss: float | None = None
    test_acc: float | None = None
    why_not: str = ""
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        return {"batch": str(self.global_batch_size), "acc": str(self.test_acc)}


@dataclass(frozen=True)
class PrecisionRecord(Line, kind="precision", drawn_by="precision"):
    """What inference in one precision measured, or why it could not.

    `precision` is one of :data:`PRECISIONS`. `weights` is "trained", or how they were
    changed first: "stretched" or "equalised"
    (:mod:`d2lpar.studies.equalize_channels`). `why_not` is empty, or says in a line
    what the hardware or the build refused; then nothing below is measured. `test_acc`
    is in [0, 1]; `agreement` is the share of the test images that get the class that
    the trained network in float32 gives them. `images_per_sec` is the median of `n`
    passes over the test images on all devices, `images_per_sec_q1` and `_q3` its
    quartiles; each device takes `per_device_batch_size` images at a time.
    `weight_bytes` counts the parameters as one device stores them. `operator_ms` are
    the milliseconds of each operator for one batch, run one by one.
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

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        words = []
        trained = [line for line in lines[cls] if line.weights == "trained"]
        for precision in dict.fromkeys(line.precision for line in trained):
            same = [line for line in trained if line.precision == precision]
            if all(line.supported for line in same):
                speed = median(line.images_per_sec for line in same)
                accuracy = f"{precision} {same[0].test_acc:.3f}"
                words.append(f"{accuracy}, {speed:,.0f} images/s")
        return "; ".join(words)


@dataclass(frozen=True)
class TimingRecord(Line, kind="timing", drawn_by="timings", counts_as_progress=True):
    """How long an operation took in one library, every sample.

    Seconds are those of a :class:`d2lpar.timing.Timing`. `num_bytes` are those that the
    algorithm must at least read and write on all devices together; for copies and
    all-reduces they are those of one device's array. `flops` counts the floating-point
    operations on all devices, sin and cos as one each. `devices` are labels; `threads`
    is the number per CPU context, or of the library on the host.
    """

    operation: str
    library: str
    version: str
    form: str
    dtype: str
    shape: list[int]
    num_bytes: int
    flops: int
    seconds: list[float]
    naive_seconds: list[float]
    warmup_seconds: list[float]
    devices: list[str]
    threads: int | None
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        ms = 1e3 * median(self.seconds)
        return {self.operation: f"{self.library}, {self.form}: {ms:.3g} ms"}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        return f"{len(lines[cls])} timings"
