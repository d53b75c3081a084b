"""TODO: one idea."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

# Where a step's time goes, in the order in which it does.
PARTS = ("split and copy", "forward", "backward", "all-reduce", "update")


@dataclass(frozen=True)
class StepRecord:
    """How long one step takes on a run's devices: a record's line.

    A sample of `seconds` is the mean of `steps` steps in a row, as training has them:
    Python runs ahead, the devices are waited for at the end. `issue_seconds` is what
    Python took to issue a step, of the same steps. `parts` are seconds a step of each
    of :data:`PARTS`, by omission (:mod:`d2lpar.studies.step_parts`), which add up to the step;
    `without_overlap` are those of a step that waits for the backward pass before the
    all-reduce. Both are empty where they were not measured.
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


@dataclass(frozen=True)
class AllReduceRecord:
    """How long an all-reduce of `num_arrays` arrays takes: a record's line.

    `num_bytes` are those of one device, all arrays together, float32. `why_not` is
    empty, or says why this build has no such all-reduce; then nothing was measured.
    """

    variant: str
    num_arrays: int
    num_bytes: int
    seconds: list[float] = field(default_factory=list)
    why_not: str = ""
    repeat: int = 0
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class ScaledEpoch:
    """An epoch of training under weak scaling: a record's line.

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


# "int8-<calibration>" has one scale a tensor, "int8-channels-<calibration>" one scale
# an output channel of the weights.
CALIBRATIONS = ("none", "naive", "entropy")
INT8 = tuple(f"int8-{calibration}" for calibration in CALIBRATIONS)
INT8_CHANNELS = tuple(f"int8-channels-{calibration}" for calibration in CALIBRATIONS)
PRECISIONS = ("float32", "bfloat16", "float16", *INT8, *INT8_CHANNELS)


@dataclass(frozen=True)
class PrecisionRecord:
    """What inference in one precision measured, or why it could not.

    `precision` is one of :data:`PRECISIONS`. `weights` is "trained", or what was done
    to them before: "stretched" or "equalised" (:mod:`d2lpar.studies.equalize_channels`).
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


@dataclass(frozen=True)
class TimingRecord:
    """A record's line: how long an operation took in one library, every sample.

    Seconds are a :class:`Timing`'s. `num_bytes` are those that the algorithm must at
    least read and write on all devices together, of copies and all-reduces those of one
    device's array; `flops` its floating-point operations on all devices, sin and cos
    counted as one each. `devices` are labels; `threads` those of each CPU context, or
    of the host's library.
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


log = logging.getLogger("d2lpar")


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch of training measured.

    `epoch` counts from 1. `seconds` is the time of training alone, clocks read after
    all devices have finished; `eval_seconds` that of the evaluation. `samples_per_sec`
    is training samples / seconds. `train_loss` is the mean over the epoch's samples,
    each taken before the step it led to; `test_acc` is in [0, 1].
    """

    epoch: int
    seconds: float
    samples_per_sec: float
    train_loss: float
    test_acc: float
    eval_seconds: float = 0.0
    repeat: int = 0
    resumed: str | None = None  # see GanEpochRecord
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class GanEpochRecord:
    """What one epoch of a GAN's training measured.

    `d_loss` is the mean over real and fake faces, `g_loss` over the fakes; `d_real` and
    `d_fake` are the discriminator's mean opinions D(x) and D(G(z)), in [0, 1], all of
    them of the state before the step they led to. `eval_seconds` is the time of frames
    and their quality. `resumed` marks where a run was taken up from a checkpoint:
    "elsewhere" are epochs from before, measured on other devices; "here" is the first
    one after, a warm-up.
    """

    epoch: int
    seconds: float
    samples_per_sec: float
    d_loss: float
    g_loss: float
    d_real: float
    d_fake: float
    eval_seconds: float = 0.0
    repeat: int = 0
    resumed: str | None = None
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class FrameRecord:
    """What the generator draws after an epoch; epoch 0 is before training.

    `fixed` is the face of one noise that stays the same. `quality` is the sliced
    Wasserstein distance of generated to real faces (see :mod:`d2lpar.datasets.face_quality`):
    less is better. The last frame also has a sheet of 25 `samples` and, for each of
    them, the number of the `nearest` real face and the root mean square `distances` to
    it. Pictures are PNG files in base64.
    """

    epoch: int
    fixed: str
    quality: float
    samples: str | None = None
    nearest: list[int] | None = None
    distances: list[float] | None = None
    repeat: int = 0
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class PointRecord:
    """Where a solver had got to after an iteration, or an epoch.

    `seconds` are of work since its start, without the time it takes to measure the
    residual. `residual_norm` is ||A x - b||; `device_residual_norms` are of each
    device's own rows, or of each device's own x where they differ. `distance` is
    ||x - x*|| / ||x*||, x* being LAPACK's solution.
    """

    iteration: int
    seconds: float
    residual_norm: float
    device_residual_norms: list[float]
    distance: float | None = None
    repeat: int = 0
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Sample:
    """What the devices did in the `interval` seconds up to `seconds` from the start.

    Of the processes watched, with their children: `core_percent` is their time on each
    logical core (100 is all of it; a thread's time counts for the core it was last seen
    on), `memory` their resident bytes, `threads` all their threads, `busy_threads`
    those that worked a tenth of the interval or more, `threads_per_context` the
    OMP_NUM_THREADS they were started with. `machine_percent` is how busy each core was
    with anything at all, which tells whether something else was in the way;
    `machine_memory` are the host's bytes in use, `temperature` is the CPU's in degrees
    Celsius.

    Of each GPU of `gpus`, or None where it does not tell: `gpu_percent`, the part of
    the time in which a kernel ran, however small it was; `gpu_memory`, bytes in use by
    anybody, with what the driver keeps; `gpu_temperature` in degrees Celsius;
    `gpu_power` in watts.

    In a run's record `epoch` is the one under way, counted from 1.
    """

    seconds: float
    interval: float
    core_percent: list[float]
    machine_percent: list[float]
    memory: int
    machine_memory: int
    processes: int
    threads: int
    busy_threads: int
    threads_per_context: int | None = None
    temperature: float | None = None
    gpus: list[str] = field(default_factory=list)
    gpu_percent: list[float | None] = field(default_factory=list)
    gpu_memory: list[int | None] = field(default_factory=list)
    gpu_temperature: list[float | None] = field(default_factory=list)
    gpu_power: list[float | None] = field(default_factory=list)
    epoch: int = 0
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    @property
    def cpu_percent(self) -> float:
        """Time of the processes watched; 100 is one core's."""
        return sum(self.core_percent)


@dataclass(frozen=True)
class Header:
    """Where a record comes from: enough to run it again and know what it measured."""

    chapter: str
    preset: str
    num_devices: int
    device_kind: str  # "cpu" or "gpu"
    devices: list[str]  # labels, one a device
    threads_per_device: int | None  # None on GPUs
    cores: int
    cpu_model: str
    dataset: str
    dataset_sha256: str
    synthetic: bool
    seed: int
    settings: dict  # global_batch_size, lr, num_epochs, n_train, ...
    command: str
    versions: dict  # d2lpar, mxnet, numpy, python
    git_commit: str | None
    git_dirty: bool | None
    date: str  # ISO 8601, UTC
    variant: str = ""  # which of a chapter's methods, where it has several
    workers: int = 1  # processes that trained together, num_devices in all
    servers: int = 0  # of parameters, between the workers
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A record file as read: its header and its epochs, in the order of the file."""

    header: Header
    epochs: tuple[EpochRecord | GanEpochRecord, ...]
    path: Path | None = None
    points: tuple[PointRecord, ...] = ()
    frames: tuple[FrameRecord, ...] = ()
    samples: tuple[Sample, ...] = ()
    precisions: tuple[PrecisionRecord, ...] = ()
    timings: tuple[TimingRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    all_reduces: tuple[AllReduceRecord, ...] = ()
    scaled_epochs: tuple[ScaledEpoch, ...] = ()


KINDS = {
    "header": Header,
    "epoch": EpochRecord,
    "gan-epoch": GanEpochRecord,
    "frame": FrameRecord,
    "point": PointRecord,
    "sample": Sample,
    "precision": PrecisionRecord,
    "timing": TimingRecord,
    "step": StepRecord,
    "all-reduce": AllReduceRecord,
    "scaled-epoch": ScaledEpoch,
}
EPOCHS = (EpochRecord, GanEpochRecord)
Line = Union[tuple(KINDS.values())]


def timed_epochs(run: Run) -> list[EpochRecord]:
    """The epochs whose time counts: all but each repeat's first, which warms up.

    Nor do the first after a resumption, and those before it on other devices. A run of
    a single epoch has nothing else: it is kept.
    """
    return [e for e in run.epochs if e.epoch > 1 and not e.resumed] or list(run.epochs)


def group(runs: Iterable[Run], key: Callable[[Run], object]) -> dict:
    """Runs by `key`, in the order in which the keys first appear."""
    grouped: dict = {}
    for run in runs:
        grouped.setdefault(key(run), []).append(run)
    return grouped
