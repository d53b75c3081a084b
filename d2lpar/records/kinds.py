"""The kinds of lines in record files, and a record as it is read.

A line's "kind" names its class. Unknown fields, of later versions, are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional, Union

import msgspec

# Parts of a step, in order.
PARTS = ("split and copy", "forward", "backward", "all-reduce", "update")

# One scale per tensor; with "int8-channels", one per output channel of the weights.
PRECISIONS = (
    *("float32", "bfloat16", "float16", "int8-none", "int8-naive", "int8-entropy"),
    *("int8-channels-none", "int8-channels-naive", "int8-channels-entropy"),
)


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What was measured at one time; `repeat` counts repeated runs from 0.

    Every field is written, so that pandas reads 0 and not NaN. Records of versions
    before 0.6 leave out fields that have their default.
    """

    repeat: int = 0


# Headers


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="header"):
    """The provenance of a run: enough to repeat it and to know what it measured."""

    chapter: str
    preset: str
    recipe: str = ""  # names the folder of the sweep; "" before 0.6
    num_devices: int
    device_kind: Literal["cpu", "gpu"]
    devices: list[str]  # one label per device
    threads_per_device: Optional[int]  # None on GPUs
    cores: int
    cpu_model: str
    dataset: str
    dataset_sha256: str
    synthetic: bool
    seed: int
    settings: dict[str, Any]  # global_batch_size, lr, num_epochs, n_train, ...
    command: str
    versions: dict[str, str]  # d2lpar, mxnet, numpy, python
    git_commit: Optional[str]
    git_dirty: Optional[bool]
    date: str  # ISO 8601, UTC
    variant: str = ""  # which of an experiment's methods, where it has several
    workers: int = 1  # processes that trained together, num_devices in all
    servers: int = 0  # parameter servers between the workers
    turns: list[int] = []  # device counts whose epochs or solves took turns
    gpu_build: dict[str, Any] = {}  # of :mod:`d2lpar.machine`; {} on CPUs
    lenet_channels: Optional[tuple[int, int]] = None  # where not the book's 20, 50


class BenchmarkHeader(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="benchmark"
):
    """The provenance of a benchmark, whose arms ran in fresh processes in turn.

    `work` completes "seconds for ..."; `peers` are the arms that are not ours; `gpus`
    are in the machine, `on_gpus` were used.
    """

    benchmark: str
    work: str
    command: str
    cpu_model: str
    cores: int
    versions: dict[str, str]
    git_commit: Optional[str]
    git_dirty: Optional[bool]
    date: str
    peers: list[str] = []
    gpus: list[str] = []
    on_gpus: list[str] = []
    note: str = ""
    gpu_build: dict[str, Any] = {}
    # Of trainings, as in a run's header:
    dataset: str = ""
    dataset_sha256: str = ""
    synthetic: bool = False
    seed: int = 0
    settings: dict[str, Any] = {}
    first_losses_checked: bool = False  # peers repeated ours before they were timed


# Trainings and solvers


class EpochRecord(Line, tag="epoch", frozen=True):
    """What one epoch of training measured; `epoch` counts from 1.

    `seconds` are of training alone. `train_loss` is the mean over the samples, each
    before its step; `test_acc` is in [0, 1]. `resumed` is "elsewhere" before a
    checkpoint, "here" in the first epoch after it, which warms up. `wire_bytes` are
    sent by several workers.
    """

    epoch: int
    seconds: float
    samples_per_sec: float
    train_loss: float
    test_acc: float
    eval_seconds: float = 0.0
    resumed: Optional[Literal["elsewhere", "here"]] = None
    wire_bytes: Optional[int] = None


class GanEpochRecord(Line, tag="gan-epoch", frozen=True):
    """What one epoch of a GAN's training measured, as in :class:`EpochRecord`.

    `d_loss` is the mean over real and fake faces, `g_loss` over the fakes;
    each is before its step.
    """

    epoch: int
    seconds: float
    samples_per_sec: float
    d_loss: float
    g_loss: float
    eval_seconds: float = 0.0
    resumed: Optional[Literal["elsewhere", "here"]] = None


class FrameRecord(Line, tag="frame", frozen=True):
    """What the generator draws after an epoch (0: before training), as PNGs in base64.

    `fixed` are the faces of `num_fixed` noises that stay the same. `frechet` and
    `coverage` are a :class:`d2lpar.gan.measures.Quality`; epoch 0 has `references`,
    those of known sets. The last frame has `samples`, and in `distances` the RMS
    distance of each from the nearest real face.
    """

    epoch: int
    fixed: str
    num_fixed: int
    num_steps: int
    frechet: float
    coverage: float
    references: dict[str, dict[str, float]] = {}
    samples: str = ""
    distances: list[float] = []


class PointRecord(Line, tag="point", frozen=True):
    """Where a solver stands after an iteration or an epoch.

    `seconds` are of its work so far, without measuring. `residual_norm` is ||A x - b||,
    `device_residual_norms` are of each device's x (in older records also of its rows).
    `distance` is ||x-x*|| / ||x*||, x* by LAPACK. `x` or `x_begins`: all or some of x.
    """

    iteration: int
    seconds: float
    residual_norm: float
    device_residual_norms: list[float]
    distance: Optional[float] = None
    x: list[float] = []
    x_begins: list[float] = []


# Studies


class StepRecord(Line, tag="step", frozen=True):
    """How long one step takes on a run's devices, or on the first `num_devices`.

    Each of `seconds` is the mean of `steps` steps; `issue_seconds` is Python's time to
    issue one. `parts` has the seconds of :data:`PARTS`, measured by omission.
    """

    global_batch_size: int
    steps: int
    seconds: list[float]
    issue_seconds: list[float]
    parts: dict[str, float] = {}
    num_devices: int = 0  # 0: all of the run's


class AllReduceRecord(Line, tag="all-reduce", frozen=True):
    """How long an all-reduce of arrays of `num_bytes` together takes, or `why_not`.

    `in_steps`: the study's own steps sum their gradients in this way.
    """

    variant: str
    num_arrays: int
    num_bytes: int
    seconds: list[float] = []
    why_not: str = ""
    num_devices: int = 0
    in_steps: bool = False


class PrecisionRecord(Line, tag="precision", frozen=True):
    """What inference in one precision measured, or why the hardware or build refused.

    `test_acc` is in [0, 1]; `agreement` is the share of test images that float32 puts
    in the same class. `images_per_sec` is the median of `n` passes on all devices, with
    its quartiles. `weight_bytes` are the parameters' on one device. Where it refused,
    all numbers are 0.
    """

    precision: Literal[PRECISIONS]  # type: ignore[valid-type]
    per_device_batch_size: int
    weights: Literal["trained", "stretched", "equalised"] = "trained"
    why_not: str = ""
    test_acc: float = 0.0
    agreement: float = 0.0
    images_per_sec: float = 0.0
    images_per_sec_q1: float = 0.0
    images_per_sec_q3: float = 0.0
    n: int = 0
    weight_bytes: int = 0

    @property
    def supported(self) -> bool:
        return not self.why_not


class TimingRecord(Line, tag="timing", frozen=True):
    """How long an operation took in one library, as :class:`d2lpar.timing.Timing`.

    `num_bytes` must at least be read and written on all devices together; of copies and
    all-reduces, it is one device's array. `flops` counts sin and cos as one each.
    `threads` are per CPU context, or the library's.
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
    threads: Optional[int]


# Benchmarks


class ArmSample(Line, tag="arm-sample", frozen=True):
    """One timed unit of an arm's work; only arms with the same `work` are compared.

    A `warm_up` does not count. A solver reports its `error` and the `optimum`, a
    comparison of parameters their distance as `error` after `steps`.
    """

    arm: str
    round: int
    seconds: float
    work: str = ""
    warm_up: bool = False
    epoch: Optional[int] = None
    test_acc: Optional[float] = None
    samples_per_sec: Optional[float] = None
    eval_seconds: Optional[float] = None
    wire_bytes: Optional[int] = None
    error: Optional[float] = None
    optimum: Optional[float] = None
    steps: Optional[int] = None
    batch_size: Optional[int] = None
    peak_bytes: Optional[int] = None


class ArmAbsent(Line, tag="arm-absent", frozen=True):
    """An arm that could not run in a round, and why, in one clause."""

    arm: str
    round: int
    why_not: str
    work: str = ""


# Records

HEADERS = (Header, BenchmarkHeader)
EPOCHS = (EpochRecord, GanEpochRecord)
AnyLine = Union[(*HEADERS, *Line.__subclasses__())]  # type: ignore[valid-type]


@dataclass(frozen=True)
class Run:
    """A record file as read: its header and the lines after it, in the file's order."""

    header: Any  # a Header or a BenchmarkHeader
    lines: tuple[Line, ...]
    path: Path | None = None

    def lines_of(self, *kinds: type) -> tuple:
        """Return the lines of these kinds, in the order of the file."""
        return tuple(line for line in self.lines if isinstance(line, kinds))

    @property
    def epochs(self) -> tuple[EpochRecord | GanEpochRecord, ...]:
        """Return the epochs of a training."""
        return self.lines_of(*EPOCHS)


def timed_epochs(run: Run) -> list:
    """The epochs since the run was resumed, without warm-ups; [] where none is left."""
    return [e for e in run.epochs if e.epoch > 1 and not e.resumed]


def group(
    items: Iterable, key: Callable, value: Callable = lambda item: item
) -> dict[Any, list]:
    """Return lists of the items' values by `key`, in order of first appearance."""
    grouped: dict[Any, list] = {}
    for item in items:
        grouped.setdefault(key(item), []).append(value(item))
    return grouped
