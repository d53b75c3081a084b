"""A run on disk: JSON lines, a header with provenance and then one line an epoch.

``figures/<chapter>/<run>.jsonl`` holds one device count of one chapter::

    {"kind": "header", "chapter": "multiple_gpus", "num_devices": 2, ...}
    {"kind": "epoch", "repeat": 0, "epoch": 1, "seconds": 9.1, ...}
    ...

A solver's record has lines of kind "point" in place of epochs, a GAN's has epochs of
kind "gan-epoch" and pictures of kind "frame"; inference in low precision has lines of
kind "precision" after its epochs. A scaling study has lines of kind "step",
"all-reduce" and "scaled-epoch". With --watch there are lines of kind "sample" in
between.

Reading keeps fields it does not know (in `extra`), so that a record of a later version
can be plotted by an earlier one. Never imports MXNet.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Union

from d2lpar.errors import RecordError
from d2lpar.precisions import PrecisionRecord
from d2lpar.scaling_model import AllReduceRecord, ScaledEpoch, StepRecord
from d2lpar.timing import TimingRecord

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
    Wasserstein distance of generated to real faces (see :mod:`d2lpar.face_quality`):
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


def to_line(item: Line) -> str:
    """One JSON line, without the newline. NaN and infinities: ValueError."""
    values = asdict(item)
    extra = values.pop("extra")
    if values.get("resumed", "") is None:
        del values["resumed"]  # as a rule there is nothing to say
    kind = next(kind for kind, cls in KINDS.items() if isinstance(item, cls))
    return json.dumps({"kind": kind, **values, **extra}, allow_nan=False)


def from_line(line: str) -> Line:
    """The inverse of :func:`to_line`; unknown fields go to `extra`.

    Raises :class:`RecordError` for a line that is no JSON object of a known kind or
    lacks a field.
    """
    try:
        values = json.loads(line)
        cls = KINDS[values.pop("kind")]
        known = {f.name for f in fields(cls)} - {"extra"}
        extra = {k: v for k, v in values.items() if k not in known}
        return cls(**{k: v for k, v in values.items() if k in known}, extra=extra)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"not a record line ({error}): {line[:60]!r}") from None


def read(path: str | Path) -> Run:
    """Read a record file.

    A torn last line (a run that was killed) is reported on the log and skipped. Raises
    :class:`RecordError` when the file cannot be read, has no header, or a line before
    the last is not a record's.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise RecordError(f"{path}: cannot be read as a record ({reason})") from None
    items = []
    for number, line in enumerate(lines, 1):
        try:
            items.append(from_line(line))
        except RecordError as error:
            if number < len(lines) or number == 1:
                raise RecordError(f"{path}, line {number}: {error}") from None
            log.warning("%s: the last line is torn and was skipped", path)
    if not items or not isinstance(items[0], Header):
        raise RecordError(f"{path}: the first line is not a record's header")
    epochs, *others = (
        tuple(item for item in items[1:] if isinstance(item, kind))
        for kind in (
            EPOCHS,
            PointRecord,
            FrameRecord,
            Sample,
            PrecisionRecord,
            TimingRecord,
            StepRecord,
            AllReduceRecord,
            ScaledEpoch,
        )
    )
    return Run(items[0], epochs, path, *others)


def write(path: str | Path, header: Header, lines: Iterable[Line]) -> None:
    """Write a whole record file atomically."""
    text = "".join(to_line(item) + "\n" for item in (header, *lines))
    with replacing(path) as tmp:
        tmp.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: str | Path):
    """Yield a temporary path beside `path`; on success it is renamed to `path`.

    On any error the temporary file is removed and an earlier `path` is left as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent
    )
    os.close(handle)
    tmp = Path(name)
    try:
        yield tmp
        umask = os.umask(0)
        os.umask(umask)
        tmp.chmod(0o666 & ~umask)  # mkstemp's 0600 would hide figures from a web server
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


def check_writable(folder: str | Path) -> None:
    """Raise OSError now, rather than when the first epoch is there to be written."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the checkout this package runs from and whether it has local changes.

    (None, None) for an installed package: a .venv may well lie in somebody's checkout.
    """

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *args],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        # What runs write is no change of the code that runs.
        changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)figures")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.SubprocessError):
        return None, None


def run_stem(header: Header) -> str:
    """What the records and pictures of one sweep are called: "book", "quick-synthetic".

    Only what differs from the rule is named: a generated data set, a seed other than 0,
    several workers, a fixed number of threads.
    """
    threads = header.settings.get("threads")
    return "-".join(
        [header.preset]
        + ["synthetic"] * header.synthetic
        + [f"seed{header.seed}"] * (header.seed != 0)
        + [f"{header.workers}workers"] * (header.workers > 1)
        + [f"{threads}thread"] * (threads is not None)
    )


def run_name(header: Header) -> str:
    """Name of one run's record file, without the ending: "book-cpu2"."""
    devices = f"{header.device_kind}{header.num_devices}"
    return "-".join(filter(None, (run_stem(header), header.variant, devices)))


def now() -> str:
    """UTC date and time, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


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
