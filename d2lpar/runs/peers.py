"""LeNet beside its peers: ours and theirs in turn, in fresh processes, equal threads.

A peer is a script in peers/ that does the same job elsewhere: same network, initial
parameters, batch size and threads. Each trains on the first steps of ours before it is
timed and is refused where its losses are not ours (:mod:`d2lpar.runs.reference_steps`). What
cannot run here (a library that is not installed, a GPU that MXNet has no code for) is a
row that says why; the others run. Loads no MXNet itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from d2lpar import datasets, devices
from d2lpar.errors import DeviceError, RunError, SettingError
from d2lpar.machine import cores, cuda, mxnet_builds
from d2lpar.records import summary
from d2lpar.records.wording import plural
from d2lpar.runs import in_turn
from d2lpar.runs.in_turn import Arm

log = logging.getLogger("d2lpar")

PEERS = ("d2l_notebook", "d2l_pytorch", "pytorch_loop", "ddp")
PRESETS = {
    "quick": {"rounds": 1, "num_epochs": 2, "n_train": 12_000, "n_test": 2_000},
    "book": {"rounds": 3, "num_epochs": 3, "n_train": None, "n_test": None},
}
BASE = "PyTorch, plain loop"  # what the others are held against, where it ran

OURS = """
import json, sys
from d2lpar import datasets, {module}
settings = json.loads(sys.argv[1])
data = datasets.load(**settings.pop("data"))
for r in {module}.train(data=data, **settings):
    print(json.dumps(dict(
        epoch=r.epoch, seconds=r.seconds, samples_per_sec=r.samples_per_sec,
        test_acc=r.test_acc, eval_seconds=r.eval_seconds)), flush=True)
"""


@dataclass(frozen=True)
class Job:
    """What all of them do: data (arguments of `datasets.load`), recipe and epochs."""

    data: dict
    num_epochs: int  # timed ones; one more warms up
    global_batch_size: int
    lr: float
    seed: int

    def check(self, data: datasets.ImageData, counts: list[int]) -> None:
        """Raise :class:`SettingError` for a batch that some device has no part of."""
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
            "data": self.data,
            "num_epochs": self.num_epochs + 1,
            "global_batch_size": self.global_batch_size,
            "lr": self.lr,
            "seed": self.seed,
        }

    def flags(self, check: str | None) -> list[str]:
        """The same for a peer's script; `check` is the file of our first steps."""
        found = [
            f"--num-epochs={self.num_epochs + 1}",
            f"--data={self.data['name']}",
            f"--global-batch-size={self.global_batch_size}",
            f"--lr={self.lr}",
        ]
        for name in ("n_train", "n_test"):
            if self.data[name] is not None:
                found.append(f"--{name.replace('_', '-')}={self.data[name]}")
        return found + [f"--check={check}"] * (check is not None)


@dataclass(frozen=True)
class Row:
    """One arm's result: seconds an epoch, or why it was not measured."""

    name: str
    is_peer: bool
    seconds: summary.Summary | None = None
    samples_per_sec: float | None = None
    test_acc: float | None = None
    of_base: float | None = None  # this median / that of the base
    why: str | None = None


def names_of(text: str) -> list[str]:
    """Peers by name: "all", or "ddp,pytorch_loop". Raises :class:`SettingError`."""
    names = list(PEERS) if text == "all" else text.split(",")
    for name in names:
        if name not in PEERS:
            known = ", ".join(PEERS)
            raise SettingError(f"peer {name!r}: write all, or some of {known}")
    return list(dict.fromkeys(names))


def chosen(text: str) -> tuple[str, list[int]]:
    """Kind and numbers of a device string, for PyTorch as well as for MXNet.

    Unlike :func:`d2lpar.devices.parse` it takes a GPU that MXNet has no code for: the
    peers can use it. Raises :class:`DeviceError` for one that is not there.
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


def threads_each(num_devices: int, threads: int | None) -> int:
    """Threads of each context or process: those asked for, or the cores shared out."""
    return threads or max(1, cores.usable_cores() // num_devices)


def arms(
    peers: list[str],
    kind: str,
    ids: list[int],
    counts: list[int],
    job: Job,
    threads: int | None = None,
    check: str | None = None,
) -> dict[str, Arm]:
    """Ours on every count of devices, and the peers, by the name of the row."""
    found = {}
    for module, words in (("lenet", "from scratch"), ("lenet_concise", "concise")):
        for n in counts:
            name = f"d2lpar {words}, {_on(kind, n, threads, 'context')}"
            where = {"num_devices": n, "devices": f"{kind}:{','.join(map(str, ids))},"}
            settings = json.dumps({**job.settings, **where})
            each = threads_each(n, threads)
            found[name] = in_turn.ours(OURS.format(module=module), each, settings)
    for peer in peers:
        found.update(_arms_of(peer, kind, ids, counts, job, threads, check))
    return found


def _arms_of(peer, kind, ids, counts, job, threads, check) -> Iterator[tuple[str, Arm]]:
    flags = [*job.flags(check)]
    all_threads = max(n * threads_each(n, threads) for n in counts)
    together = plural(all_threads, "thread")

    def script(n: int, omp: int | None, *more: str) -> Arm:
        gpus = _visible(ids[:n]) if kind == "gpu" else ""
        environment = {
            "OMP_NUM_THREADS": None if omp is None else str(omp),
            "CUDA_VISIBLE_DEVICES": gpus,
        }
        if job.data.get("data_dir"):
            environment["D2LPAR_DATA"] = str(job.data["data_dir"])
        return in_turn.peer(f"{peer}.py", *flags, *more, **environment)

    if peer == "ddp":
        for n in counts:
            each = threads_each(n, threads)
            device = "cuda" if kind == "gpu" else "cpu"
            more = (f"--num-devices={n}", f"--threads={each}", f"--device={device}")
            arm = script(n, each, *more, f"--seed={job.seed}")
            yield f"PyTorch DDP, {_on(kind, n, threads, 'process')}", arm
    elif peer == "pytorch_loop":
        device = "cuda" if kind == "gpu" else "cpu"
        more = (f"--threads={all_threads}", f"--device={device}", f"--seed={job.seed}")
        where = "1 GPU" if kind == "gpu" else together
        yield f"{BASE}, {where}", script(1, all_threads, *more)
    elif peer == "d2l_pytorch":
        for n in counts if kind == "gpu" else [1]:
            more = (f"--threads={all_threads}", f"--num-devices={n}")
            where = plural(n, "GPU") if kind == "gpu" else together
            yield f"d2l's PyTorch tab, {where}", script(n, all_threads, *more)
    elif kind == "gpu":
        for n in counts:
            more = (f"--num-devices={n}",)
            yield f"d2l's notebook loop, {plural(n, 'GPU')}", script(n, None, *more)
    else:
        yield f"d2l's notebook loop, {together}", script(1, all_threads)
        yield "d2l's notebook loop, as the book has it", script(1, None)


def _on(kind: str, n: int, threads: int | None, what: str) -> str:
    if kind == "gpu":
        return plural(n, "GPU")
    each = plural(threads_each(n, threads), "thread")
    many = "processes" if what == "process" else f"{what}s"
    return f"1 {what}, {each}" if n == 1 else f"{n} {many}, {each} each"


def _visible(ids: list[int]) -> str:
    """CUDA_VISIBLE_DEVICES for these of the GPUs that are visible now."""
    now = os.environ.get("CUDA_VISIBLE_DEVICES")
    return ",".join(now.split(",")[i].strip() if now else str(i) for i in ids)


def write_first_steps(job: Job, path: Path) -> str | None:
    """Our first steps, for the peers to agree with; or why there are none.

    Raises :class:`RunError` where ours should have computed them and could not.
    """
    if not mxnet_builds.installed_builds():
        return "MXNet is not installed"
    settings = {
        "data": job.data,
        "seed": job.seed,
        "global_batch_size": job.global_batch_size,
    }
    command = [sys.executable, "-m", "d2lpar.runs.reference_steps", str(path)]
    arm = Arm([*command, json.dumps(settings)], {"OMP_NUM_THREADS": "1"}, False)
    _, problem = in_turn.run(arm)
    if problem:
        raise RunError(f"our first steps, which the peers are held to: {problem}")
    return None


def measure(
    peers: list[str],
    kind: str,
    ids: list[int],
    counts: list[int],
    job: Job,
    rounds: int,
    threads: int | None = None,
) -> tuple[list[Row], list[dict], dict, str | None]:
    """Rows; the record's lines; seconds by arm; why peers were not checked, or None."""
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        path = Path(folder) / "first_steps.npz"
        unchecked = write_first_steps(job, path) if peers else None
        check = str(path) if peers and not unchecked else None
        every = arms(peers, kind, ids, counts, job, threads, check)
        lines, seconds = in_turn.measure(every, rounds)
    if not seconds:
        why = next(iter(in_turn.absent(lines).values()))
        raise RunError(f"nothing could be measured: {why}")
    return rows_of(every, lines, seconds), lines, seconds, unchecked


def rows_of(every: dict[str, Arm], lines: list[dict], seconds: dict) -> list[Row]:
    """A row an arm, in the arms' order."""
    why = in_turn.absent(lines)
    medians = {name: summary.summarize(found) for name, found in seconds.items()}
    base = next((n for n in medians if n.startswith(BASE)), next(iter(medians)))
    last = {line["arm"]: line for line in lines if line["kind"] == "sample"}
    rows = []
    for name, arm in every.items():
        if name not in medians:
            rows.append(Row(name, arm.is_peer, why=why.get(name, "printed no times")))
            continue
        median, line = medians[name].median, last[name]
        # Samples an epoch are the same in all of a process's lines.
        samples = line["samples_per_sec"] * line["seconds"]
        rows.append(
            Row(
                name,
                arm.is_peer,
                medians[name],
                samples / median,
                line["test_acc"],
                median / medians[base].median,
            )
        )
    return rows
