"""What a run records: its header, epochs, pictures, iterations, machine load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from d2lpar.records.line import Line
from d2lpar.records.summary import summarize


@dataclass(frozen=True)
class Header(Line, kind="header"):
    """The provenance of a run: enough to repeat it and to know what it measured."""

    chapter: str
    preset: str
    num_devices: int
    device_kind: str  # "cpu" or "gpu"
    devices: list[str]  # one label per device
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
    servers: int = 0  # parameter servers between the workers
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class EpochRecord(Line, kind="epoch", drawn_by="training", counts_as_progress=True):
    """What one epoch of training measured.

    `epoch` counts from 1. `seconds` is the time of training alone, from clocks read
    after all devices have finished; `eval_seconds` is the time of the evaluation.
    `samples_per_sec` is training samples / seconds. `train_loss` is the mean over the
    epoch's samples, each taken before the step it led to; `test_acc` is in [0, 1].
    `resumed` marks where a run continued from a checkpoint: "elsewhere" are epochs
    before it, measured on other devices; "here" is the first epoch after it, a warm-up.
    """

    epoch: int
    seconds: float
    samples_per_sec: float
    train_loss: float
    test_acc: float
    eval_seconds: float = 0.0
    repeat: int = 0
    resumed: str | None = None
    extra: dict = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        speed = f"{self.samples_per_sec:,.0f}"
        learnt = {"loss": f"{self.train_loss:.3f}", "acc": f"{self.test_acc:.3f}"}
        return {**learnt, "samples_per_sec": speed}

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

    def progress(self) -> dict[str, str]:
        speed = f"{self.samples_per_sec:,.0f}"
        losses = {"D": f"{self.d_loss:.3f}", "G": f"{self.g_loss:.3f}"}
        return {**losses, "samples_per_sec": speed}

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

    epoch: int
    fixed: str
    quality: float
    samples: str | None = None
    nearest: list[int] | None = None
    distances: list[float] | None = None
    repeat: int = 0
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class PointRecord(Line, kind="point", drawn_by="solvers", counts_as_progress=True):
    """Where a solver stands after an iteration or an epoch.

    `seconds` count its work from the start, without the time to measure the residual.
    `residual_norm` is ||A x - b||; `device_residual_norms` are those of each device's
    own rows, or of each device's own x where these differ. `distance` is
    ||x - x*|| / ||x*||, x* being LAPACK's solution.
    """

    iteration: int
    seconds: float
    residual_norm: float
    device_residual_norms: list[float]
    distance: float | None = None
    repeat: int = 0
    extra: dict = field(default_factory=dict)

    def progress(self) -> dict[str, str]:
        return {"residual": f"{self.residual_norm:.4g}"}

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
        """Time of the watched processes on all cores; 100 is one core's."""
        return sum(self.core_percent)


def timed(epochs: Sequence[EpochRecord | GanEpochRecord]) -> list:
    """The epochs whose time counts: all but the first of each repeat, which warms up.

    Epochs that a resumed run took over from other devices do not count, nor does the
    first one after resuming. Where nothing else is left, all epochs count.
    """
    return [e for e in epochs if e.epoch > 1 and not e.resumed] or list(epochs)
