"""One description per chapter: what it measures, on what data, and how it is drawn.

Functions are named as "module:function" and loaded when they are needed.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2lpar.errors import RecordError, SettingError

if TYPE_CHECKING:
    from d2lpar.records.kinds import Header, Run
    from d2lpar.records.result import Result

# Settings in which the runs of one sweep may differ.
MAY_DIFFER = {"resumed_at", "device_counts", "seed"}
# Settings that records before 0.6 wrote for one device count only.
MAY_DIFFER |= {"per_device_batch_sizes", "largest_copy", "copies"}
MAY_DIFFER |= {"max_iterations"}  # of gradient descent, a solver until 0.6


@dataclass(frozen=True)
class Experiment:
    """What a chapter measures: all that the command line knows of it.

    `measure` names ``f(num_devices, *, devices, seed, data, **settings)``, which yields
    a record's lines. `presets` hold settings, with those of `load` under "data";
    `variants` has those of each method.
    """

    name: str
    number: int
    title: str
    about: str  # what is measured, in one clause
    presets: Mapping[str, dict]
    measure: str
    room: str = ""  # whose `result.result` answers, and `figure.pictures` draws
    load: str = ""
    locate: str = ""  # ``f(name)`` settles which data set --data names
    datasets: Sequence[str] = ()  # what --data may name, beside auto
    start: str = ""  # ``f(seed)``: the state before the first epoch, for resuming
    start_takes: Sequence[str] = ()  # settings of `start`, which `measure` is not given
    header_facts: str = ""  # ``f(device_type)``: further fields of a record's header
    variants: Mapping[str, dict] = field(default_factory=lambda: {"": {}})
    threads: int | None = None  # the default of --threads; None shares the cores out
    one_thread_each: bool = False  # of several contexts: with more, OpenBLAS deadlocks
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """by "cpu" and "gpu": variables of the process, where the user has set none"""
    minutes: float = 1.0  # of the preset quick on two cores

    def refuse_unused(self, given: Mapping[str, object]) -> None:
        """Raise :class:`SettingError` for a setting that does not apply."""
        preset = str(given.get("preset", "quick"))
        presets = [name for name in self.presets if name != "dry-run"]
        for name, value, choices in (
            ("preset", preset, presets),
            ("data", given.get("data", "auto"), ["auto", *self.datasets]),
        ):
            if value not in choices:
                raise SettingError(
                    f"--{name} {value}: {self.name} takes {', '.join(choices)}"
                )
        takes = {"devices", "num_devices", "preset", "dry_run", "out", "data", "seeds"}
        takes |= {"threads", "repeats", *self.presets[preset]}
        if self.start:
            takes |= {"checkpoint_every", "resume"}
        if given.get("dry_run"):
            takes |= self.presets["dry-run"].keys()
        for name in given.keys() - takes:
            flag = f"--{name.replace('_', '-')}"
            value = "" if given[name] is True else f" {given[name]}"
            raise SettingError(
                f"{flag}{value}: does not apply to {self.name} with preset {preset}; "
                "leave it out"
            )


def load(function: str) -> Callable:
    """Return the function that "module:function" names."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)


def get(name: str) -> Experiment:
    """Return the experiment of a chapter, by its name or number.

    Raises :class:`SettingError` for an unknown one, and for one to be read.
    """
    for experiment in EXPERIMENTS.values():
        if name.removeprefix("chapter") in (experiment.name, str(experiment.number)):
            return experiment
    for k, lesson in LESSONS.items():
        if name.removeprefix("chapter") in (lesson, str(k)):
            script = f"chapters/{lesson}.py"
            raise SettingError(f"{lesson} measures by its own cells: python {script}")
    similar = difflib.get_close_matches(name, [*EXPERIMENTS, *LESSONS.values()], 1)
    hint = f"did you mean {similar[0]}?" if similar else "see d2lpar list"
    raise SettingError(f"chapter {name!r}: there is none; {hint}")


def measured_by(runs: Sequence[Run]) -> Experiment:
    """Return the experiment of runs of one chapter; raise RecordError for others'."""
    run = runs[0]
    chapter = getattr(run.header, "chapter", "")
    experiment = EXPERIMENTS.get(RECORDED_BY_BENCHMARKS.get(chapter, chapter))
    if not chapter:
        raise RecordError(
            f"{run.path}: of a benchmark; in a checkout, python benchmarks/figure.py "
            f"{run.path} draws it"
        )
    if experiment is None:
        raise RecordError(
            f"{run.path}: of chapter {chapter!r}, which this d2lpar cannot draw"
        )
    return experiment


def settings_of(header: Header) -> dict[str, Any]:
    """Return the settings of a run, with its "seed" and its "data"."""
    return {**header.settings, "seed": header.seed, "data": header.dataset_sha256}


def differing(facts: Sequence[Mapping], may_differ: Collection[str]) -> list[str]:
    """Return the names of facts in which runs should agree, and do not.

    One that is missing, as in a record of an older version, counts as False.
    """
    return [
        name
        for name in dict.fromkeys(name for of_run in facts for name in of_run)
        if name not in may_differ
        and len({str(of_run.get(name) or None) for of_run in facts}) > 1
    ]


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which runs of one chapter should agree, and do not."""
    experiment = measured_by(runs)
    may_differ = MAY_DIFFER.union(*experiment.variants.values())
    if not experiment.locate:  # generated data, as for one device count
        may_differ.add("data")
    return differing([settings_of(run.header) for run in runs], may_differ)


def result(runs: Sequence[Run]) -> Result:
    """Compute what runs of one sweep found, in any order.

    Raises :class:`RecordError` for runs whose settings differ, and for one without
    lines.
    """
    from d2lpar.records import labels

    experiment = measured_by(runs)
    for run in runs:
        if not run.lines:
            raise RecordError(
                f"{run.path}: holds no results yet; wait, or run it again"
            )
    if different := differing_settings(runs):
        other = next(run for run in runs if differing_settings([runs[0], run]))
        a, b = runs[0].path, other.path
        raise RecordError(
            f"differ in {', '.join(different)}, which no sentence may mix: "
            f"d2lpar compare {a} {b}"
        )
    runs = sorted(runs, key=lambda run: run.header.num_devices)
    found, header = load(f"{experiment.room}.result:result")(runs), runs[0].header
    where = f"data: {labels.data_name(header)}; {labels.hardware([header])}"
    return replace(found, note="; ".join(filter(None, (found.note, where))))


def draw(
    runs: Sequence[Run], folder: str | Path, found: Result | None = None
) -> list[Path]:
    """Draw the runs of one sweep in a folder; return the files."""
    from d2lpar.figures import page  # matplotlib is slow to import
    from d2lpar.records import labels

    runs = sorted(runs, key=lambda run: run.header.num_devices)
    experiment, found = measured_by(runs), found or result(runs)
    texts = {"results": found.full_text(labels.source(runs))} if found.further else {}
    with page.plain_style():
        drawn = load(f"{experiment.room}.figure:pictures")(runs, found.answers)
        return page.save({**drawn, **texts}, Path(folder))


# CUDA graphs on any number of GPUs, so that counts are comparable.
CUDA_GRAPHS = {"MXNET_ENABLE_CUDA_GRAPHS": "1"}
FASHION_MNIST: dict[str, Any] = {
    "load": "d2lpar.datasets.fashion:load",
    "locate": "d2lpar.datasets.fashion:locate",
    "datasets": ("fashion-mnist", "sample"),
    "header_facts": "d2lpar.padding:header_facts",
}
FEW_IMAGES = {"n_train": 5_000, "n_test": 1_000}
# A higher rate than the book's: otherwise the first epochs learn nothing.
QUICK = {"num_epochs": 6, "global_batch_size": 64, "lr": 0.3, "data": FEW_IMAGES}
BOOK = {"num_epochs": 10, "global_batch_size": 256, "lr": 0.2}
LENET = Experiment(
    "multiple_gpus",
    1,
    "Training on several devices from scratch",
    "trains LeNet: accuracy, seconds per epoch",
    presets={
        # From the book's start, N(0, 0.01), the first epochs learn nothing.
        "quick": {**QUICK, "scale": 0.1},
        "first": {  # of `make run`: seconds
            **{"num_epochs": 3, "global_batch_size": 32, "lr": 0.1, "scale": 0.1},
            "data": {"n_train": 2_000, "n_test": 1_000},
        },
        "book": BOOK,
        "dry-run": {"num_epochs": 1, "data": {"n_train": 128, "n_test": 64}},
    },
    measure="d2lpar.lenet:train",
    start="d2lpar.lenet:start",
    start_takes=("scale",),
    **FASHION_MNIST,
    room="d2lpar.lenet",
    minutes=0.6,
)

SMALL_ARRAYS = dict(x2=20_000_000, trig=1_500, product=1_536, largest_copy=2**24)
TINY_ARRAYS = dict(x2=1_000, sum_rows=100, trig=40, product=64, largest_copy=2**12)

# A recipe that draws recognisable faces; 157 steps per epoch of 10,000.
SHARP = dict(
    global_batch_size=64, lr=1e-3, sync_batch_norm=False, frames_every=6,
    width=64, d_norm="spectral", beta1=0.0,
)  # fmt: skip

_ALL = (
    LENET,
    Experiment(
        "timing",
        3,
        "Timing devices honestly",
        "times array operations by two clocks",
        presets={
            "quick": {"data": SMALL_ARRAYS},
            "book": {"product_repeats": 3},
            "dry-run": {"repeats": 1, "data": TINY_ARRAYS},
        },
        measure="d2lpar.arrays.timings:time_all",
        load="d2lpar.arrays.operations:Sizes",
        room="d2lpar.arrays",
    ),
    replace(
        LENET,
        name="multiple_gpus_concise",
        number=4,
        title="Training on several devices in Gluon",
        about="trains the same network in Gluon",
        measure="d2lpar.lenet.concise:train",
        environment={"gpu": CUDA_GRAPHS},
    ),
    Experiment(
        "scaling",
        5,
        "When does a second device pay?",
        "times training steps of many batch sizes",
        presets={
            "quick": {
                "device_counts": [],  # those of --num-devices, which take turns
                "batch_sizes": [8, 32, 128, 512],
                "samples": 4,  # fewer allow no speedup
                "seconds": 0.2,
                "parts_at": [32, 512],
                "turns": 5,
                "all_reduce_sizes": [2**12, 2**16, 2**20, 2**24],
                "data": FEW_IMAGES,
            },
            "first": {  # of `make run`, with --repeats 4: seconds a process
                "variants": ["concise"],
                "device_counts": [],
                "batch_sizes": [8, 128, 512],
                "samples": 2,
                "seconds": 0.1,
                "parts_at": [],
                "all_reduce_sizes": [],
                "data": FEW_IMAGES,
            },
            "book": {
                "device_counts": [],
                "batch_sizes": [2**k for k in range(1, 14)],
                "samples": 2,  # of each process: --repeats are what counts
                "seconds": 0.2,
                "parts_at": [32, 256, 2048],
                "turns": 3,
                "all_reduce_sizes": [2**k for k in range(10, 28, 2)],
            },
            "dry-run": {
                "batch_sizes": [8, 32],
                "samples": 1,
                "seconds": 0.01,
                "parts_at": [8],
                "turns": 1,
                "all_reduce_sizes": [2**12],
                "data": {"n_train": 128, "n_test": 100},
            },
        },
        measure="d2lpar.scaling.measure:study",
        environment={"gpu": CUDA_GRAPHS},
        **FASHION_MNIST,
        room="d2lpar.scaling",
        variants={
            "scratch": {"implementation": "from scratch"},
            "concise": {"implementation": "concise"},
        },
        threads=1,
        minutes=2,
    ),
    Experiment(
        "least_squares",
        9,
        "Least squares by four methods",
        "solves min ||A x - b||, method by method",
        presets={
            "quick": {
                "num_epochs": 3,
                "repeats": 4,  # fewer allow no ratio
                "data": {"rows": 4_000, "columns": 400},
            },
            "first": {  # of `make run`: the methods that converge
                "variants": ["normal", "cgls", "tsqr"],
                "repeats": 4,
                "data": {"rows": 2_000, "columns": 200},
            },
            "book": {"num_epochs": 40, "data": {"rows": 10_000, "columns": 1_000}},
            "dry-run": dict(num_epochs=1, repeats=1, data=dict(rows=200, columns=20)),
        },
        measure="d2lpar.least_squares.solver:measure",
        load="d2lpar.datasets.linear:uniform_problem",
        room="d2lpar.least_squares",
        variants={
            "averaging": {"method": "averaging"},
            "averaging-as-published": {"method": "averaging", "independent": False},
            "cgls": {"method": "cgls"},
            "normal": {"method": "normal"},
            "tsqr": {"method": "tsqr"},
        },
        one_thread_each=True,
        minutes=0.7,
    ),
    Experiment(
        "gan",
        10,
        "A GAN on CryptoPunks",
        "trains a GAN: faces, their quality, seconds",
        presets={
            "quick": {
                **SHARP,
                "num_epochs": 5,
                "global_batch_size": 32,
                "lr": 3e-3,
                "width": 16,
                "frames_every": 1,
                "data": {"n_train": 2_500},
            },
            "book": {**SHARP, "num_epochs": 32, "width": 48, "frames_every": 2},
            "sharp": {**SHARP, "num_epochs": 192},
            "as-published": {
                **SHARP,
                "num_epochs": 4_000,
                "global_batch_size": 10_000,
                "lr": 1e-4,
                "frames_every": 10,
                "width": None,
                "d_norm": "none",
                "beta1": 0.9,
            },
            "dry-run": dict(num_epochs=1, global_batch_size=50, data={"n_train": 100}),
        },
        measure="d2lpar.gan.training:train",
        load="d2lpar.datasets.punks:load",
        locate="d2lpar.datasets.punks:locate",
        datasets=("cryptopunks", "synthetic"),
        start="d2lpar.gan.training:start",
        start_takes=("width", "d_norm"),
        room="d2lpar.gan",
        # Each buffer grows to the largest activation; 16 are as fast as 256.
        environment={"cpu": {"MXNET_CPU_TEMP_COPY": "16"}},
        minutes=1,
    ),
    Experiment(
        "low_precision",
        11,
        "Inference in low precision",
        "infers in bfloat16, float16 and INT8",
        presets={
            "quick": {**QUICK, "calibration_images": 400, "repeats": 5},
            "book": {**BOOK, "repeats": 15},
            "dry-run": {
                "num_epochs": 1,
                "precisions": ["float32", "float16", "int8-naive"],
                "repeats": 1,
                "data": {"n_train": 1_000, "n_test": 200},
            },
        },
        measure="d2lpar.low_precision.measure:measure",
        **FASHION_MNIST,
        room="d2lpar.low_precision",
        minutes=2,
    ),
    replace(
        LENET,
        name="multiple_machines",
        number=8,
        title="Several machines and a parameter server",
        about="trains LeNet, also on several workers",
        measure="d2lpar.lenet.concise:train",
    ),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
# Chapters that measure in their own cells, and leave no record.
LESSONS = {2: "devices", 6: "communication", 7: "memory",
           12: "kernels", 13: "local_sgd"}  # fmt: skip
# Runs that benchmarks record, by the chapter in their header: benchmarks/gpu_scaling.py
RECORDED_BY_BENCHMARKS = {"gpu_scaling": "scaling"}
