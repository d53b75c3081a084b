"""LeNet beside its peers: ours and theirs in turn, in fresh processes, equal threads.

A peer is a script in peers/ that does the same job elsewhere: same network, initial
parameters, batch size and threads. Before it is timed it repeats our first steps, and
it refuses where its losses are not ours (:mod:`d2lpar.runs.ours`). What
cannot run here (a library that is not installed, a GPU that MXNet has no code for) is a
row that says why; the others run. Loads no MXNet itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from d2lpar import datasets, devices
from d2lpar.errors import DeviceError, RunError, SettingError
from d2lpar.machine import builds, host
from d2lpar.records.arms import arm_times
from d2lpar.records.comparison import Summary, summarize
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run, group
from d2lpar.runs import in_turn
from d2lpar.runs.in_turn import Arm
from d2lpar.text import plural

PRESETS = {
    "quick": {"rounds": 1, "num_epochs": 2, "n_train": 5_000, "n_test": 1_000},
    "book": {"rounds": 3, "num_epochs": 3, "n_train": None, "n_test": None},
}


PEERS = ("d2l_notebook", "d2l_pytorch", "pytorch_loop", "ddp")  # peers/*.py


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
        return self.threads or max(1, host.usable_cores() // n)

    @property
    def all_threads(self) -> int:
        """Threads of a peer that has one process for all devices."""
        return max(n * self.threads_each(n) for n in self.counts)

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

    @property
    def base_name(self) -> str:
        """The arm that the others are compared with, where it ran."""
        return f"PyTorch, plain loop, {self.words_together(1)}"


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
    gpus = builds.cuda_devices()
    if text.strip().lower() == "auto":
        on_gpus = set(builds.installed_builds()) - {"mxnet"}
        usable = devices.usable_gpus(gpus) if on_gpus else []
        if usable:
            return "gpu", usable
        text = "cpu"
    kind, ids = devices.kind_and_numbers(text)
    if kind == "cpu":
        return kind, list(range(host.usable_cores())) if ids is None else ids
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
    every, data = [], recipe.data
    ids = ",".join(map(str, place.ids))
    for training in ("from scratch", "concise"):
        for n in place.counts:
            ours = in_turn.ours(
                f"d2lpar {training}, {place.words(n, 'context', 'contexts')}",
                place.threads_each(n),
                "d2lpar.runs.ours:epochs",
                training=training,
                data=data,
                num_devices=n,
                devices=f"{place.kind}:{ids},",
                **recipe.settings,
            )
            every.append(ours)
    common = {
        "num_epochs": recipe.num_epochs + 1,
        "data": data["name"],
        "global_batch_size": recipe.global_batch_size,
        "lr": recipe.lr,
        "n_train": data["n_train"],
        "n_test": data["n_test"],
        "check": check,
    }
    folder = {"D2LPAR_DATA": str(data["data_dir"])} if data.get("data_dir") else {}
    theirs = group(_theirs(place, recipe.seed), lambda row: row[0])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    for peer, name, n, omp, flags in chain.from_iterable(map(theirs.get, peers)):
        gpus = [str(i) for i in place.ids[:n]] if place.kind == "gpu" else []
        if visible:  # they are numbered among these
            gpus = [visible.split(",")[int(i)].strip() for i in gpus]
        environment = {
            "OMP_NUM_THREADS": None if omp is None else str(omp),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            **folder,
        }
        every.append(in_turn.peer(name, f"{peer}.py", {**common, **flags}, environment))
    return every


def _theirs(
    place: Place, seed: int
) -> Iterator[tuple[str, str, int, int | None, dict]]:
    """Each peer on the devices that its script can use.

    The peer, the arm's name, how many devices, OMP_NUM_THREADS (None: the script's
    default) and the flags of that script alone.
    """
    on_gpu, together = place.kind == "gpu", place.all_threads
    torch = {"device": "cuda" if on_gpu else "cpu", "seed": seed}
    notebook = "d2l's notebook loop"
    if on_gpu:
        for n in place.counts:
            name = f"{notebook}, {place.words_together(n)}"
            yield "d2l_notebook", name, n, None, {"num_devices": n}
    else:
        name = f"{notebook}, {place.words_together(1)}"
        yield "d2l_notebook", name, 1, together, {}
        yield "d2l_notebook", f"{notebook}, as the book has it", 1, None, {}
    for n in place.counts if on_gpu else [1]:
        name = f"d2l's PyTorch tab, {place.words_together(n)}"
        flags = {"threads": together, "num_devices": n}
        yield "d2l_pytorch", name, n, together, flags
    flags = {"threads": together, **torch}
    yield "pytorch_loop", place.base_name, 1, together, flags
    for n in place.counts:
        name = f"PyTorch DDP, {place.words(n, 'process', 'processes')}"
        threads = place.threads_each(n)
        flags = {"threads": threads, "num_devices": n, **torch}
        yield "ddp", name, n, threads, flags


def write_first_steps(recipe: Recipe, path: Path) -> str | None:
    """Write our first steps for the peers to repeat; return why there are none.

    Raises :class:`RunError` where MXNet is installed and could not compute them.
    """
    if not builds.installed_builds():
        return "MXNet is not installed"
    settings = {"data": recipe.data, "seed": recipe.seed}
    settings["global_batch_size"] = recipe.global_batch_size
    work = "d2lpar.runs.ours:write_first_steps"
    try:
        in_turn.run(
            in_turn.ours("our first steps", 1, work, path=str(path), **settings)
        )
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
    summaries = {x.name: summarize(x.seconds) for x in times if x.seconds}
    one = summaries.get(base, next(iter(summaries.values()))).median
    rows = []
    for arm in times:
        if not arm.seconds:
            rows.append(Row(arm.name, arm.is_peer, why=arm.why_not))
            continue
        seconds, last = summaries[arm.name], arm.samples[-1]
        samples = last.samples_per_sec * last.seconds  # of any epoch
        speed = {"samples_per_sec": samples / seconds.median}
        speed |= {"test_acc": last.test_acc, "of_base": seconds.median / one}
        rows.append(Row(arm.name, arm.is_peer, seconds, **speed))
    return rows
