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
from d2lpar.datasets import punks
from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.figures.page import Picture
from d2lpar.gan import figure as gan
from d2lpar.least_squares import figure as least_squares
from d2lpar.least_squares.result import comparable, seconds_of
from d2lpar.lenet.result import pooled
from d2lpar.low_precision import figure as low_precision
from d2lpar.low_precision.result import baseline, merged
from d2lpar.low_precision.result import seconds as seconds_of_image
from d2lpar.records import files, labels
from d2lpar.records.comparison import (
    ArmTimes,
    Comparison,
    Summary,
    arm_times,
    compare,
    of_processes,
    references,
    seconds_per_epoch,
)
from d2lpar.records.kinds import (
    ArmSample,
    BenchmarkHeader,
    FrameRecord,
    PrecisionRecord,
    Run,
    group,
    timed_epochs,
)
from d2lpar.scaling import figure as scaling
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.scaling.result import comparisons, pairs_of, pays_from, speedups
from d2lpar.text import number
from d2lpar.workers import figure as workers

FIGURES = Path(__file__).parents[1] / "figures"
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


# The comparisons that titles rest on: each one is told by the one rule.
VERDICTS: dict[str, list[Comparison]] = {}


def claim(
    text: str, when: bool, by: Sequence[Comparison] = (), **numbers: float
) -> str:
    """The title, with the numbers put in, if the records bear it out.

    `when` is the condition under which it is true; a title that says what is faster
    names the comparisons `by` which it does, all of which must be told. Raises
    :class:`RecordError` with the numbers if it is not so, so that nothing is drawn
    under a wrong title.

    >>> claim("Half of {n} contexts", when=True, n=2)
    'Half of 2 contexts'
    """
    title = text.format(**numbers)
    VERDICTS[title] = list(by)
    if not when or not all(found.is_told for found in by):
        found = ", ".join(f"{name} = {value:.4g}" for name, value in numbers.items())
        raise RecordError(f"the records contradict the title {title!r}: {found}")
    return title


@cache
def runs_of(pattern: str) -> list[Run]:
    """The records of a pattern such as "scaling/book-*", by name."""
    return [files.read(path) for path in sorted(FIGURES.glob(f"{pattern}.jsonl"))]


def machine(run: Run) -> str:
    """The machine of a run in a few words."""
    header = run.header
    of_benchmark = isinstance(header, BenchmarkHeader)
    return labels.machine(header) if of_benchmark else labels.hardware([header])


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
    drawn = page.new(title, words, runs, size, **grid)
    for axes, same in zip(drawn.axes, groups):
        draw(axes, same)
        axes.set_title(machine(same[0]))
    return drawn


def seconds(runs: Runs) -> dict[tuple[str, str], Summary]:
    """The seconds of benchmarks' arms, by work and arm."""
    arms = [arm for run in runs for arm in arm_times(run) if arm.seconds]
    return {(arm.work, arm.name): arm.summary for arm in arms}


def limit(axes: Axes, y: float, words: str, end: str = "left") -> None:
    """A dashed line with words above one of its ends."""
    axes.axhline(y, **page.LIMIT)
    place = {"transform": axes.get_yaxis_transform(), "va": "bottom", "size": 9}
    x = {"left": 0.02, "right": 0.98}[end]
    axes.text(x, y, words, color="0.3", ha=end, **place)


# Chapters 1 and 5: from scratch and in Gluon


def to_accuracy(runs: Runs, enough: float = 0.80) -> list[float]:
    """Seconds of training until a test accuracy is first reached, where it is."""
    found = []
    for run in runs:
        passed = accumulate(epoch.seconds for epoch in run.epochs)
        reached = [s for s, e in zip(passed, run.epochs) if e.test_acc >= enough]
        found += reached[:1]
    return found


def pairs_at(study: Study) -> int:
    """How many pairs of samples a study has at each batch."""
    return min(map(len, pairs_of(study, 2).values()))


D2L = {"global_batch_size": 256, "seconds on 1": 1.8, "seconds on 2": 2.5}  # V100s


@answers(
    "multiple_gpus/two-devices",
    "scaling/book-*-concise-*",
    "gpus/scaling/book-*-concise-*",
)
def two_devices(cores: Runs, gpus: Runs) -> Picture:
    """When are two devices faster than one?"""
    found = [*studies(cores), *studies(gpus)]
    gains = [comparisons(study, 2) for study in found]
    large = [gain[8_192] for gain in gains]
    small = [
        min((c for c in gain.values() if c.is_told), key=lambda c: c.ratio)
        for gain in gains
    ]
    title = claim(
        "Two devices are faster at large batches, and slower at small ones",
        when=all(c.ratio < 1 for c in small) and all(c.ratio > 1 for c in large),
        by=[*small, *large],
    )  # fmt: skip
    words = (
        "a step of LeNet in Gluon, on GPUs with CUDA graphs on both sides; dots: pairs "
        f"in turn, n = {pairs_at(found[0])} and {pairs_at(found[-1])}; lines: medians"
    )
    drawn = picture(title, words, [*cores, *gpus], (7.6, 4.4))
    (axes,) = drawn.axes
    scaling.speedup(axes, found)
    card = gpus[0].header.devices[0].split(" ", 1)[1]
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    (book,) = axes.plot(
        D2L["global_batch_size"], D2L["seconds on 1"] / D2L["seconds on 2"],
        "D", ms=8, color=page.LIBRARIES["d2l"],
    )  # fmt: skip
    names = ["2 CPU cores", f"2 GPUs ({card})", "d2l's book: 2 V100 GPUs, an epoch"]
    axes.legend([*named, book], names, loc="upper left")
    axes.set_xlabel("images in a step, shared by the two devices")
    return drawn


@answers("benchmarks/equivalence", "benchmarks/equivalence")
def equivalence(runs: Runs) -> Picture:
    """Do two devices compute what one computes?"""
    samples = runs[0].lines_of(ArmSample)
    last = [x for x in samples if x.steps == max(x.steps for x in samples)]
    low, book, double = group(last, lambda x: x.arm, lambda x: x.error).values()
    title = claim(
        "In float32 at a rate of 0.2 rounding grows until two trainings part",
        when=max(low) < 1e-4 and min(book) > 0.1 and max(double) < 1e-6,
        low=max(low), book=min(book), double=max(double),
    )  # fmt: skip
    batch = runs[0].header.settings["global_batch_size"]
    words = f"LeNet, batch {batch}; a dot per seed, lines: medians"
    drawn = picture(title, words, runs, (7.6, 4.2))
    (axes,) = drawn.axes
    benchmark.errors(axes, runs[0])
    limit(axes, 1, "as large as the parameters")
    axes.set_ylim(top=1e3)
    axes.legend(loc=(0.02, 0.14))
    axes.set_ylabel("distance of parameters (relative)")
    axes.set_xlabel("steps of training on two devices")
    return drawn


@answers("benchmarks/memory", "benchmarks/memory")
def memory(runs: Runs) -> Picture:
    """How much memory does a training take, and can it be counted before?"""
    (run,) = runs
    excess = {
        arm: [memory_estimate.of_sample(run, x) / x.peak_bytes - 1 for x in same]
        for arm, same in group(run.lines_of(ArmSample), lambda x: x.arm).items()
    }
    one, two = (max(excess[arm]) for arm in ("1 context", "2 contexts"))
    title = claim(
        "No peak is above the count: up to {one:.0f} % too high on one context, "
        "{two:.0f} % on two",
        when=min(map(min, excess.values())) > 0,
        one=100 * one, two=100 * two,
    )  # fmt: skip
    samples = run.lines_of(ArmSample)
    counted = group(
        samples, lambda x: x.batch_size, lambda x: memory_estimate.of_sample(run, x)
    )
    assert all(max(of) < 1.01 * min(of) for of in counted.values())
    words = (
        "LeNet from scratch, 8,192 images, largest resident memory, n = "
        f"{max(x.round for x in samples) + 1}"
    )
    drawn = picture(title, words, runs, (7.6, 4.4))
    (axes,) = drawn.axes
    lines = {
        arm: group(same, lambda x: x.batch_size, lambda x: x.peak_bytes)
        for arm, same in group(samples, lambda x: x.arm).items()
    }
    lines["counted for either"] = counted
    ends = {}
    for k, (name, at) in enumerate(lines.items()):
        style = page.look(k, color=page.COUNTS[k])
        if at is counted:
            style = {"color": page.INK, "lw": 1}
        curve = [(batch, median(values) / 2**20) for batch, values in at.items()]
        axes.plot(*zip(*curve), **style)
        ends[name] = curve[-1][1]
    page.log_along(axes, "x", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    axes.set(ylim=(0, None), xlabel="global batch size", ylabel="MiB")
    page.name_beside(axes, ends)
    return drawn


# Chapters 4 and 13: timing and kernels


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

    # Two readings of the same calls, of which one is always the later.
    both = [*rows(cores), *rows(gpus)]
    found = [row.seconds.median / row.naive.median for row in both]
    title = claim(
        "A clock that does not wait reads {a:.0f} to {b:,.0f} times too little",
        when=min(found) > 1, a=min(found), b=float(f"{max(found):.2g}"),
    )  # fmt: skip
    words = "MXNet on one device; tick: calls have returned; dot: work has finished"
    return panels(
        title, words, (cores, gpus), (10.4, 3.6),
        lambda axes, runs: arrays.clocks(
            axes, rows(runs), lambda row: arrays.SHORT[row.operation]
        ),
    )  # fmt: skip


@answers("benchmarks/kernels", "benchmarks/kernels", "gpus/benchmarks/kernels")
def kernels(cores: Runs, gpus: Runs) -> Picture:
    """Are kernels in CUDA C worth it?"""
    found = seconds([*cores, *gpus])
    update = next(work for work, _ in found if work.startswith("p"))
    arms = [arm.split(", ", 1) for work, arm in found if work == update]
    ways, places = (list(dict.fromkeys(names)) for names in zip(*arms))
    gains = {
        place: compare(
            found[update, f"MXNet, {place}"], found[update, f"kernel, {place}"]
        )
        for place in places
    }
    told = [gain for place, gain in gains.items() if "GPU" not in place]
    least, *_, most = sorted(gain.ratio for gain in told)
    title = claim(
        "A kernel updates {a:.0f} to {b:.0f} times as fast as MXNet on cores",
        when=least > 1, by=told, a=least, b=most,
    )  # fmt: skip
    n = max(summary.n for summary in found.values())
    words = (
        f"p -= step * grad, 50,000,000 float32 on each device, n = {n}; "
        f"{machine(cores[0])}; {machine(gpus[0])}"
    )
    runs = [*cores, *gpus]
    size = 10.4, 2.9
    drawn = page.new(title, words, runs, size, columns=len(places), sharey=True)
    rows = {
        place: [
            (k, found.get((update, f"{way}, {place}"))) for k, way in enumerate(ways)
        ]
        for place in places
    }
    # The second largest: a single outlier is a number at the edge.
    slowest = {
        place: max(sorted(of.samples)[-2] for _, of in rows[place] if of)
        for place in places
    }
    on_cores = max(slowest[place] for place in places if "GPU" not in place)
    for axes, place in zip(drawn.axes, places):
        right = 1.2e3 * (slowest[place] if "GPU" in place else on_cores)
        for k, summary in rows[place]:
            if summary is None:
                continue
            ms, middle = [1e3 * s for s in summary.samples], 1e3 * summary.median
            inside = [s for s in ms if s < right]
            style = {"color": page.OURS, "ls": ""}
            axes.plot(inside, [k] * len(inside), marker=".", alpha=0.4, **style)
            axes.plot(middle, k, marker="o", ms=7, **style)
            axes.annotate(
                number(middle), (middle, k), (0, 7), textcoords="offset points",
                ha="center", size=9,
            )  # fmt: skip
            if len(inside) < len(ms):
                beyond = f"one: {number(max(ms))} \u2192"
                style = {"ha": "right", "va": "top", "size": 9, "color": page.PALE}
                axes.text(right, k + 0.14, beyond, **style)
        axes.set(xlim=(0, right), ylim=(len(ways) - 0.5, -0.7), xlabel="ms")
        axes.set_title(place)
        axes.set_yticks(range(len(ways)), ways)
        axes.grid(False, axis="y")
    return drawn


# Chapters 6 and 7: scaling and communication


@answers("scaling/speedup", "scaling/book-1thread-*", "gpus/scaling/book-1thread-*")
def speedup(cores: Runs, gpus: Runs) -> Picture:
    """From which batch on does a second device pay?"""
    pays = {
        (runs[0].header.device_kind, study.name): pays_from(speedups(study, 2))
        for runs in (cores, gpus)
        for study in studies(runs)
    }
    on_cores = [at or math.inf for (kind, _), at in pays.items() if kind == "cpu"]
    gpu = pays["gpu", "concise"] or math.inf
    all_larger = [
        found
        for runs in (cores, gpus)
        for study in studies(runs)
        for batch, found in comparisons(study, 2).items()
        if batch >= (pays[runs[0].header.device_kind, study.name] or math.inf)
    ]
    title = claim(
        "A second core pays from batches of {cores} on, a GPU from {gpu:,} in Gluon",
        when=max(on_cores) < gpu < math.inf, by=all_larger,
        cores=max(on_cores), gpu=gpu,
    )  # fmt: skip
    with_graphs = {run.header.gpu_build["cuda_graphs"] for run in gpus}
    graphs = {frozenset([True]): "with", frozenset([False]): "without"}
    n = pairs_at(studies(cores)[0]), pairs_at(studies(gpus)[0])
    words = (
        f"a step of LeNet, on GPUs {graphs[frozenset(with_graphs)]} CUDA graphs on "
        f"both sides; dots: pairs in turn, n = {n[0]} and {n[1]}; lines: medians"
    )
    return panels(
        title, words, (cores, gpus), (10.4, 4.6),
        lambda axes, runs: scaling.speedup(axes, studies(runs)),
        columns=2, sharey=True, sharex=True,
    )  # fmt: skip


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
            color = page.SUMS if sums else (page.GREY, ONE, TWO)[event["tid"]]
            left, width = event["ts"] / 1e3, event["dur"] / 1e3
            axes.barh(event["tid"], width, left=left, color=color, lw=0)
        axes.set_yticks(range(3), ["Python issues", "context 0", "context 1"])
        axes.set(ylim=(2.5, -0.5), xlim=(0, None), ylabel=f"{batch} images")
        axes.grid(False, axis="y")
        axes.set_xlabel("milliseconds")
    first = max(
        (e for e in steps[many] if e["name"] == "_npi_add"), key=lambda e: e["dur"]
    )
    axes.annotate(
        "copies and sums", (first["ts"] / 1e3, first["tid"] - 0.4), (-40, 8),
        textcoords="offset points", ha="right", size=9, color=page.darker(page.SUMS),
        arrowprops={"arrowstyle": "-", "color": page.SUMS},
    )  # fmt: skip
    return drawn


@answers(
    "scaling/all-reduce",
    "scaling/book-1thread-*",
    "gpus/scaling/book-1thread-*",
)
def all_reduce(cores: Runs, gpus: Runs) -> Picture:
    """How fast is an all-reduce, by size and algorithm?"""
    # The two trainings of a study are two sittings, which are never pooled.
    found = [
        compare(row["ring"], row["book"])
        for run in (*cores, *gpus)
        for row in all_reduces([run]).values()
        if {"ring", "book"} <= row.keys()
    ]
    slower = [c for c in found if c.is_told and c.ratio > 1]
    faster = [c for c in found if c.is_told and c.ratio < 1]
    title = claim(
        "At {slower} of {n} sizes a ring of two is slower than the book's sum",
        when=len(slower) > 4 * len(faster), by=[*slower, *faster],
        n=len(found), slower=len(slower), faster=len(faster),
    )  # fmt: skip
    words = (
        "medians and ranges of the studies in Gluon; book and ring are issued by "
        "Python, array by array"
    )
    ways = ("book", "ring", "kvstore device")
    drawn = page.new(
        title, words, [*cores, *gpus], (10.4, 6.2), rows=2, columns=2,
        height_ratios=(5, 2),
    )  # fmt: skip
    for column, runs in enumerate((cores[:1], gpus[:1])):
        above, below = drawn.axes[column], drawn.axes[2 + column]
        scaling.all_reduce(above, runs, ways)
        scaling.gradients(below, runs, ways)
        above.set_title(machine(runs[0]))
    return drawn


@answers("benchmarks/local_sgd", "benchmarks/local_sgd")
def local_steps(runs: Runs) -> Picture:
    """What does it cost to average less often?"""
    samples = runs[0].lines_of(ArmSample)
    last = max(x.epoch for x in samples)
    ends = group([x for x in samples if x.epoch == last], lambda x: x.arm)
    found = {arm: of_processes([x.test_acc for x in ends[arm]]) for arm in ends}
    mib = {arm: median(x.wire_bytes for x in ends[arm]) / 2**20 for arm in ends}
    always, rarely = "every step, outer momentum", "every epoch, outer momentum"
    plain = [
        compare(found[arm], found["every step"])
        for arm in ends
        if "momentum" not in arm and arm != "every step"
    ]
    less = 100 * max(1 - c.low for c in plain)
    with_momentum = compare(found[always], found[rarely])
    title = claim(
        "Averaging {r:.0f} times less often costs less than {less:.0f} %, with "
        "momentum {loss:.0f} %",
        when=all(c.is_within(less / 100 + 0.001) or c.high > 1 for c in plain)
        and with_momentum.ratio > 1 and all(of.n == 5 for of in found.values()),
        by=[with_momentum],
        r=max(mib.values()) / min(mib.values()),
        less=math.ceil(less),
        loss=100 * (1 - 1 / with_momentum.ratio),
    )  # fmt: skip
    words = (
        "LeNet, 12,800 images, batch 64, 3 epochs; 5 seeds; less than: the interval "
        "that holds the loss in 95 % of cases"
    )
    drawn = picture(title, words, runs, (7.6, page.height(len(ends))))
    (axes,) = drawn.axes
    rows = [
        page.Row(
            f"{arm}, {mib[arm]:,.0f} MiB",
            [x.test_acc for x in same],
            page.OTHERS[0] if "momentum" in arm else page.INK,
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
    "least_squares/methods",
    "least_squares/book-1thread-*-cpu?",
    "h200/least_squares/book-*-gpu?",
)
def methods(cores: Runs, gpus: Runs) -> Picture:
    """Which methods reach the optimum, how soon, and sooner on two devices?"""
    missed = {run.header.variant for run in cores if run.lines[-1].distance > 1e-6}
    by_method = comparable(cores)
    reached = [same for same in by_method if same[0].header.variant not in missed]
    title = claim(
        "Three of four methods reach the optimum, gradient descent does not",
        when=len(reached) == 3 and "gradient" in missed,
    )

    n = {seconds_of(run).n for run in cores}, {seconds_of(run).n for run in gpus}
    words = (
        "min ||A x - b||, A of 10,000 \u00d7 1,000; dots: n = "
        f"{max(n[0])} and {max(n[1])} solves; a factor where one is told"
    )
    return panels(
        title, words, (cores, gpus), (10.4, 4.2),
        lambda axes, runs: least_squares.slopes(axes, runs, missed),
        columns=2,
    )  # fmt: skip


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
        "{a:.0f} % of faces are covered with spectral normalisation, {b:.0f} % without",
        when=min(ends[0]) > 1.3 * max(ends[1]),
        a=median(ends[0]), b=median(ends[1]),
    )  # fmt: skip
    words = (
        "covered: a generated face among a real one's 5 nearest; batch 64, 3 seeds each"
    )
    drawn = picture(title, words, [*spectral, *without], (10.4, 4.6), columns=2)
    named = {"with spectral normalisation": spectral, "without": without}
    left, right = drawn.axes
    gan.strip(left, first[0])
    for k, (name, runs) in enumerate(named.items()):
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
    right.legend(loc=(0.4, 0.57))
    return drawn


@answers("gan/published", "gpus/gan/as-published-gpu1")
def published(runs: Runs) -> Picture:
    """What does the CryptoPunks notebook's recipe draw?"""
    (run,) = runs
    end = run.lines_of(FrameRecord)[-1]
    real = references(run)["other real faces"]["coverage"]
    title = claim(
        "The published recipe covers {a:.0f} % of faces, other real faces {b:.0f} %",
        when=end.num_steps == 4_000, a=100 * end.coverage, b=100 * real,
    )  # fmt: skip
    words = (
        "4,000 steps on all 10,000 faces at once; left: eight noises in training; "
        "right: 25 faces at the end"
    )
    drawn = page.new(
        title, subtitle(words, runs), runs, (10.4, 4.6), columns=2, width_ratios=(4, 3)
    )
    left, right = drawn.axes
    gan.strip(left, run)
    gan.show(right, punks.from_png(end.samples, 5, 5))
    return drawn


# Chapters 12 and 14: low precision and several machines


@answers("low_precision/precision", "low_precision/book-1thread-cpu1")
def precision(runs: Runs) -> Picture:
    """What does int8 gain, and what does it cost?"""
    rows = [row for row in merged(runs[0].lines_of(PrecisionRecord)) if row.supported]
    base = baseline(rows)
    lowered = [row for row in rows if row.precision.startswith("int8")]
    found = [compare(seconds_of_image(base), seconds_of_image(row)) for row in lowered]
    gains = [c.ratio for c in found]
    lost = group(
        lowered, lambda row: row.weights, lambda row: base.test_acc - row.test_acc
    )
    stretched = [100 * points for points in lost["stretched"]]
    title = claim(
        "Int8: {a:.1f} to {b:.1f} times as fast; stretched weights cost {c:.0f} to "
        "{d:.0f} points",
        when=min(gains) > 1 and max(*lost["trained"], *lost["equalised"]) < 0.01,
        by=found,
        a=min(gains), b=max(gains), c=min(stretched), d=max(stretched),
    )  # fmt: skip
    return low_precision.picture(runs[0], title)


@answers("multiple_machines/sharing", "multiple_machines/book*-2workers-*")
def sharing(runs: Runs) -> Picture:
    """What do cheaper ways to share gradients save?"""
    ways_of = {run.header.variant: run for run in pooled(runs)}
    ways = {way: seconds_per_epoch(run) for way, run in ways_of.items()}
    waiting = ways[""]
    epochs = {way: timed_epochs(run) or run.epochs for way, run in ways_of.items()}
    sent = {way: of_way[0].wire_bytes or 0 for way, of_way in epochs.items()}
    not_waiting = compare(waiting, ways["async"])
    title = claim(
        "2 bits halve the bytes; not waiting saves {p:.0f} % of the time",
        when=not_waiting.ratio > 1 and 0.45 < sent["2bit"] / sent[""] < 0.55,
        by=[not_waiting], p=100 * (1 - 1 / not_waiting.ratio),
        bytes=sent["2bit"] / sent[""],
    )  # fmt: skip
    return workers.picture(runs, title)


# Peers


@answers(
    "peers/lenet", "peers/custom-cpu2", "gpus/peers/custom-gpu2",
    "gpus/peers_d2l/custom-gpu2", "gpus/forms_256/custom-gpu1",
)  # fmt: skip
def peers(cores: Runs, gpus: Runs, d2ls: Runs, forms: Runs) -> Picture:
    """How fast is d2lpar beside PyTorch and d2l?"""
    of_forms = [arm for run in forms for arm in arm_times(run)]
    arms = {
        f"{machine(cores[0])}: fastest measured rows": fastest(cores),
        f"{gpus[0].header.on_gpus[0]}: PyTorch eager, JAX by step": fastest(
            [*gpus, *d2ls]
        ),
        f"another {forms[0].header.on_gpus[0]}: forms of a step": of_forms,
    }
    here = next(iter(arms.values()))
    on_cores = {side(arm): arm.summary for arm in here}
    beaten = [
        compare(seconds, on_cores["PyTorch"])
        for name, seconds in on_cores.items()
        if name != "PyTorch"
    ]
    torch = {arm.name: arm.summary for arm in of_forms if side(arm) == "PyTorch"}
    slowest = max(torch.values(), key=lambda seconds: seconds.median)
    quickest = min(torch.values(), key=lambda seconds: seconds.median)
    form = compare(slowest, quickest)
    title = claim(
        "On two cores PyTorch is fastest; on a GPU its form decides",
        when=all(c.ratio > 1 for c in beaten), by=[*beaten, form],
    )  # fmt: skip
    words = (
        "an epoch of LeNet, 60,000 images, batch 256; every training learns; "
        "d2l's PyTorch tab not on cores"
    )
    named = {
        heading: [
            arm._replace(name=arm.name.replace("concise", "in Gluon")) for arm in same
        ]
        for heading, same in arms.items()
    }
    drawn = benchmark.rows(title, words, [*cores, *gpus, *d2ls, *forms], named)
    for axes in drawn.axes:
        axes.set_xlim(right=1.05 * axes.get_xlim()[1])
    return drawn


def side(arm: ArmTimes) -> str:
    """Whose an arm is: "d2lpar", "d2l's" or "PyTorch"."""
    return arm.name.partition(" ")[0].strip(",")


def fastest(runs: Runs) -> list[ArmTimes]:
    """The fastest arm of ours, of d2l's and of PyTorch's in runs that have them.

    Of two runs with the same arms the first one counts.
    """
    arms: dict[str, ArmTimes] = {}
    for run in runs:
        sides = [side(arm) for arm in arms.values()]
        for arm in arm_times(run):
            if arm.seconds and side(arm) not in sides:
                arms.setdefault(arm.name, arm)
    by_side = group(arms.values(), lambda arm: side(arm))
    return [
        min(same, key=lambda arm: median(arm.seconds))
        for _, same in sorted(by_side.items())
    ]
