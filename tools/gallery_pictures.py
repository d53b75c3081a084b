"""The pictures of figures/: each answers one question of a chapter, from its records.

A picture is what the subjects' figures draw of some records, under a title with the
condition under which it is true: if the records contradict it, :func:`claim` raises an
error with their numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

import figure as benchmark
import memory_estimate
from matplotlib.axes import Axes

from d2lpar.arrays import figure as arrays
from d2lpar.arrays import result as timing
from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.figures.page import Picture
from d2lpar.gan import figure as gan
from d2lpar.least_squares import figure as least_squares
from d2lpar.least_squares.result import AVERAGING, comparable, least_of, seconds_of
from d2lpar.lenet import figure as lenet
from d2lpar.lenet.result import pooled
from d2lpar.low_precision import figure as low_precision
from d2lpar.low_precision.result import baseline, merged
from d2lpar.low_precision.result import speedup as speedup_of_precision
from d2lpar.records import files
from d2lpar.records.comparison import (
    ArmTimes,
    Summary,
    arm_times,
    ratio,
    references,
    seconds_per_epoch,
    summarize,
)
from d2lpar.records.kinds import (
    ArmSample,
    BenchmarkHeader,
    FrameRecord,
    PrecisionRecord,
    Run,
    group,
)
from d2lpar.scaling import figure as scaling
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.scaling.result import name_of, pays_between, speedups
from d2lpar.workers import figure as workers

FIGURES = Path(__file__).parents[1] / "figures"
VERSION = "0.4"  # whose first records are of this day:
SINCE = "2026-11-24"
ONE, TWO, MANY = page.COUNTS
Runs = Sequence[Run]


class Entry(NamedTuple):
    """A picture: its file, the question it answers, its records, and its drawing."""

    file: str
    question: str
    records: tuple[str, ...]
    function: Callable[..., Picture]

    def draw(self) -> Picture:
        """Draw it from a list of runs for each of `records`."""
        with page.plain_style():
            return self.function(*map(runs_of, self.records))


PICTURES: dict[str, Entry] = {}


def answers(file: str, *records: str):
    """Note a function as the drawing of ``<file>.png``; it begins with its question."""

    def note(function: Callable[..., Picture]) -> Callable[..., Picture]:
        question = (function.__doc__ or "").split("\n")[0]
        PICTURES[file] = Entry(file, question, records, function)
        return function

    return note


def claim(text: str, when: bool, **numbers: float) -> str:
    """The title, with the numbers put in, if the records bear it out.

    `when` is the condition under which it is true. Raises :class:`RecordError` with
    the numbers if it is not, so that nothing is drawn under a wrong title.

    >>> claim("Two cores are {r:.1f} times as fast", when=1.52 > 1.2, r=1.52)
    'Two cores are 1.5 times as fast'
    """
    title = text.format(**numbers)
    if not when:
        found = ", ".join(f"{name} = {value:.4g}" for name, value in numbers.items())
        raise RecordError(f"the records contradict the title {title!r}: {found}")
    return title


@cache
def runs_of(pattern: str) -> list[Run]:
    """The records of a pattern such as "scaling/book-*", by name."""
    return [files.read(path) for path in sorted(FIGURES.glob(f"{pattern}.jsonl"))]


def machine(run: Run) -> str:
    """The machine of a run in a few words, and whether it ran an older version."""
    header = run.header
    of_benchmark = isinstance(header, BenchmarkHeader)
    words = labels.machine(header) if of_benchmark else labels.hardware([header])
    return words + age(run)


def age(run: Run) -> str:
    """Whether an older version measured a run, to be said after its machine."""
    return "" if run.header.date >= SINCE else f", before {VERSION}"


def subtitle(words: str, runs: Runs) -> str:
    """The line below a picture, which ends with the machines of its runs."""
    return " \u00b7 ".join([words, *dict.fromkeys(machine(run) for run in runs)])


def picture(title: str, words: str, runs: Runs, size: tuple[float, float], **grid):
    """A picture with empty panels."""
    return page.new(title, subtitle(words, runs), runs, size, **grid)


def panels(
    title: str,
    words: str,
    groups: Sequence[Runs],
    size: tuple[float, float],
    draw: Callable[[Axes, Runs], None],
    **grid,
) -> Picture:
    """A panel for each group of runs, by default side by side, under its machine."""
    runs = [run for same in groups for run in same]
    grid = grid or {"columns": len(groups), "sharey": True}
    drawn = picture(title, words, runs, size, **grid)
    for axes, same in zip(drawn.axes, groups):
        draw(axes, same)
        axes.set_title(machine(same[0]))
    return drawn


def seconds(runs: Runs) -> dict[tuple[str, str], Summary]:
    """The seconds of benchmarks' arms, by work and arm."""
    arms = [arm for run in runs for arm in arm_times(run) if arm.seconds]
    return {(arm.work, arm.name): summarize(arm.seconds) for arm in arms}


def limit(axes: Axes, y: float, words: str) -> None:
    """A dashed line with words above its left end."""
    axes.axhline(y, **page.LIMIT)
    place = {"transform": axes.get_yaxis_transform(), "va": "bottom", "size": 9}
    axes.text(0.02, y, words, color="0.3", **place)


# Chapters 1 and 5: from scratch and in Gluon


def to_accuracy(runs: Runs, enough: float = 0.80) -> list[float]:
    """Seconds of training until a test accuracy is first reached, where it is."""
    found = []
    for run in runs:
        passed = accumulate(epoch.seconds for epoch in run.epochs)
        reached = [s for s, e in zip(passed, run.epochs) if e.test_acc >= enough]
        found += reached[:1]
    return found


@answers(
    "multiple_gpus/two-devices",
    "seeds/multiple_gpus_concise/book*-cpu1",
    "seeds/multiple_gpus_concise/book*-cpu2",
    "scaling/book-*-concise-*",
    "h200/scaling/book-*-concise-*",
)
def two_devices(one: Runs, two: Runs, cores: Runs, gpus: Runs) -> Picture:
    """Do two devices learn what one learns, and when are they faster?"""
    found = [*studies(cores), *studies(gpus)]
    gains = [speedups(study, 2) for study in found]
    ends = [summarize([run.epochs[-1].test_acc for run in runs]) for runs in (one, two)]
    times = [summarize(to_accuracy(runs)) for runs in (one, two)]
    title = claim(
        "Two devices learn what one learns, and faster if there is enough to do",
        when=abs(ends[0].median - ends[1].median) < ends[0].q3 - ends[0].q1
        and times[1].is_below(times[0])
        and times[0].n == times[1].n == 5
        and all((gain[2] or 1) < 1 < (gain[8_192] or 1) for gain in gains),
    )
    words = (
        "LeNet in Gluon; left: batch 256, the same 2 cores for one context and two; "
        "right: a core or a GPU each, n = 5"
    )
    drawn = picture(title, words, [*one, *two, *cores, *gpus], (10.4, 4.6), columns=2)
    left, right = drawn.axes
    lenet.curves(left, pooled([*one, *two]))
    left.set_ylim(bottom=0.5)
    reached = ", ".join(f"{time.median:.0f} s" for time in times)
    left.set_title(f"On 2 CPU cores, 5 seeds; 0.80 reached after {reached}")
    scaling.speedup(right, found)
    right.set_title("Speedup of a step, by batch")
    return drawn


@answers("benchmarks/equivalence", "benchmarks/equivalence")
def equivalence(runs: Runs) -> Picture:
    """Do two devices compute what one computes?"""
    samples = runs[0].lines_of(ArmSample)
    last = [x for x in samples if x.steps == max(x.steps for x in samples)]
    low, book, double = group(last, lambda x: x.arm, lambda x: x.error).values()
    title = claim(
        "At a rate of 0.2 rounding grows until two trainings part",
        when=max(low) < 1e-4 and min(book) > 0.1 and max(double) < 1e-6,
        low=max(low), book=min(book), double=max(double),
    )  # fmt: skip
    batch = runs[0].header.settings["global_batch_size"]
    words = f"LeNet, batch {batch}; a dot per seed, lines: medians"
    drawn = picture(title, words, runs, (7.6, 4.2))
    (axes,) = drawn.axes
    benchmark.errors(axes, runs[0])
    limit(axes, 1, "as large as the parameters")
    axes.set(xlim=(None, 40_000), ylim=(None, 1e3))
    axes.legend(loc="lower right")
    axes.set_ylabel("distance of parameters from one device's")
    axes.set_xlabel("steps of training on two devices")
    return drawn


@answers("benchmarks/memory", "benchmarks/memory", "h200/benchmarks/memory")
def memory(cores: Runs, gpus: Runs) -> Picture:
    """How much memory does a training take, and can it be counted before?"""
    runs = [*cores, *gpus]
    samples = [(run, x) for run in runs for x in run.lines_of(ArmSample)]
    arms = {
        arm: group(
            same,
            lambda item: item[1].batch_size,
            lambda item: item[1].peak_bytes / memory_estimate.of_sample(*item),
        )
        for arm, same in group(samples, lambda item: item[1].arm).items()
    }
    alone, both = (
        [r for arm, at in arms.items() if arm[0] == n for rs in at.values() for r in rs]
        for n in "12"
    )
    title = claim(
        "One device takes {a:.2f} to {b:.2f} times what we count, in single samples",
        when=0.9 < min(alone) and max(alone) < 1.2 and median(both) < 1,
        a=min(alone), b=max(alone), two=median(both),
    )  # fmt: skip
    words = "LeNet from scratch, 8,192 images, n = 3; on a GPU the count was fitted"
    drawn = picture(title, words, runs, (7.6, 4.2))
    (axes,) = drawn.axes
    axes.axhline(1, **page.LIMIT)
    for k, (arm, at) in enumerate(arms.items()):
        page.quartiles(axes, list(at.items()), label=arm, **page.look(k))
    page.log_along(axes, "x", base=2)
    axes.set(ylim=(0, 1.3), xlabel="global batch size")
    axes.set_ylabel("memory measured / counted")
    axes.legend()
    return drawn


# Chapters 3, 4 and 13: arrays, timing and kernels


@answers("timing/clocks", "timing/book-cpu1", "h200/timing/book-gpu1")
def clocks(cores: Runs, gpus: Runs) -> Picture:
    """What does a naive clock measure?"""

    def rows(runs: Runs) -> list[timing.Row]:
        return [
            row
            for row in timing.rows(runs)
            if row.library == "MXNet" and row.form in ("as written", "dense layer")
            and row.operation in timing.TITLES
        ]  # fmt: skip

    found = [ratio(x.seconds, x.naive) or 1 for x in [*rows(cores), *rows(gpus)]]
    title = claim(
        "A clock that does not wait reads {a:.0f} to {b:,.0f} times too little",
        when=min(found) > 1, a=min(found), b=float(f"{max(found):.1g}"),
    )  # fmt: skip
    words = "MXNet on one device; tick: calls have returned; dot: work has finished"
    return panels(
        title, words, (cores, gpus), (10.4, 3.6),
        lambda axes, runs: arrays.clocks(
            axes, rows(runs), lambda row: arrays.SHORT[row.operation]
        ),
    )  # fmt: skip


@answers("timing/roofline", "timing/book-cpu1", "h200/timing/book-gpu1")
def roofline(cores: Runs, gpus: Runs) -> Picture:
    """How near does array work come to what the processor allows?"""
    shares = []
    for runs in (cores, gpus):
        ours = [row for row in timing.rows(runs) if row.num_devices]
        (twice,) = (
            row
            for row in timing.rows_of("x2", ours)
            if (row.library, row.form) == ("MXNet", "as written")
        )
        shares.append(100 * twice.gb_per_sec / arrays.copy_rate(ours))
    title = claim(
        "Doubling as written reaches {a:.0f} % of a copy on cores, {b:.0f} % on an "
        "H200",
        when=max(shares) < 75, a=shares[0], b=shares[1],
    )  # fmt: skip
    words = (
        "hollow: as written; filled: fastest form; plus: PyTorch; dashed: own copy, "
        "product; solid: data sheet"
    )
    return panels(
        title, words, (cores, gpus), (10.4, 4.8),
        lambda axes, runs: arrays.roofline(
            axes, timing.rows(runs), machine(runs[0]).partition(",")[0]
        ),
        columns=2,
    )  # fmt: skip


@answers("benchmarks/kernels", "benchmarks/kernels", "h200/benchmarks/kernels")
def kernels(cores: Runs, gpus: Runs) -> Picture:
    """Are kernels in CUDA C worth it?"""
    found = seconds([*cores, *gpus])
    update = next(work for work, _ in found if work.startswith("p"))
    places = dict.fromkeys(arm.split(", ", 1)[1] for work, arm in found)
    gains = {
        place: ratio(
            found[update, f"MXNet, {place}"], found[update, f"kernel, {place}"]
        )
        or 1
        for place in places
    }
    on_gpu = gains.pop("1 GPU")
    title = claim(
        "On cores one kernel updates {a:.0f} to {b:.0f} times as fast as MXNet",
        when=min(gains.values()) > 1 > on_gpu,
        a=min(gains.values()), b=max(gains.values()), gpu=on_gpu,
    )  # fmt: skip
    works = dict.fromkeys(work for work, _ in found)
    # Beside a GPU NumPy runs on the host, and everywhere on one thread.
    shown = {
        f"{work}, {machine(run)}": [
            arm for arm in arm_times(run) if arm.work == work
            and ("NumPy" not in arm.name or arm.name.endswith("1 context, 1 thread"))
        ]
        for work in works
        for run in (*cores, *gpus)
    }  # fmt: skip
    words, runs = "50,000,000 float32 on each device, n = 21", [*cores, *gpus]
    return benchmark.rows(title, subtitle(words, runs), runs, shown)


# Chapters 6 and 7: scaling and communication


def study_in_gluon(runs: Runs) -> Study:
    """The study of the runs in Gluon."""
    (study,) = studies([run for run in runs if run.header.variant == "concise"])
    return study


@answers(
    "scaling/speedup",
    "scaling/book-1thread-*",
    "h200/scaling/book-1thread-*",
    "gpu_scaling/book-ddp-*",
)
def speedup(cores: Runs, gpus: Runs, ddp: Runs) -> Picture:
    """From which batch on does a second device pay?"""
    core, gpu = (
        (pays_between(speedups(study_in_gluon(runs), 2)) or (0, math.inf))[1]
        for runs in (cores, gpus)
    )
    title = claim(
        "In Gluon a second core pays from a batch of {core}, an H200 from {gpu:,}",
        when=core < gpu < math.inf, core=core, gpu=gpu,
    )  # fmt: skip
    with_graphs = {run.header.gpu_build["cuda_graphs"] for run in gpus}
    graphs = {frozenset([True]): "with", frozenset([False]): "without"}
    words = (
        f"a step of LeNet, ours on GPUs {graphs[frozenset(with_graphs)]} CUDA graphs; "
        "dots: pairs of samples, n = 5, lines: medians"
    )
    return panels(
        title, words, (cores, gpus, ddp), (13, 4.6),
        lambda axes, runs: scaling.speedup(axes, studies(runs)),
        columns=3, sharey=True, sharex=True,
    )  # fmt: skip


@answers("scaling/bracket", "scaling/book-1thread-*", "h200/scaling/book-1thread-*")
def bracket(cores: Runs, gpus: Runs) -> Picture:
    """Can the time of a step on two devices be bounded?"""
    inside = {
        study.name: [
            low <= study.steps[2, batch] <= high
            for batch, (low, high) in study.bracket(2).items()
            if (2, batch) in study.steps
        ]
        for study in studies(gpus)
    }
    a, b, n = (*map(sum, inside.values()), len(inside["concise"]))
    title = claim(
        "On 2 H200s {a} of {n} steps in Gluon lie in the bracket, {b} from scratch",
        when=b < a == n == len(inside["from scratch"]), a=a, n=n, b=b,
    )  # fmt: skip
    words = f"LeNet; {scaling.BRACKET}"
    grid = {"rows": 2, "columns": 2, "sharex": True, "sharey": "row"}
    drawn = picture(title, words, [*cores, *gpus], (10.4, 7.6), **grid)
    found = [*studies(cores), *studies(gpus)]
    for axes, study in zip(drawn.axes, found):
        scaling.steps(axes, study)
        axes.set_title(f"{name_of(study)}, {machine(study.runs[0])}")
    return drawn


@answers("scaling/one-step")
def one_step() -> Picture:
    """Where does the time of a step go?"""
    trace = json.loads((FIGURES / "scaling" / "one-step-trace.json").read_text())
    facts, shares = trace["metadata"], {}
    steps = group(trace["traceEvents"], lambda event: event["pid"])
    for batch, events in steps.items():
        first, second = (
            [(e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == k]
            for k in (1, 2)
        )
        both = sum(max(0, min(b, d) - max(a, c)) for a, b in first for c, d in second)
        shares[batch] = 100 * both / max(e["ts"] + e["dur"] for e in events)
    few, many = shares
    title = claim(
        "Two contexts overlap for {a:.0f} % of a step of {n} images, {b:.0f} % of {m}",
        when=4 * shares[few] < shares[many],
        a=shares[few], n=few, b=shares[many], m=many,
    )  # fmt: skip
    words = "LeNet from scratch, one step each, by MXNet's profiler \u00b7 "
    words += facts["machine"]
    drawn = page.new(title, words, [], (7.6, 4.2), rows=2)
    drawn.metadata["Description"] = f"{facts['date']}, commit {facts['commit'][:7]}."
    for axes, (batch, events) in zip(drawn.axes, steps.items()):
        for event in events:
            sums = event["name"] in ("CopyCPU2CPU", "_npi_add")
            color = page.OTHERS[0] if sums else (page.GREY, ONE, TWO)[event["tid"]]
            left, width = event["ts"] / 1e3, event["dur"] / 1e3
            axes.barh(event["tid"], width, left=left, color=color, lw=0)
        axes.set_yticks(range(3), ["Python issues", "context 0", "context 1"])
        axes.set(ylim=(2.5, -0.5), xlim=(0, None), ylabel=f"{batch} images")
        axes.grid(False, axis="y")
        axes.set_xlabel("milliseconds; orange: copies and sums")
    return drawn


@answers(
    "scaling/all-reduce",
    "scaling/book-1thread-*",
    "h200/scaling/book-1thread-*",
    "h200/timing/book-gpu2",
)
def all_reduce(cores: Runs, gpus: Runs, copying: Runs) -> Picture:
    """How fast is an all-reduce, by size and algorithm?"""
    found = all_reduces(cores)
    (_, arrays_of, size), *_ = (key for key in found if key[1] > 1)
    many, one = found[2, arrays_of, size], found[2, 1, size]
    gains = [
        ratio(summarize(many[way]), summarize(one[way])) or 1
        for way in ("book", "tree", "ring")
    ]
    title = claim(
        "Summing {n} arrays from Python takes {a:.1f} to {b:.1f} times as long as one",
        when=min(gains) > 1, n=arrays_of, a=min(gains), b=max(gains),
    )  # fmt: skip
    words = (
        f"medians, quartiles; hollow: {arrays_of} arrays of together as many bytes; "
        "book, tree, ring: copies and sums issued by Python; dashed: copies"
    )
    drawn = panels(title, words, (cores, gpus), (10.4, 4.6), scaling.all_reduce)
    right = drawn.axes[1]
    for direction, words in (("device to device", "copies between H200s"),
                             ("host to device", "copies from the host")):  # fmt: skip
        rows = timing.rows_of(direction, timing.rows(copying))
        limit(right, max(row.gb_per_sec / row.num_devices for row in rows), words)
    return drawn


@answers("benchmarks/local_sgd", "benchmarks/local_sgd")
def local_steps(runs: Runs) -> Picture:
    """What does it cost to average less often?"""
    samples = runs[0].lines_of(ArmSample)
    last = max(x.epoch for x in samples)
    ends = group([x for x in samples if x.epoch == last], lambda x: x.arm)
    found = {arm: summarize([x.test_acc for x in ends[arm]]) for arm in ends}
    mib = {arm: median(x.wire_bytes for x in ends[arm]) / 2**20 for arm in ends}
    title = claim(
        "Averaging {r:.0f} times less often costs no accuracy that 5 seeds show",
        when=all(
            found[arm].q3 >= found["every step"].q1 and found[arm].n == 5
            for arm in ends
            if "momentum" not in arm
        ),
        r=max(mib.values()) / min(mib.values()),
    )
    words = "LeNet, 12,800 images, batch 64, 3 epochs; 5 seeds"
    drawn = picture(title, words, runs, (7.6, page.height(len(ends))))
    (axes,) = drawn.axes
    rows = [
        page.Row(
            f"{arm}, {mib[arm]:,.0f} MiB",
            [x.test_acc for x in same],
            page.OTHERS["momentum" in arm],
        )
        for arm, same in ends.items()
    ]
    page.dots(axes, rows, "", log=False)
    axes.set_xlabel("test accuracy")
    axes.set_xlim(auto=True)
    axes.autoscale(axis="x")
    return drawn


# Chapters 8 and 9: least squares


@answers(
    "least_squares/averaging",
    "least_squares/book-1thread-*-cpu2",
    "benchmarks/local_steps",
)
def averaging(runs: Runs, by_steps: Runs) -> Picture:
    """How far from the optimum does averaging end?"""
    least = least_of(runs)
    shown = [run for run in runs if run.header.variant in AVERAGING]
    errors = group(
        by_steps[0].lines_of(ArmSample), lambda x: (x.arm, x.steps), lambda x: x.error
    )
    medians = group(
        errors.items(), lambda x: x[0][0], lambda x: (x[0][1], median(x[1]))
    )
    title = claim(
        "The fewer steps between two averages, the nearer the optimum",
        when=all(
            [x for _, x in sorted(row)] == sorted(x for _, x in row)
            for row in medians.values()
        )
        and all(run.lines[-1].residual_norm > 1.01 * least for run in shown),
    )
    words = (
        "left: A of 10,000 \u00d7 1,000, 500 steps per device and epoch; right: "
        "1,000 \u00d7 50, 10,000 steps, 5 seeds"
    )
    drawn = picture(title, words, [*shown, *by_steps], (10.4, 4.4), columns=2)
    left, right = drawn.axes
    least_squares.errors(left, shown, least)
    benchmark.errors(right, by_steps[0])
    right.set(xlabel="steps between two averages")
    right.set_ylabel("excess of ||A x - b|| over the optimum")
    return drawn


@answers(
    "least_squares/methods",
    "least_squares/book-1thread-*-cpu?",
    "h200/least_squares/book-*-gpu?",
)
def methods(cores: Runs, gpus: Runs) -> Picture:
    """Which methods reach the optimum, how soon, and sooner on two devices?"""
    on_cores, on_gpus = (
        [ratio(seconds_of(one), seconds_of(two)) or 1 for one, two in comparable(runs)]
        for runs in (cores, gpus)
    )
    title = claim(
        "Two cores solve {a:.1f} to {b:.1f} times as fast as one, two H200s {c:.2f} to "
        "{d:.1f}",
        when=min(on_cores) > max(1, *on_gpus), a=min(on_cores), b=max(on_cores),
        c=min(on_gpus), d=max(on_gpus),
    )  # fmt: skip

    def draw(axes: Axes, runs: Runs) -> None:
        ends = {
            least_squares.row_name(run): f"{run.lines[-1].distance:.0e}" for run in runs
        }
        rows = [
            row._replace(note=f"{row.note}  {ends[row.name]}")
            for row in least_squares.rows_by_count(runs)
        ]
        page.dots(axes, rows, "s", log=True)

    words = (
        "min ||A x - b||, A of 10,000 \u00d7 1,000, n = 3; right: seconds, speedup, "
        "distance to the optimum"
    )
    return panels(title, words, (cores, gpus), (7.6, 8.8), draw, rows=2)


SOLVERS = {  # by an arm of the records: its name, its library, its line and mark
    "normal on 2 contexts, x alone": ("d2lpar, 2 contexts", "MXNet", 0),
    "numpy normal equations": ("NumPy", "NumPy", 1),
    "pytorch normal equations": ("PyTorch", "PyTorch", 2),
    "numpy lstsq": ("NumPy's lstsq (SVD)", "NumPy", 3),
    "normal on 1 GPU, x alone": ("d2lpar, one H200", "MXNet", 0),
    "pytorch normal equations on 1 GPU": ("PyTorch, one H200", "PyTorch", 2),
}


@answers(
    "benchmarks/least_squares",
    "benchmarks/same_method/least_squares",
    "h200/benchmarks/least_squares",
)
def beside_libraries(cores: Runs, gpus: Runs) -> Picture:
    """How do our normal equations compare with NumPy's and PyTorch's?"""
    found = seconds(gpus)
    sizes = dict.fromkeys(work for work, _ in found)
    theirs, ours = "pytorch normal equations on 1 GPU", "normal on 1 GPU, x alone"
    slower = sum(found[size, theirs].is_below(found[size, ours]) for size in sizes)
    title = claim(
        "On an H200 PyTorch's normal equations are faster in {a} of {b} sizes",
        when=slower > 0, a=slower, b=len(sizes),
    )  # fmt: skip
    words = "min ||A x - b||, x alone; medians and quartiles"
    grid = {"rows": 2, "columns": 2, "sharex": True, "sharey": "row"}
    drawn = picture(title, words, [*cores, *gpus], (10.4, 7.6), **grid)
    places = [(run, columns) for run in (cores[0], gpus[0]) for columns in (100, 1_000)]
    for axes, (run, columns) in zip(drawn.axes, places):
        of_size = [x for x in arm_times(run) if x.work.endswith(f" x {columns:,}")]
        by_arm: dict[str, list[ArmTimes]] = group(of_size, lambda arm: arm.name)
        for arm, (words, library, mark) in SOLVERS.items():
            at = [(int(x.work.split(" x ")[0].replace(",", "")), x.seconds)
                  for x in by_arm.get(arm, ())]  # fmt: skip
            if at:
                look = page.look(mark, color=page.LIBRARIES[library])
                page.quartiles(axes, sorted(at), label=words, **look)
        page.log_along(axes, "x")
        page.log_along(axes, "y")
        axes.set(xlabel="rows of A", ylabel="seconds")
        axes.set_title(f"{columns:,} columns, {machine(run)}")
        axes.legend()
    return drawn


# Chapter 10: the GAN


@answers(
    "gan/faces",
    "h200/seeds/gan/sharp-gpu1",
    "h200/seeds/gan/sharp-seed?-gpu1",
    "h200/seeds/gan/sharp-d-norm-none*gpu1",
)
def faces(first: Runs, others: Runs, without: Runs) -> Picture:
    """How do faces come out of noise, and what does spectral normalisation do?"""
    spectral = [*first, *others]
    frames = {id(run): run.lines_of(FrameRecord) for run in [*spectral, *without]}
    steps = min(of_run[-1].num_steps for of_run in frames.values())
    ends = [
        [100 * [f for f in frames[id(run)] if f.num_steps <= steps][-1].coverage
         for run in runs]
        for runs in (spectral, without)
    ]  # fmt: skip
    title = claim(
        "Spectral normalisation covers {a:.0f} % of the faces instead of {b:.0f} %",
        when=min(ends[0]) > 1.3 * max(ends[1]),
        a=median(ends[0]), b=median(ends[1]),
    )  # fmt: skip
    words = (
        "covered: a generated face among a real one's 5 nearest; batch 64, 3 seeds each"
    )
    drawn = picture(title, words, [*spectral, *without], (10.4, 4.6), columns=2)
    left, right = drawn.axes
    gan.strip(left, first[0])
    for k, (name, runs) in enumerate({"with": spectral, "without": without}.items()):
        for run in runs:
            at = [(f.num_steps, f.coverage) for f in frames[id(run)]]
            label = name if run is runs[0] else None
            right.plot(*zip(*at), **page.look(k, marker="", lw=1.5, label=label))
    limit(
        right, references(first[0])["other real faces"]["coverage"], "other real faces"
    )
    right.set(ylim=(0, 1.08), xlabel="steps of training")
    right.set_ylabel("share of real faces covered")
    right.set_xticks([0, 10_000, 20_000], ["0", "10,000", "20,000"])
    right.legend(loc="lower right")
    return drawn


# Chapters 12 and 14: low precision and several machines


@answers("low_precision/precision", "low_precision/book-1thread-cpu1")
def precision(runs: Runs) -> Picture:
    """What does int8 gain, and what does it cost?"""
    rows = [row for row in merged(runs[0].lines_of(PrecisionRecord)) if row.supported]
    calibrated = [
        speedup_of_precision(row, baseline(rows)) or 1
        for row in rows
        if row.weights == "trained" and row.precision.startswith("int8")
        and not row.precision.endswith("none")
    ]  # fmt: skip
    title = claim(
        "Calibrated int8 is {a:.1f} to {b:.1f} times as fast as float32",
        when=min(calibrated) > 1, a=min(calibrated), b=max(calibrated),
    )  # fmt: skip
    return low_precision.picture(runs[0], title)


@answers("multiple_machines/sharing", "multiple_machines/book*-2workers-*")
def sharing(runs: Runs) -> Picture:
    """What do cheaper ways to share gradients save?"""
    ways = {run.header.variant: seconds_per_epoch(run) for run in pooled(runs)}
    waiting = ways[""]
    title = claim(
        "Not waiting for the other worker saves {p:.0f} % of the time, 2 bits none",
        when=ways["async"].is_below(waiting) and waiting.overlaps(ways["2bit"]),
        p=100 * (1 - ways["async"].median / waiting.median),
    )  # fmt: skip
    return workers.picture(runs, title, max(map(age, runs)))


# Peers


@answers(
    "peers/lenet", "peers/custom-cpu2", "h200/peers/custom-gpu2",
    "h200/peers_d2l/custom-gpu2", "h200/peers_8192/custom-gpu2",
)  # fmt: skip
def peers(cores: Runs, small: Runs, d2ls: Runs, large: Runs) -> Picture:
    """How fast is d2lpar beside PyTorch and d2l?"""
    on_cores, on_gpus = (
        {arm: s for (_, arm), s in seconds(runs).items()} for runs in (cores, small)
    )
    plain = on_cores["PyTorch, plain loop, 2 threads"]
    title = claim(
        "PyTorch's loop is faster on cores, d2lpar's Gluon on an H200",
        when=plain.is_below(on_cores["d2lpar concise, 2 contexts, 1 thread each"])
        and on_gpus["d2lpar concise, 1 GPU"].is_below(
            on_gpus["PyTorch, plain loop, 1 GPU"]
        ),
    )
    runs = [*cores, *small, *d2ls, *large]
    names = (
        f"batch 256, {machine(cores[0])}",
        "batch 256, H200s",
        f"d2l's loops, batch 256, H200s{age(d2ls[0])}",
        "batch 8,192, H200s",
    )
    shown = {
        name: [
            arm._replace(name=arm.name.replace("concise", "in Gluon"))
            for arm in arm_times(run)
            if arm.seconds and (run not in d2ls or arm.name.startswith("d2l's"))
        ]
        for name, run in zip(names, runs)
    }
    words = "an epoch of LeNet, 60,000 images; n = 5 or 6"
    return benchmark.rows(title, subtitle(words, runs), runs, shown)
