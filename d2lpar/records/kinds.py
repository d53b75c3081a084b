"""All kinds of lines in record files, and a record as it is read.

A new kind is a dataclass here, and its name in :data:`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from d2lpar.records.fields import (
    Amount,
    Date,
    DeviceKind,
    Extra,
    Name,
    Number,
    Picture,
    Positive,
    Real,
    Resumed,
    Settings,
    Share,
    Variant,
    Weights,
    Whole,
)
from d2lpar.records.summary import summarize

# Where a step's time goes, in the order in which it does.
PARTS = ("split and copy", "forward", "backward", "all-reduce", "update")

# "int8-<calibration>" has one scale per tensor, "int8-channels-<calibration>" one scale
# per output channel of the weights.
INT8 = ("int8-none", "int8-naive", "int8-entropy")
PRECISIONS = (
    *("float32", "bfloat16", "float16", *INT8),
    *("int8-channels-none", "int8-channels-naive", "int8-channels-entropy"),
)


class Line:
    """One line of a record file. Every kind is a frozen dataclass that derives from it.

    `kind` is its name in the file. `drawn_by` is the module of :mod:`d2lpar.figures`
    whose ``draw(runs, folder, stem, *, data_dir=None, mp4=False)`` draws a record that
    holds such lines; it is empty for lines that only accompany others.
    `counts_as_progress` says whether the progress bar advances by one for each line.
    Every kind has a field `extra`, a dict, for the values that it does not know.
    """

    kind: ClassVar[str]
    drawn_by: ClassVar[str]
    counts_as_progress: ClassVar[bool]

    def __init_subclass__(
        cls, *, kind: str, drawn_by: str = "", counts_as_progress: bool = False
    ) -> None:
        cls.kind, cls.drawn_by = kind, drawn_by
        cls.counts_as_progress = counts_as_progress

    def progress(self) -> dict[str, str]:
        """What the progress bar shows of this line, by label."""
        return {}

    def curves(self) -> dict[str, float]:
        """What a notebook draws of this line, by label; the first is the abscissa."""
        return {}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        """The result of a record with these lines, by their kind, in one clause."""
        return ""

    def contradiction(self) -> str:
        """What in this line contradicts the rest of it, in one clause, or ""."""
        return ""


# Headers


@dataclass(frozen=True)
class Header(Line, kind="header"):
    """The provenance of a run: enough to repeat it and to know what it measured."""

    chapter: Name
    preset: Name
    num_devices: Number
    device_kind: DeviceKind
    devices: list[str]  # one label per device
    threads_per_device: Number | None  # None on GPUs
    cores: Number
    cpu_model: str
    dataset: str
    dataset_sha256: str
    synthetic: bool
    seed: Whole
    settings: Settings  # global_batch_size, lr, num_epochs, n_train, ...
    command: str
    versions: dict[str, str]  # d2lpar, mxnet, numpy, python
    git_commit: str | None
    git_dirty: bool | None
    date: Date  # ISO 8601, UTC
    variant: Variant = ""  # which of a chapter's methods, where it has several
    workers: Number = 1  # processes that trained together, num_devices in all
    servers: Whole = 0  # parameter servers between the workers
    gpu_build: dict = field(default_factory=dict)  # of d2lpar.machine; {} on CPUs
    extra: Extra = field(default_factory=dict)

    def contradiction(self) -> str:
        if len(self.devices) == self.num_devices:
            return ""
        return f"num_devices {self.num_devices}, but {len(self.devices)} in devices"


@dataclass(frozen=True)
class BenchmarkHeader(Line, kind="benchmark"):
    """The provenance of a benchmark, whose arms ran in fresh processes in turn.

    `benchmark` names the record and its pictures; `work` completes "seconds for ...".
    `peers` are the arms that are not ours. `gpus` are the models in the machine,
    `on_gpus` those that were used, `gpu_build` how (:mod:`d2lpar.machine.gpu_build`).
    `note` is what the caption says of the arms.
    """

    benchmark: Name
    work: str
    command: str
    cpu_model: str
    cores: Number
    versions: dict[str, str]  # by library; "not installed" where it is not
    git_commit: str | None
    git_dirty: bool | None
    date: Date  # ISO 8601, UTC
    peers: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    on_gpus: list[str] = field(default_factory=list)
    note: str = ""
    gpu_build: dict = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)


# Trainings and solvers


@dataclass(frozen=True)
class EpochRecord(Line, kind="epoch", drawn_by="training", counts_as_progress=True):
    """What one epoch of training measured.

    `epoch` counts from 1. `seconds` is the time of training alone, from clocks read
    after all devices have finished; `eval_seconds` is the time of the evaluation.
    `samples_per_sec` is training samples / seconds. `train_loss` is the mean over the
    epoch's samples, each taken before the step it led to; `test_acc` is in [0, 1].
    `resumed` marks where a run continued from a checkpoint: "elsewhere" are epochs
    before it, of another chapter, other settings or other hardware; "here" is the first
    epoch after it, a warm-up.
    """

    epoch: Number
    seconds: Positive
    samples_per_sec: Positive
    train_loss: Real
    test_acc: Share
    eval_seconds: Amount = 0.0
    repeat: Whole = 0
    resumed: Resumed | None = None
    extra: Extra = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        speed = f"{self.samples_per_sec:,.0f}"
        learnt = {"loss": f"{self.train_loss:.3f}", "acc": f"{self.test_acc:.3f}"}
        return {**learnt, "samples_per_sec": speed}

    def curves(self) -> dict[str, float]:
        learnt = {"training loss": self.train_loss, "test accuracy": self.test_acc}
        return {"epoch": self.epoch, **learnt}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        seconds = summarize([epoch.seconds for epoch in timed(lines[cls])])
        return f"test acc: {lines[cls][-1].test_acc:.2f}, {seconds} sec/epoch"


@dataclass(frozen=True)
class GanEpochRecord(Line, kind="gan-epoch", drawn_by="gan", counts_as_progress=True):
    """What one epoch of a GAN's training measured.

    `d_loss` is the mean over real and fake faces, `g_loss` over the fakes; `d_real` and
    `d_fake` are the discriminator's mean opinions D(x) and D(G(z)), in [0, 1]. All are
    of the state before the step they led to. `eval_seconds` is the time of the frames
    and their quality. All else is as in :class:`EpochRecord`.
    """

    epoch: Number
    seconds: Positive
    samples_per_sec: Positive
    d_loss: Real
    g_loss: Real
    d_real: Share
    d_fake: Share
    eval_seconds: Amount = 0.0
    repeat: Whole = 0
    resumed: Resumed | None = None
    extra: Extra = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        speed = f"{self.samples_per_sec:,.0f}"
        losses = {"D": f"{self.d_loss:.3f}", "G": f"{self.g_loss:.3f}"}
        return {**losses, "samples_per_sec": speed}

    def curves(self) -> dict[str, float]:
        losses = {"loss of D": self.d_loss, "loss of G": self.g_loss}
        return {"epoch": self.epoch, **losses}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        times = summarize([epoch.seconds for epoch in timed(lines[cls])])
        seconds, frames = f"{times} sec/epoch", lines.get(FrameRecord)
        if not frames:
            return seconds
        return f"quality {frames[0].quality:.3f} to {frames[-1].quality:.3f}, {seconds}"


@dataclass(frozen=True)
class FrameRecord(Line, kind="frame"):
    """What the generator draws after an epoch; epoch 0 is before training.

    `fixed` is the face drawn from one noise that stays the same. `quality` is the
    sliced Wasserstein distance of generated to real faces (see
    :mod:`d2lpar.datasets.face_images`): less is better. The last frame also has a sheet
    of 25 `samples` and, for each of them, the number of the `nearest` real face and the
    root mean square `distances` to it. Pictures are PNG files in base64.
    """

    epoch: Whole
    fixed: Picture
    quality: Amount
    samples: Picture | None = None
    nearest: list[Whole] | None = None
    distances: list[Amount] | None = None
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def contradiction(self) -> str:
        if self.samples is None or len(self.nearest or ()) == len(self.distances or ()):
            return "" if self.samples is None or self.nearest else "samples, no nearest"
        return "as many nearest as distances must go with samples"


@dataclass(frozen=True)
class PointRecord(Line, kind="point", drawn_by="solvers", counts_as_progress=True):
    """Where a solver stands after an iteration or an epoch.

    `seconds` count its work from the start, without the time to measure the residual.
    `residual_norm` is ||A x - b||; `device_residual_norms` are those of each device's
    own rows, or of each device's own x where these differ. `distance` is
    ||x - x*|| / ||x*||, x* being LAPACK's solution.
    """

    iteration: Whole
    seconds: Positive
    residual_norm: Amount
    device_residual_norms: list[Amount]
    distance: Amount | None = None
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        return {"residual": f"{self.residual_norm:.4g}"}

    def curves(self) -> dict[str, float]:
        return {"iteration": self.iteration, "residual ||A x - b||": self.residual_norm}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        last = lines[cls][-1]
        return f"residual: {last.residual_norm:.6g}, {last.seconds:.3g} sec"


@dataclass(frozen=True)
class Sample(Line, kind="sample"):
    """What the devices did in the `interval` seconds up to `seconds` from the start.

    Of the watched processes and their children: `core_percent` is their time on each
    logical core (100 is all of it; a thread's time counts for the core it was last seen
    on), `memory` their resident bytes, `busy_threads` the threads that worked for a
    tenth of the interval or more, `threads_per_context` their OMP_NUM_THREADS. Of the
    host: `machine_percent` is how busy each core was with anything at all,
    `machine_memory` the bytes in use, `temperature` the CPU's in degrees Celsius.

    Of each GPU in `gpus`, or None where it reports nothing: `gpu_percent`, the share of
    the time in which any kernel ran; `gpu_memory`, bytes in use by all processes and
    the driver; `gpu_temperature` in degrees Celsius; `gpu_power` in watts. In a run's
    record `epoch` is the one under way, counted from 1.
    """

    seconds: Amount
    interval: Amount
    core_percent: list[Amount]
    machine_percent: list[Amount]
    memory: Whole
    machine_memory: Whole
    processes: Whole
    threads: Whole
    busy_threads: Whole
    threads_per_context: Whole | None = None
    temperature: Real | None = None
    gpus: list[str] = field(default_factory=list)
    gpu_percent: list[Amount | None] = field(default_factory=list)
    gpu_memory: list[Whole | None] = field(default_factory=list)
    gpu_temperature: list[Real | None] = field(default_factory=list)
    gpu_power: list[Amount | None] = field(default_factory=list)
    epoch: Whole = 0
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def contradiction(self) -> str:
        for name in ("gpu_percent", "gpu_memory", "gpu_temperature", "gpu_power"):
            if len(getattr(self, name)) != len(self.gpus):
                return f"{len(getattr(self, name))} {name} of {len(self.gpus)} gpus"
        return ""

    @property
    def cpu_percent(self) -> float:
        """Time of the watched processes on all cores; 100 is one core's."""
        return sum(self.core_percent)


# Studies


@dataclass(frozen=True)
class StepRecord(Line, kind="step", drawn_by="scaling", counts_as_progress=True):
    """How long one step takes on a run's devices, or on the first `num_devices`.

    Each of `seconds` is the mean of `steps` steps in a row: Python runs ahead, and the
    devices are waited for at the end. `issue_seconds` is Python's time to issue a step.
    `parts` are the seconds per step of each of :data:`PARTS`, found by omission
    (:mod:`d2lpar.studies.step_parts`); they add up to the step. `without_overlap` are
    the seconds of a step that waits for the backward pass before the all-reduce. Both
    are empty where they were not measured.
    """

    global_batch_size: Number
    steps: Number
    seconds: list[Positive]
    issue_seconds: list[Amount]
    parts: dict[str, Real] = field(default_factory=dict)
    without_overlap: list[Positive] = field(default_factory=list)
    without_python: list[Amount] = field(default_factory=list)  # 0: below the noise
    num_devices: Whole = 0  # 0: all of the run's
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def contradiction(self) -> str:
        if not self.seconds:
            return "seconds are empty"
        if self.parts and set(self.parts) != set(PARTS):
            return f"parts are not those of a step: {', '.join(PARTS)}"
        if self.parts and not (self.without_overlap and self.without_python):
            return "parts without without_overlap and without_python"
        return ""

    def progress(self) -> dict[str, str]:
        ms = 1e3 * median(self.seconds)
        return {"batch": str(self.global_batch_size), "step": f"{ms:.3g} ms"}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        most = max(step.num_devices for step in lines[cls])  # 0: all of the run's
        on_all = [step for step in lines[cls] if step.num_devices == most]
        steps = ((s.global_batch_size, median(s.seconds)) for s in on_all)
        speed, batch = max((batch / seconds, batch) for batch, seconds in steps)
        return f"up to {speed:,.0f} samples/s, at a batch of {batch:,}"


@dataclass(frozen=True)
class AllReduceRecord(Line, kind="all-reduce", counts_as_progress=True):
    """How long an all-reduce of `num_arrays` arrays takes.

    `num_bytes` counts one device's arrays together, float32. `why_not` is empty, or
    says why this build has no such all-reduce; then nothing was measured.
    """

    variant: str
    num_arrays: Number
    num_bytes: Number
    seconds: list[Positive] = field(default_factory=list)
    why_not: str = ""
    num_devices: Whole = 0  # 0: all of the run's
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        return {"all-reduce": f"{self.variant}, {self.num_bytes:,} bytes"}


@dataclass(frozen=True)
class ScaledEpoch(Line, kind="scaled-epoch", counts_as_progress=True):
    """An epoch of training under weak scaling.

    `lr` is the epoch's own, scaled with the global batch and warmed up. `why_not` is
    empty, or says that the training diverged in this epoch; then nothing else counts.
    """

    global_batch_size: Number
    epoch: Number
    lr: Positive
    seconds: Amount = 0.0
    train_loss: Real | None = None
    test_acc: Share | None = None
    why_not: str = ""
    num_devices: Whole = 0  # 0: all of the run's
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def contradiction(self) -> str:
        if self.why_not or None not in (self.train_loss, self.test_acc):
            return ""
        return "neither why_not nor train_loss and test_acc"

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
    weights: Weights
    per_device_batch_size: Number
    why_not: str = ""
    test_acc: Share | None = None
    agreement: Share | None = None
    images_per_sec: Positive | None = None
    images_per_sec_q1: Positive | None = None
    images_per_sec_q3: Positive | None = None
    n: Whole = 0
    weight_bytes: Number | None = None
    operator_ms: dict[str, Amount] = field(default_factory=dict)
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    @property
    def supported(self) -> bool:
        return not self.why_not

    def contradiction(self) -> str:
        if self.precision not in PRECISIONS:
            return f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}"
        measured = ("test_acc", "agreement", "weight_bytes", "images_per_sec")
        for name in (*measured, "images_per_sec_q1", "images_per_sec_q3"):
            if self.supported and getattr(self, name) is None:
                return f"neither why_not nor {name}"
        return ""

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
    shape: list[Whole]
    num_bytes: Number
    flops: Whole
    seconds: list[Positive]
    naive_seconds: list[Amount]
    warmup_seconds: list[Amount]
    devices: list[str]
    threads: Number | None
    repeat: Whole = 0
    extra: Extra = field(default_factory=dict)

    def contradiction(self) -> str:
        for name in ("seconds", "naive_seconds"):
            if not getattr(self, name):
                return f"{name} are empty"
        return ""

    def progress(self) -> dict[str, str]:
        ms = 1e3 * median(self.seconds)
        return {self.operation: f"{self.library}, {self.form}: {ms:.3g} ms"}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        return f"{len(lines[cls])} timings"


# Benchmarks


@dataclass(frozen=True)
class ArmSample(Line, kind="arm-sample", drawn_by="bars"):
    """One timed unit of an arm's work, in the order in which its process printed them.

    `work` is what the arm did, where a benchmark's arms do several things: only arms
    with the same work are compared. A `warm_up` does not count. What else the arm
    reports (`epoch`, `test_acc`, `samples_per_sec`) is in `extra`.
    """

    arm: str
    round: Whole
    seconds: Positive
    work: str = ""
    warm_up: bool = False
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True)
class ArmAbsent(Line, kind="arm-absent", drawn_by="bars"):
    """An arm that could not run in a round, and why, in one clause."""

    arm: str
    round: Whole
    why_not: str
    work: str = ""
    extra: Extra = field(default_factory=dict)


# Records


# Where a record holds several kinds, the first of them here draws and sums it up.
KINDS: tuple[type[Line], ...] = (
    Header,
    BenchmarkHeader,
    TimingRecord,
    StepRecord,
    PointRecord,
    PrecisionRecord,
    GanEpochRecord,
    EpochRecord,
    ArmSample,
    ArmAbsent,
    AllReduceRecord,
    ScaledEpoch,
    FrameRecord,
    Sample,
)
HEADERS = (Header, BenchmarkHeader)
EPOCHS = (EpochRecord, GanEpochRecord)
ARMS = (ArmSample, ArmAbsent)


@dataclass(frozen=True)
class Run:
    """A record file as read: its header and the lines after it, in the file's order."""

    header: Header | BenchmarkHeader
    lines: tuple[Line, ...]
    path: Path | None = None

    def of(self, *kinds: type) -> tuple:
        """The lines of these kinds, in the order of the file."""
        return tuple(line for line in self.lines if isinstance(line, kinds))

    @property
    def epochs(self) -> tuple[EpochRecord | GanEpochRecord, ...]:
        """The epochs of a training."""
        return self.of(*EPOCHS)

    @property
    def main_kind(self) -> type[Line] | None:
        """The kind that draws the record and sums it up; None where no line does."""
        present = {type(line) for line in self.lines}
        return next((kind for kind in KINDS if kind.drawn_by and kind in present), None)

    def summary(self) -> str:
        """The result in one clause; empty where there is none."""
        return self.main_kind.summary(group(self.lines, type)) if self.main_kind else ""


def timed(epochs: Sequence[EpochRecord | GanEpochRecord]) -> list:
    """The epochs whose time counts: all but the first of each repeat, which warms up.

    Epochs that a resumed run took over from other conditions do not count, nor does the
    first one after resuming. Where nothing else is left, warm-ups count.
    """
    here = [e for e in epochs if e.resumed != "elsewhere"] or list(epochs)
    return [e for e in here if e.epoch > 1 and not e.resumed] or here


def timed_epochs(run: Run) -> list[EpochRecord | GanEpochRecord]:
    """The epochs whose time counts, without warm-ups."""
    return timed(run.epochs)


def group(
    items: Iterable, key: Callable, value: Callable = lambda item: item
) -> dict[Any, list]:
    """Lists of the items' values by `key`, in the order in which keys first appear."""
    grouped: dict[Any, list] = {}
    for item in items:
        grouped.setdefault(key(item), []).append(value(item))
    return grouped
