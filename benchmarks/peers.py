"""LeNet beside its peers, ours and theirs in turn, in fresh processes, equal threads.

    python benchmarks/peers.py                                  # all, 5,000 images
    python benchmarks/peers.py --peers ddp,pytorch_loop --num-devices 1,2
    python benchmarks/peers.py --preset book --threads 1       # 60,000 images
    python benchmarks/peers.py --devices gpu:4 --num-devices 1,2,4

A peer is a script in benchmarks/peers/ that does the same job elsewhere: same network,
initial parameters, batch size and threads. Before it is timed it repeats our first
steps, and it refuses to be timed if its losses differ from ours (first_steps.py). What
cannot run here (a library that is not installed, a GPU that MXNet has no code for) is a
row with the reason; the other rows are measured. Writes a record and its picture to
runs/peers, and prints the table. Loads no MXNet in this process.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import arms
import click
from arms import Arm

from d2lpar import datasets, experiments
from d2lpar.cli.main import guard
from d2lpar.devices import (
    default_counts,
    kind_and_numbers,
    parse_counts,
    usable_gpus,
)
from d2lpar.errors import DeviceError, RunError, SettingError
from d2lpar.figures import labels
from d2lpar.machine import builds, host
from d2lpar.records import atomic
from d2lpar.records.comparison import Summary, arm_times, summarize
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run, group
from d2lpar.text import plain_table, plural

log = logging.getLogger("d2lpar")

PRESETS = {
    "quick": {"rounds": 1, "num_epochs": 2, "n_train": 5_000, "n_test": 1_000},
    "book": {"rounds": 3, "num_epochs": 3, "n_train": None, "n_test": None},
}
CHAPTERS = {"from scratch": "multiple_gpus", "concise": "multiple_gpus_concise"}
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
        """Raise :class:`SettingError` if a device would have no shard of the batch."""
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
class DeviceChoice:
    """Devices `ids` of one kind ("cpu", "gpu"), used in these counts.

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
        """The arm with which the others are compared, where it was measured."""
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
        usable = usable_gpus(gpus) if on_gpus else []
        if usable:
            return "gpu", usable
        text = "cpu"
    kind, ids = kind_and_numbers(text)
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


def arms_of(
    peers: Sequence[str], recipe: Recipe, chosen: DeviceChoice, check: str | None = None
) -> list[Arm]:
    """Ours on every count of devices, and the peers; `check` names our first steps."""
    every, data = [], recipe.data
    ids = ",".join(map(str, chosen.ids))
    for training, chapter in CHAPTERS.items():
        experiment = experiments.get(chapter)
        for n in chosen.counts:
            ours = arms.ours(
                f"d2lpar {training}, {chosen.words(n, 'context', 'contexts')}",
                chosen.threads_each(n),
                "first_steps:epochs",
                training=training,
                data=data,
                num_devices=n,
                devices=f"{chosen.kind}:{ids},",
                **recipe.settings,
            )
            changes = dict(ours.environment)
            for name, value in experiment.environment_on(chosen.kind, n).items():
                changes[name] = os.environ.get(name, value)
            every.append(ours._replace(environment=changes))
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
    theirs = group(_theirs(chosen, recipe.seed), lambda row: row[0])
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    for peer, name, n, omp, flags in chain.from_iterable(map(theirs.get, peers)):
        gpus = [str(i) for i in chosen.ids[:n]] if chosen.kind == "gpu" else []
        if visible:  # they are numbered among these
            gpus = [visible.split(",")[int(i)].strip() for i in gpus]
        environment = {
            "OMP_NUM_THREADS": None if omp is None else str(omp),
            "CUDA_VISIBLE_DEVICES": ",".join(gpus),
            **folder,
        }
        every.append(arms.peer(name, f"{peer}.py", {**common, **flags}, environment))
    return every


def _theirs(
    chosen: DeviceChoice, seed: int
) -> Iterator[tuple[str, str, int, int | None, dict]]:
    """Each peer on the devices that its script can use.

    The peer, the arm's name, how many devices, OMP_NUM_THREADS (None: the script's
    default) and the flags of that script alone.
    """
    on_gpu, together = chosen.kind == "gpu", chosen.all_threads
    torch = {"device": "cuda" if on_gpu else "cpu", "seed": seed}
    notebook = "d2l's notebook loop"
    if on_gpu:
        for n in chosen.counts:
            name = f"{notebook}, {chosen.words_together(n)}"
            yield "d2l_notebook", name, n, None, {"num_devices": n}
    else:
        name = f"{notebook}, {chosen.words_together(1)}"
        yield "d2l_notebook", name, 1, together, {}
        yield "d2l_notebook", f"{notebook}, as the book has it", 1, None, {}
    for n in chosen.counts if on_gpu else [1]:
        name = f"d2l's PyTorch tab, {chosen.words_together(n)}"
        flags = {"threads": together, "num_devices": n}
        yield "d2l_pytorch", name, n, together, flags
    flags = {"threads": together, **torch}
    yield "pytorch_loop", chosen.base_name, 1, together, flags
    for n in chosen.counts:
        name = f"PyTorch DDP, {chosen.words(n, 'process', 'processes')}"
        threads = chosen.threads_each(n)
        flags = {"threads": threads, "num_devices": n, **torch}
        yield "ddp", name, n, threads, flags


def write_first_steps(recipe: Recipe, path: Path) -> str | None:
    """Write our first steps for the peers to repeat; return why there are none.

    Raises :class:`RunError` where MXNet is installed and could not compute them.
    """
    if not builds.installed_builds():
        return "MXNet is not installed"
    job = {
        "path": str(path),
        "data": recipe.data,
        "seed": recipe.seed,
        "global_batch_size": recipe.global_batch_size,
    }
    work = "first_steps:write_first_steps"
    try:
        arms.run(arms.ours("our first steps", 1, work, **job))
    except RunError as error:
        raise RunError(f"our first steps, which the peers repeat: {error}") from None
    return None


def measure(
    peers: Sequence[str], recipe: Recipe, chosen: DeviceChoice, rounds: int
) -> tuple[list[Arm], list[ArmSample | ArmAbsent], str | None]:
    """The arms, the record's lines, and why the peers were not checked, if so.

    Raises :class:`RunError` where no arm could be measured.
    """
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        path = Path(folder) / "first_steps.npz"
        unchecked = write_first_steps(recipe, path) if peers else None
        check = str(path) if peers and not unchecked else None
        timed = arms_of(peers, recipe, chosen, check)
        lines = arms.measure(timed, rounds)
    absent = [line.why_not for line in lines if isinstance(line, ArmAbsent)]
    if len(absent) == len(lines):
        raise RunError(f"nothing could be measured: {absent[0]}")
    return timed, lines, unchecked


def rows_of(run: Run, base: str) -> list[Row]:
    """One row per arm, in the order in which they ran, relative to the arm `base`.

    If that one was not measured, they are relative to the first one that was.
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


def table(rows: Sequence[Row]) -> str:
    """One line per row; times relative to the base's, which is the row with 1.00."""
    columns = ["", "sec/epoch", "quartiles", "n", "samples/s", "accuracy", "of base"]
    cells, absent = [], []
    for row in rows:
        s = row.seconds
        if s is None:
            absent.append(f"{row.name}: not measured: {row.why}")
            continue
        times = [f"{s.median:.3g}", f"{s.q1:.3g}-{s.q3:.3g}", str(s.n)]
        speed = [f"{row.samples_per_sec:,.0f}", f"{row.test_acc:.3f}"]
        cells.append([row.name, *times, *speed, f"{row.of_base:.2f}"])
    base = next(row.name for row in rows if row.of_base == 1)
    return "\n".join([plain_table(columns, cells, names=1), *absent, f"base: {base}"])


def filled(ctx: click.Context, parameter: click.Parameter, value: object) -> object:
    """A callback of options: refuses "", as of an unset shell variable, and NaN."""
    if isinstance(value, str) and not value.strip():
        raise click.BadParameter("it is empty; write a value, or leave it out")
    if isinstance(value, float) and math.isnan(value):
        raise click.BadParameter("nan is not a number.")
    return value


def flag(name: str, help: str | None = None, **settings) -> Callable:
    """An option of the command, checked by :func:`filled`."""
    return click.option(name, help=help, callback=filled, **settings)


COUNT = click.IntRange(1, 2**31 - 1)


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@flag("--peers", "All, or a list such as ddp,pytorch_loop.", default="all")
@flag(
    "--devices",
    "auto, cpu:N, gpu:N (the first N) or gpu:I,J (those); also GPUs that only PyTorch "
    "can use.",
    default="auto",
)
@flag("--num-devices", "Counts, as in 1,2,4. [default: 1,2,4,...]")
@flag(
    "--threads",
    "Per context and process. [default: cores // device count]",
    type=click.IntRange(1, 1024),
)
@flag(
    "--preset",
    "quick: 5,000 images, 1 round. book: all of them, 3 rounds.",
    default="quick",
    type=click.Choice(sorted(PRESETS, reverse=True)),
)
@flag("--rounds", "Processes per row, in turn. [default: the preset's]", type=COUNT)
@flag("--num-epochs", "Timed ones; one warms up. [default: the preset's]", type=COUNT)
@flag("--global-batch-size", default=256, type=COUNT)
@flag("--lr", default=0.2, type=click.FloatRange(1e-12, 1e15))
@flag("--seed", "Of the random numbers.", default=0, type=click.IntRange(0, 2**31 - 1))
@flag(
    "--data",
    "auto: the whole set if it can be had, else the sample in the package.",
    default="auto",
    type=click.Choice(("auto", "fashion-mnist", "sample")),
)
@flag("--data-dir", "Folder to look for the data in first.")
@flag("--n-train", "Use only the first images. [default: the preset's]", type=COUNT)
@flag("--n-test", "As --n-train. [default: the preset's]", type=COUNT)
@flag("--out", "Folder for the record and its picture.", default="runs/peers")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, not a table.")
def main(preset: str, as_json: bool, **flags) -> None:
    """Time LeNet beside its peers: ours, d2l's and PyTorch's training, in turn."""
    names = names_of(flags["peers"])
    kind, ids = kind_and_ids(flags["devices"])
    counts = default_counts(len(ids))
    if flags["num_devices"]:
        counts = parse_counts(flags["num_devices"], len(ids))
    chosen = DeviceChoice(kind, ids, counts, flags["threads"])
    given = {name: flags[name] for name in PRESETS[preset] if flags[name]}
    name = "custom" if given or flags["threads"] else preset
    sizes = {**PRESETS[preset], **given}
    recipe = Recipe(
        data={
            "name": datasets.locate(flags["data"], flags["data_dir"]),
            "data_dir": flags["data_dir"],
            "n_train": sizes["n_train"],
            "n_test": sizes["n_test"],
        },
        num_epochs=sizes["num_epochs"],
        global_batch_size=flags["global_batch_size"],
        lr=flags["lr"],
        seed=flags["seed"],
    )
    folder = Path(flags["out"])
    data = datasets.load(**recipe.data)
    recipe.check(data, counts)
    atomic.check_writable(folder)
    timed, lines, unchecked = measure(names, recipe, chosen, sizes["rounds"])
    if data.name.endswith("-sample"):
        name += "-sample"
    stem = f"{name}-{kind}{max(counts)}"
    run = arms.record(
        folder / f"{stem}.jsonl",
        timed,
        lines,
        work=f"an epoch of LeNet on {labels.DATA_NAMES.get(data.name, data.name)}, "
        f"{len(data.y_train):,} images, batch {recipe.global_batch_size}",
        command=shlex.join(["python", "benchmarks/peers.py", *sys.argv[1:]]),
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=recipe.seed,
        settings={**recipe.settings, "threads": chosen.threads, **data.sizes},
        first_losses_checked=unchecked is None,
        **(arms.gpu_fields(ids) if kind == "gpu" else {}),
    )
    (picture,) = experiments.draw([run], folder, stem)
    rows = rows_of(run, chosen.base_name)
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        click.echo(table(rows))
    if unchecked and names:
        log.warning("the peers' losses were not compared with ours: %s", unchecked)
    click.echo(f"record: {run.path}\nfigure: {picture}", err=as_json)


if __name__ == "__main__":
    guard(lambda: main(prog_name="benchmarks/peers.py", standalone_mode=False))
