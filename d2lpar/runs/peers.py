"""LeNet beside its peers: ours and theirs in turn, in fresh processes, equal threads.

A peer is a script in peers/ that does the same job elsewhere: same network, initial
parameters, batch size and threads. Before it is timed it repeats our first steps, and
it refuses where its losses are not ours (:mod:`d2lpar.runs.reference_steps`). What
cannot run here (a library that is not installed, a GPU that MXNet has no code for) is a
row that says why; the others run. Loads no MXNet itself.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from d2lpar import datasets, devices
from d2lpar.errors import DeviceError, RunError, SettingError
from d2lpar.machine import cores, cuda, mxnet_builds
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run
from d2lpar.records.summary import Summary, summarize
from d2lpar.records.wording import plural
from d2lpar.runs import in_turn
from d2lpar.runs.in_turn import Arm

PRESETS = {
    "quick": {"rounds": 1, "num_epochs": 2, "n_train": 12_000, "n_test": 2_000},
    "book": {"rounds": 3, "num_epochs": 3, "n_train": None, "n_test": None},
}


@dataclass(frozen=True)
class Recipe:
    """What ours and the peers all do; `data` are the arguments of `datasets.load`."""

    data: dict
    num_epochs: int  # timed ones; one more warms up
    global_batch_size: int
    lr: float
    seed: int

    def check(self, data: datasets.ImageData, counts: Sequence[int]) -> None:
        """Raise :class:`SettingError` for a batch that some device has no shard of."""
        most = len(data.y_train)
        if not max(counts) <= self.global_batch_size <= most:
            raise SettingError(
                f"global-batch-size {self.global_batch_size}: write {max(counts)} (the "
                f"devices) to {most} (the training images)"
            )

    @property
    def settings(self) -> dict:
        """Arguments of our `train`."""
        return {
            "num_epochs": self.num_epochs + 1,
            "global_batch_size": self.global_batch_size,
            "lr": self.lr,
            "seed": self.seed,
        }

    def flags(self, check: str | None) -> list[str]:
        """The same for a peer's script; `check` is the file of our first steps."""
        flags = {
            "num-epochs": self.num_epochs + 1,
            "data": self.data["name"],
            "global-batch-size": self.global_batch_size,
            "lr": self.lr,
            "n-train": self.data["n_train"],
            "n-test": self.data["n_test"],
            "check": check,
        }
        given = {flag: value for flag, value in flags.items() if value is not None}
        return [f"--{flag}={value}" for flag, value in given.items()]


@dataclass(frozen=True)
class Place:
    """Where they do it: devices `ids` of one kind ("cpu", "gpu"), in these counts.

    `threads` are those of each context or process; None shares the cores out.
    """

    kind: str
    ids: Sequence[int]
    counts: Sequence[int]
    threads: int | None = None

    def threads_each(self, n: int) -> int:
        """Threads of each of `n` contexts or processes."""
        return self.threads or max(1, cores.usable_cores() // n)

    @property
    def all_threads(self) -> int:
        """Threads of a peer that has one process for all devices."""
        return max(n * self.threads_each(n) for n in self.counts)

    @property
    def torch_device(self) -> str:
        return "cuda" if self.kind == "gpu" else "cpu"

    def words(self, n: int, one: str, many: str) -> str:
        """`n` devices in words: "2 GPUs", "2 contexts, 1 thread each"."""
        if self.kind == "gpu":
            return plural(n, "GPU")
        each = plural(self.threads_each(n), "thread")
        return f"1 {one}, {each}" if n == 1 else f"{n} {many}, {each} each"

    def words_together(self, n: int) -> str:
        """`n` GPUs, or all threads of the CPU, in words."""
        on_gpu = self.kind == "gpu"
        return plural(n, "GPU") if on_gpu else plural(self.all_threads, "thread")

    def visible(self, n: int) -> str:
        """CUDA_VISIBLE_DEVICES for the first `n` devices, of those visible now."""
        if self.kind == "cpu":
            return ""
        now = os.environ.get("CUDA_VISIBLE_DEVICES")
        return ",".join(
            now.split(",")[i].strip() if now else str(i) for i in self.ids[:n]
        )


@dataclass(frozen=True)
class Row:
    """One arm's result: seconds per epoch, or why it was not measured."""

    name: str
    is_peer: bool
    seconds: Summary | None = None
    samples_per_sec: float | None = None
    test_acc: float | None = None
    of_base: float | None = None  # median seconds, relative to the base's
    why: str | None = None


def names_of(text: str) -> list[str]:
    """Peers by name: "all", or "ddp,pytorch_loop". Raises :class:`SettingError`."""
    names = list(PEERS) if text == "all" else text.split(",")
    for name in names:
        if name not in PEERS:
            known = ", ".join(PEERS)
            raise SettingError(f"peer {name!r}: write all, or some of {known}")
    return list(dict.fromkeys(names))


def kind_and_ids(text: str) -> tuple[str, list[int]]:
    """The devices that a string names, for PyTorch as well as for MXNet.

    Unlike :func:`d2lpar.devices.parse` it accepts GPUs that MXNet has no code for: the
    peers can use them. Raises :class:`DeviceError` for one that is not there.
    """
    gpus = cuda.cuda_devices()
    if text.strip().lower() == "auto":
        usable = [
            i for i, g in enumerate(gpus) if cuda.build_has_code_for(g.capability)
        ]
        if usable and set(mxnet_builds.installed_builds()) - {"mxnet"}:
            return "gpu", usable
        text = "cpu"
    kind, ids = devices.kind_and_numbers(text)
    if kind == "cpu":
        return kind, list(range(cores.usable_cores())) if ids is None else ids
    ids = list(range(len(gpus))) if ids is None else ids
    absent = [i for i in ids if i >= len(gpus)]
    if absent or not ids:
        there = ", ".join(gpu.name for gpu in gpus) or "no GPU"
        raise DeviceError(
            f"devices {text!r}: here is {there}, and any number of CPU contexts (cpu:N)"
        )
    return kind, ids


def arms(
    peers: Sequence[str], recipe: Recipe, place: Place, check: str | None = None
) -> list[Arm]:
    """Ours on every count of devices, and the peers; `check` are our first steps."""
    found = [*_ours(recipe, place)]
    for name in peers:
        found += PEERS[name](_Scripts(name, recipe, place, check))
    return found


def _ours(recipe: Recipe, place: Place) -> Iterator[Arm]:
    ids = ",".join(map(str, place.ids))
    for training in ("from scratch", "concise"):
        for n in place.counts:
            where = {"num_devices": n, "devices": f"{place.kind}:{ids},"}
            settings = {"data": recipe.data, **recipe.settings, **where}
            words = ["-m", "d2lpar.runs.timed_epochs", training, json.dumps(settings)]
            name = f"d2lpar {training}, {place.words(n, 'context', 'contexts')}"
            yield in_turn.ours(name, place.threads_each(n), *words)


@dataclass(frozen=True)
class _Scripts:
    """One peer's script with the flags that all peers have."""

    peer: str
    recipe: Recipe
    place: Place
    check: str | None

    def arm(self, name: str, n: int, omp: int | None, **flags: object) -> Arm:
        """The script on the first `n` devices with `omp` threads, or its default."""
        environment = {
            "OMP_NUM_THREADS": None if omp is None else str(omp),
            "CUDA_VISIBLE_DEVICES": self.place.visible(n),
        }
        if self.recipe.data.get("data_dir"):
            environment["D2LPAR_DATA"] = str(self.recipe.data["data_dir"])
        more = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        words = [*self.recipe.flags(self.check), *more]
        return in_turn.peer(name, f"{self.peer}.py", *words, **environment)


def _d2l_notebook(script: _Scripts) -> Iterator[Arm]:
    place, name = script.place, "d2l's notebook loop"
    if place.kind == "cpu":
        yield script.arm(f"{name}, {place.words_together(1)}", 1, place.all_threads)
        yield script.arm(f"{name}, as the book has it", 1, None)
        return
    for n in place.counts:
        words = f"{name}, {place.words_together(n)}"
        yield script.arm(words, n, None, num_devices=n)


def _d2l_pytorch(script: _Scripts) -> Iterator[Arm]:
    place = script.place
    threads = place.all_threads
    for n in place.counts if place.kind == "gpu" else [1]:
        name = f"d2l's PyTorch tab, {place.words_together(n)}"
        yield script.arm(name, n, threads, threads=threads, num_devices=n)


def base_name(place: Place) -> str:
    """The arm that the others are compared with, where it ran."""
    return f"PyTorch, plain loop, {place.words_together(1)}"


def _pytorch_loop(script: _Scripts) -> Iterator[Arm]:
    place = script.place
    flags = {"device": place.torch_device, "seed": script.recipe.seed}
    threads = place.all_threads
    yield script.arm(base_name(place), 1, threads, threads=threads, **flags)


def _ddp(script: _Scripts) -> Iterator[Arm]:
    place = script.place
    flags = {"device": place.torch_device, "seed": script.recipe.seed}
    for n in place.counts:
        threads = place.threads_each(n)
        name = f"PyTorch DDP, {place.words(n, 'process', 'processes')}"
        yield script.arm(name, n, threads, threads=threads, num_devices=n, **flags)


PEERS: dict[str, Callable[[_Scripts], Iterator[Arm]]] = {
    "d2l_notebook": _d2l_notebook,
    "d2l_pytorch": _d2l_pytorch,
    "pytorch_loop": _pytorch_loop,
    "ddp": _ddp,
}


def write_first_steps(recipe: Recipe, path: Path) -> str | None:
    """Write our first steps for the peers to repeat; return why there are none.

    Raises :class:`RunError` where MXNet is installed and could not compute them.
    """
    if not mxnet_builds.installed_builds():
        return "MXNet is not installed"
    settings = {
        "data": recipe.data,
        "seed": recipe.seed,
        "global_batch_size": recipe.global_batch_size,
    }
    words = ["-m", "d2lpar.runs.reference_steps", path, json.dumps(settings)]
    try:
        in_turn.run(in_turn.ours("our first steps", 1, *words))
    except RunError as error:
        raise RunError(f"our first steps, which the peers repeat: {error}") from None
    return None


def measure(
    peers: Sequence[str], recipe: Recipe, place: Place, rounds: int
) -> tuple[list[Arm], list[ArmSample | ArmAbsent], str | None]:
    """The arms, the record's lines, and why the peers were not checked, if so.

    Raises :class:`RunError` where no arm could be measured.
    """
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        path = Path(folder) / "first_steps.npz"
        unchecked = write_first_steps(recipe, path) if peers else None
        check = str(path) if peers and not unchecked else None
        timed = arms(peers, recipe, place, check)
        lines = in_turn.measure(timed, rounds)
    absent = [line.why_not for line in lines if isinstance(line, ArmAbsent)]
    if len(absent) == len(lines):
        raise RunError(f"nothing could be measured: {absent[0]}")
    return timed, lines, unchecked


def rows(run: Run, base: str) -> list[Row]:
    """One row per arm, in the order in which they ran, relative to the arm `base`.

    Where that one was not measured, they are relative to the first one that was.
    """
    times = arm_times(run)
    medians = {x.name: summarize(x.seconds).median for x in times if x.seconds}
    one = medians.get(base, next(iter(medians.values())))
    return [_row(arm, one) for arm in times]


def _row(arm: ArmTimes, base: float) -> Row:
    if not arm.seconds:
        return Row(arm.name, arm.is_peer, why=arm.why_not)
    seconds, last = summarize(arm.seconds), arm.samples[-1]
    samples = last.extra["samples_per_sec"] * last.seconds  # of any epoch
    return Row(
        arm.name,
        arm.is_peer,
        seconds,
        samples_per_sec=samples / seconds.median,
        test_acc=last.extra["test_acc"],
        of_base=seconds.median / base,
    )
