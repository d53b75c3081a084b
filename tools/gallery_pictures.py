"""The pictures of figures/: each answers one question of a chapter, from its records.

A title is one clause with the condition under which it is true: if the records that
are drawn contradict it, :func:`claim` raises an error with their numbers. Samples are
read into one table (:func:`samples`), so that what is claimed is what is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import memory_estimate
import msgspec
import pandas as pd
from matplotlib.axes import Axes

from d2lpar.arrays import figure as arrays
from d2lpar.arrays import result as timing
from d2lpar.errors import RecordError
from d2lpar.figures import benchmark, labels, page
from d2lpar.figures.page import Picture
from d2lpar.gan import figure as gan
from d2lpar.least_squares import figure as least_squares
from d2lpar.low_precision import figure as low_precision
from d2lpar.low_precision.result import baseline, merged
from d2lpar.records import files
from d2lpar.records.comparison import Summary, references, summarize
from d2lpar.records.kinds import (
    AllReduceRecord,
    ArmSample,
    BenchmarkHeader,
    EpochRecord,
    FrameRecord,
    PointRecord,
    PrecisionRecord,
    Run,
    timed_epochs,
)
from d2lpar.scaling import figure as scaling
from d2lpar.scaling.model import Study, studies
from d2lpar.scaling.result import name_of, speedups
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
    benchmark = isinstance(header, BenchmarkHeader)
    words = labels.machine(header) if benchmark else labels.hardware([header])
    return words + age(run)


def age(run: Run) -> str:
    """Whether an older version measured a run, to be said after its machine."""
    return "" if run.header.date >= SINCE else f", before {VERSION}"


def samples(runs: Runs, kind: type) -> pd.DataFrame:
    """A row per line of a kind: its fields, and who measured it where.

    Without warm-ups. `seconds` and `naive_seconds` of several samples become a row
    each.
    """
    rows = []
    for run in runs:
        lines: Iterable[Any] = run.lines_of(kind)
        if kind is EpochRecord:
            lines = timed_epochs(run)
        for line in lines:
            if getattr(line, "warm_up", False):
                continue
            fields = msgspec.structs.asdict(line)
            devices = fields.get("num_devices") or getattr(run.header, "num_devices", 0)
            rows.append({"machine": machine(run), "run": run, **fields,
                         "variant": fields.get("variant") or getattr(
                             run.header, "variant", ""),
                         "devices": devices})  # fmt: skip
    table = pd.DataFrame(rows)
    several = [name for name in ("seconds", "naive_seconds")
               if name in table and isinstance(table[name].iloc[0], list)]  # fmt: skip
    if several:
        table = table.explode(several, ignore_index=True).dropna(subset=several)
    return table


def quantiles(table: pd.DataFrame, by: str | list[str], value: str = "seconds"):
    """Median and quartiles of groups, as :class:`Summary`, in the records' order."""
    return table.groupby(by, sort=False)[value].agg(lambda x: summarize(list(x)))


def apart(less: Summary, more: Summary) -> bool:
    """Whether the quartiles of two measurements do not overlap, in this order."""
    return less.q3 < more.q1


def picture(title: str, words: str, runs: Runs, size: tuple[float, float], **grid):
    """A picture whose subtitle ends with the machines of its runs."""
    machines = dict.fromkeys(machine(run) for run in runs)
    note = " \u00b7 ".join([words, *machines])
    return page.new(title, note, runs, size, **grid)


def name(axes: Axes, x: float, y: float, words: str, color: str = page.INK, **how):
    """Words beside a curve, in its color."""
    how = {"va": "center", "size": 10, **how}
    axes.text(x, y, words, color=color, **how)


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
    pairs = [speedups(studies(runs)[0], 2) for runs in (cores, gpus)]
    ends = [summarize([run.epochs[-1].test_acc for run in runs]) for runs in (one, two)]
    times = [summarize(to_accuracy(runs)) for runs in (one, two)]
    title = claim(
        "Two devices learn what one learns, and faster if there is enough to do",
        when=abs(ends[0].median - ends[1].median) < ends[0].q3 - ends[0].q1
        and apart(times[1], times[0])
        and times[0].n == times[1].n == 5
        and all(summarize(p[2]).q3 < 1 < summarize(p[8_192]).q1 for p in pairs),
    )  # fmt: skip
    words = (
        "LeNet in Gluon; left: batch 256, the same 2 cores for one context and two; "
        "right: a core or a GPU each, n = 5"
    )
    drawn = picture(title, words, [*one, *two, *cores, *gpus], (10.4, 4.6), columns=2)
    left, right = drawn.axes
    sides = zip((one, two), (ONE, TWO), page.LINES, times, ("one", "two"), (0.59, 0.55))
    for runs, color, line, seconds, count, y in sides:
        curves = [[epoch.test_acc for epoch in run.epochs] for run in runs]
        epochs, thick = range(1, len(curves[0]) + 1), {"color": color, "ls": line}
        for curve in curves:
            left.plot(epochs, curve, color=color, lw=0.8, alpha=0.6)
        left.plot(epochs, list(map(median, zip(*curves))), lw=3, **thick)
        left.plot([4.4, 5.1], [y, y], lw=3, **thick)
        plural = "device" if count == "one" else "devices"
        name(left, 5.3, y, f"{count} {plural}: 0.80 after {seconds.median:.0f} s")
    left.set(ylim=(0.5, 0.9), xlim=(1.8, 10.1), xticks=range(2, 11, 2))
    left.set(xlabel="epoch", ylabel="test accuracy")
    left.set_title("Test accuracy by epoch, on 2 CPU cores, 5 seeds")
    right.axhspan(0.2, 1, color="#f4ece6", zorder=0)
    right.axhline(1, color=page.INK, lw=1)
    for found, marker, line, face in zip(pairs, "os", page.LINES, (TWO, "white")):
        for batch, values in found.items():
            right.plot([batch] * len(values), values, ".", color=TWO, ms=4, alpha=0.35)
        at = list(found), list(map(median, found.values()))
        look = {"color": TWO, "marker": marker, "ls": line, "mfc": face, "lw": 2.4}
        right.plot(*at, ms=6, **look)
    name(right, 11, 2.3, "2 CPU cores", TWO, weight="bold")
    name(right, 16, 0.33, "2 H200 GPUs", TWO, weight="bold")
    name(right, 1.9, 3.6, "faster than one", "0.3", style="italic")
    name(right, 700, 0.25, "slower than one", "0.3", style="italic")
    right.set(xscale="log", yscale="log", ylim=(0.2, 4.4), xlabel="global batch size")
    right.set_yticks([0.25, 0.5, 1, 2, 4], ["¼×", "½×", "1×", "2×", "4×"])
    right.set_xticks([2, 16, 128, 1024, 8192], ["2", "16", "128", "1,024", "8,192"])
    right.minorticks_off()
    right.set(ylabel="speed, over one device")
    right.set_title("Speed of a step, over one device")
    return drawn


@answers("benchmarks/equivalence", "benchmarks/equivalence")
def equivalence(runs: Runs) -> Picture:
    """Do two devices compute what one computes?"""
    table = samples(runs, ArmSample)
    last = table[table.steps == table.steps.max()]
    ends = last.groupby("arm", sort=False).error
    low, book, double = ends.median()
    title = claim(
        "At a rate of 0.2 rounding grows until two trainings part",
        when=ends.max().iloc[0] < 1e-4
        and 0.1 < ends.min().iloc[1]
        and ends.max().iloc[2] < 1e-6,
        low=low, book=book, double=double,
    )  # fmt: skip
    batch = runs[0].header.settings["global_batch_size"]
    words = f"LeNet, batch {batch}; a dot per seed, lines: medians"
    drawn = picture(title, words, runs, (7.6, 4.2))
    (axes,) = drawn.axes
    benchmark.errors(axes, runs[0])
    axes.get_legend().remove()
    for k, (arm, end) in enumerate(ends.median().items()):
        words = arm.replace("lr", "rate")
        color = page.look(k)["color"]
        name(axes, 1.15 * table.steps.max(), end / 5, words, color, va="top")
    axes.axhline(1, **page.LIMIT)
    name(axes, 1, 2, "as large as the parameters", "0.3", size=9, va="bottom")
    axes.set(xlim=(0.8, 9_000), ylim=(None, 1e3))
    axes.set_ylabel("distance of parameters from one device's")
    axes.set_xlabel("steps of training on two devices")
    return drawn


@answers("benchmarks/memory", "benchmarks/memory", "h200/benchmarks/memory")
def memory(cores: Runs, gpus: Runs) -> Picture:
    """How much memory does a training take, and can it be counted before?"""
    table = samples([*cores, *gpus], ArmSample)
    table["ratio"] = [
        line.peak_bytes / memory_estimate.of_sample(run, line)
        for run in (*cores, *gpus)
        for line in run.lines_of(ArmSample)
        if not line.warm_up
    ]
    alone = table[table.arm.str.startswith("1 ")].ratio
    both = table[table.arm.str.startswith("2 ")].ratio
    title = claim(
        "One device takes {a:.2f} to {b:.2f} times the memory that we count",
        when=0.9 < alone.min() and alone.max() < 1.2 and both.median() < 1,
        a=alone.min(), b=alone.max(), two=both.median(),
    )  # fmt: skip
    words = "LeNet from scratch, 8,192 images, n = 3; on a GPU the count was fitted"
    drawn = picture(title, words, [*cores, *gpus], (7.6, 4.2))
    (axes,) = drawn.axes
    axes.axhline(1, **page.LIMIT)
    looks = zip((ONE, TWO, page.OTHERS[0]), page.MARKERS, page.LINES)
    for (arm, same), (color, marker, line) in zip(
        table.groupby("arm", sort=False), looks
    ):
        at = [(b, list(x.ratio)) for b, x in same.groupby("batch_size")]
        look = {"color": color, "marker": marker, "ls": line}
        page.quartiles(axes, at, **look)
        axes.plot(same.batch_size, same.ratio, ".", color=color, alpha=0.5, ms=5)
        up = arm == "1 GPU"  # above the line at 1
        words, va = ("one H200", "bottom") if up else (arm, "top")
        end = median(at[-1][1]) + 0.03 * up
        name(axes, 1.2 * at[-1][0], end, words, color, va=va)
    page.log_along(axes, "x", base=2)
    axes.set(xlim=(200, 30_000), ylim=(0, 1.3), xlabel="global batch size")
    axes.set_xticks([256, 1024, 4096, 8192])
    axes.set_ylabel("memory measured / counted")
    return drawn


# Chapters 3, 4 and 13: arrays, timing and kernels


@answers("timing/clocks", "timing/book-cpu1", "h200/timing/book-gpu1")
def clocks(cores: Runs, gpus: Runs) -> Picture:
    """What does a naive clock measure?"""
    panels = [
        [
            row
            for row in timing.rows(runs)
            if row.library == "MXNet" and row.form in ("as written", "dense layer")
            and row.operation in timing.TITLES
        ]
        for runs in (cores, gpus)
    ]  # fmt: skip
    ratios = [r.seconds.q1 / r.naive.q3 for rows in panels for r in rows]
    medians = [r.seconds.median / r.naive.median for rows in panels for r in rows]
    title = claim(
        "A clock that does not wait reads {a:.0f} to {b:,.0f} times too little",
        when=min(ratios) > 1, a=min(medians), b=float(f"{max(medians):.1g}"),
    )  # fmt: skip
    words = "MXNet on one device; tick: calls have returned; dot: work has finished"
    size = (10.4, 2.2 + 0.36 * len(panels[0]))
    drawn = picture(title, words, [*cores, *gpus], size, columns=2, sharey=True)
    for axes, rows, runs in zip(drawn.axes, panels, (cores, gpus)):
        arrays.clocks(axes, rows, lambda row: arrays.SHORT[row.operation])
        axes.set_title(machine(runs[0]))
    return drawn


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
    drawn = picture(title, words, [*cores, *gpus], (10.4, 4.8), columns=2)
    for axes, runs in zip(drawn.axes, (cores, gpus)):
        where = machine(runs[0])
        arrays.roofline(axes, timing.rows(runs), where.partition(",")[0])
        axes.set_title(where)
    return drawn


@answers("benchmarks/kernels", "benchmarks/kernels", "h200/benchmarks/kernels")
def kernels(cores: Runs, gpus: Runs) -> Picture:
    """Are kernels in CUDA C worth it?"""
    table = samples([*cores, *gpus], ArmSample)
    table[["who", "where"]] = table.arm.str.split(", ", n=1, expand=True)
    # NumPy has one thread, and beside a GPU it is the host's.
    table = table[(table.who != "NumPy") | (table["where"] == "1 context, 1 thread")]
    contexts = table["where"].str.startswith("2 contexts") + 1
    num_bytes = 8 + 4 * table.work.str.startswith("p")
    table["rate"] = 0.05 * contexts * num_bytes / table.seconds  # GB/s of 50,000,000
    found = quantiles(table, ["where", "work", "who"], "rate")
    update = next(work for work in table.work if work.startswith("p"))
    places = list(dict.fromkeys(table["where"]))
    gains = [found[p, update, "kernel"].median / found[p, update, "MXNet"].median
             for p in places[:-1]]  # fmt: skip
    title = claim(
        "On cores one kernel updates {a:.0f} to {b:.0f} times as fast as MXNet",
        when=all(
            apart(found[p, update, "MXNet"], found[p, update, "kernel"])
            for p in places[:-1]
        ) and apart(found["1 GPU", update, "kernel"], found["1 GPU", update, "MXNet"]),
        a=min(gains), b=max(gains),
    )  # fmt: skip
    words = "50,000,000 float32 on each device, read and written; n = 21"
    grid = {"rows": 2, "columns": 4, "sharex": "col", "sharey": "row"}
    drawn = picture(title, words, [*cores, *gpus], (13, 4.4), **grid)
    colors = {**page.LIBRARIES, "kernel": page.OTHERS[0], "loop in C": page.INK}
    order = ("kernel", "loop in C", "MXNet", "NumPy")
    for k, work in enumerate(dict.fromkeys(table.work)):
        for axes, place in zip(drawn.axes[4 * k :], places):
            values = table[(table["where"] == place) & (table.work == work)]
            rows = [
                page.Row(who, list(values.rate[values.who == who]), colors[who])
                for who in order
            ]
            page.dots(axes, rows, "GB/s", log=False)
            where = "one H200" if place == "1 GPU" else place
            axes.set_title(f"{work}: {where}")
            axes.autoscale(axis="x")  # both rows
            axes.set_xlim(left=0)
    return drawn


# Chapters 6 and 7: scaling and communication


def pays_between(found: Sequence[Study]) -> tuple[int, int]:
    """The batches below which two devices never pay, and from which on they always do.

    By the quartiles of the pairs, of all studies.
    """
    never, always = [], []
    for study in found:
        pairs = {b: summarize(p) for b, p in speedups(study, 2).items()}
        never.append(
            max(b for b in pairs if all(pairs[c].q3 < 1 for c in pairs if c <= b))
        )
        always.append(
            min(b for b in pairs if all(pairs[c].q1 > 1 for c in pairs if c >= b))
        )
    return min(never), max(always)


@answers(
    "scaling/speedup",
    "scaling/book-1thread-*",
    "h200/scaling/book-1thread-*",
    "gpu_scaling/book-ddp-*",
)
def speedup(cores: Runs, gpus: Runs, ddp: Runs) -> Picture:
    """From which batch on does a second device pay?"""
    (a, b), (c, d) = pays_between(studies(cores)), pays_between(studies(gpus))
    title = claim(
        "A second core pays from a batch of {b} on, a second H200 from {d:,}",
        when=b < c, a=a, b=b, c=c, d=d,
    )  # fmt: skip
    words = "a step of LeNet; dots: pairs of samples, n = 5, lines: medians"
    runs = [*cores, *gpus, *ddp]
    grid = {"columns": 3, "sharey": True, "sharex": True}
    drawn = picture(title, words, runs, (13, 4.6), **grid)
    names = ("2 cores, MXNet", "2 H200s, MXNet", "H200s, PyTorch DDP")
    for axes, same, where in zip(drawn.axes, (cores, gpus, ddp), names):
        scaling.speedup(axes, studies(same))
        axes.set_title(where)
        axes.set_xlabel("global batch size")
    for axes in drawn.axes[1:]:
        axes.yaxis.label.set_visible(False)
    return drawn


@answers("scaling/bracket", "scaling/book-1thread-*", "h200/scaling/book-1thread-*")
def bracket(cores: Runs, gpus: Runs) -> Picture:
    """Can the time of a step on two devices be bounded?"""
    panels = [
        {
            name_of(study): {b: (study.steps[2, b] / low, high / low)
                             for b, (low, high) in study.bracket(2).items()
                             if (2, b) in study.steps}
            for study in studies(runs)
        }
        for runs in (cores, gpus)
    ]  # fmt: skip
    off = [100 * abs(step - 1) for at in panels[1].values() for step, _ in at.values()]
    title = claim(
        "On two H200s a step is within {p} % of its bracket's lower end",
        when=max(off) < 20, p=math.ceil(max(off)),
    )  # fmt: skip
    words = "a step of LeNet on two devices, medians; band: the bracket"
    drawn = picture(title, words, [*cores, *gpus], (10.4, 4.4), columns=2, sharey=True)
    for axes, found, runs in zip(drawn.axes, panels, (cores, gpus)):
        for k, (words, at) in enumerate(found.items()):
            color = (TWO, page.OTHERS[0])[k]
            steps, highs = zip(*at.values())
            axes.fill_between(list(at), 1, highs, color=color, alpha=0.15, lw=0)
            look = page.look(k, color=color, label=words)
            axes.plot(list(at), steps, **look)
        page.log_along(axes, "x", base=2)
        axes.set(ylim=(0, None), xlabel="global batch size")
        axes.set_ylabel("time of a step / lower end of its bracket")
        axes.set_title(machine(runs[0]))
        axes.legend()
    return drawn


@answers("scaling/one-step")
def one_step() -> Picture:
    """Where does the time of a step go?"""
    trace = json.loads((FIGURES / "scaling" / "one-step-trace.json").read_text())
    facts, shares = trace["metadata"], {}
    events = pd.DataFrame(trace["traceEvents"])
    events["end"] = events.ts + events.dur
    for batch, step in events.groupby("pid"):
        shares[batch] = 100 * overlap(step) / step.end.max()
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
    sums = ("CopyCPU2CPU", "_npi_add")
    inks = {0: page.GREY, 1: ONE, 2: TWO}
    for axes, (batch, step) in zip(drawn.axes, events.groupby("pid")):
        for event in step.itertuples():
            color = page.OTHERS[0] if event.name in sums else inks[event.tid]
            axes.barh(
                event.tid, event.dur / 1e3, left=event.ts / 1e3, color=color, lw=0
            )
        axes.set_yticks(range(3), ["Python issues", "context 0", "context 1"])
        axes.set(ylim=(2.5, -0.5), xlim=(0, None), ylabel=f"{batch} images")
        axes.grid(False, axis="y")
        axes.set_xlabel("milliseconds; orange: copies and sums")
    return drawn


def overlap(step: pd.DataFrame) -> float:
    """Microseconds in which both contexts work at the same time."""
    first, second = (
        [(e.ts, e.end) for e in step[step.tid == k].itertuples()] for k in (1, 2)
    )
    return sum(max(0, min(b, d) - max(a, c)) for a, b in first for c, d in second)


@answers(
    "scaling/all-reduce",
    "scaling/book-1thread-*",
    "h200/scaling/book-1thread-*",
    "h200/timing/book-gpu2",
)
def all_reduce(cores: Runs, gpus: Runs, copying: Runs) -> Picture:
    """How fast is an all-reduce, by size and algorithm?"""
    table = samples([*cores, *gpus], AllReduceRecord)
    found = quantiles(table, ["machine", "variant", "num_bytes", "num_arrays"])
    (size,) = set(table.num_bytes[table.num_arrays > 1])
    arrays_of, gains = table.num_arrays.max(), []
    for (where, way, _, count), s in found.items():
        if where == machine(cores[0]) and count > 1 and "kvstore" not in way:
            gains.append((s, found[where, way, size, 1]))
    ratios = [many.median / one.median for many, one in gains]
    title = claim(
        "Summing {n} arrays from Python takes {a:.1f} to {b:.1f} times as long as one",
        when=all(apart(one, many) for many, one in gains),
        n=arrays_of, a=min(ratios), b=max(ratios),
    )  # fmt: skip
    words = (
        f"medians, quartiles; hollow: {arrays_of} arrays of together as many bytes; "
        "book, tree, ring: copies and sums issued by Python; dashed: copies"
    )
    runs = [*cores, *gpus, *copying]
    drawn = picture(title, words, runs, (10.4, 4.6), columns=2, sharey=True)
    for axes, same in zip(drawn.axes, (cores, gpus)):
        scaling.all_reduce(axes, same)
        axes.set_title(machine(same[0]))
    right = drawn.axes[1]
    right.yaxis.label.set_visible(False)
    for direction, words in (("device to device", "copies between H200s"),
                             ("host to device", "copies from the host")):  # fmt: skip
        rows = timing.rows_of(direction, timing.rows(copying))
        best = max(rows, key=lambda row: row.gb_per_sec)
        each = best.gb_per_sec / best.num_devices
        right.axhline(each, **page.LIMIT)
        name(right, 1024, each, words, "0.3", va="bottom", size=9)
    return drawn


@answers("benchmarks/local_sgd", "benchmarks/local_sgd")
def local_steps(runs: Runs) -> Picture:
    """What does it cost to average less often?"""
    table = samples(runs, ArmSample)
    ends = table[table.epoch == table.epoch.max()].copy()
    ends["momentum"] = ends.arm.str.contains("momentum")
    ends["mib"] = ends.wire_bytes / 2**20
    plain = quantiles(ends[~ends.momentum], "arm", "test_acc")
    sent = ends[~ends.momentum].groupby("arm", sort=False).mib.median()
    title = claim(
        "Averaging {r:.0f} times less often costs no accuracy that 5 seeds show",
        when=all(s.q3 >= plain["every step"].q1 and s.n == 5 for s in plain),
        r=sent.max() / sent.min(),
    )  # fmt: skip
    words = "LeNet, 12,800 images, batch 64, 3 epochs; 5 seeds, medians and quartiles"
    drawn = picture(title, words, runs, (7.6, 4.2))
    (axes,) = drawn.axes
    for k, (momentum, same) in enumerate(ends.groupby("momentum")):
        at = [
            (x.mib.median(), list(x.test_acc))
            for _, x in same.groupby("arm", sort=False)
        ]
        look = page.look(k)
        page.quartiles(axes, at, **look)
        axes.plot(same.mib, same.test_acc, ".", color=look["color"], alpha=0.5, ms=5)
        words = "outer step with momentum" if momentum else "averages of parameters"
        mib, reached = next(each for each in at if each[0] < 100)  # 16 steps
        high = median(reached) + 0.005
        name(axes, 1.2 * mib, high, words, look["color"], va="bottom")
    for arm, mib in sent.items():
        axes.annotate(arm.removeprefix("every "), (mib, 0.02), ha="center", size=9,
                      xycoords=axes.get_xaxis_transform())  # fmt: skip
    page.log_along(axes, "x")
    axes.set(xlabel="MiB sent per training; averages after every ...")
    axes.set_ylabel("test accuracy")
    return drawn


# Chapters 8 and 9: least squares


@answers(
    "least_squares/averaging",
    "least_squares/book-1thread-*-cpu2",
    "benchmarks/local_steps",
)
def averaging(runs: Runs, by_steps: Runs) -> Picture:
    """How far from the optimum does averaging end?"""
    least = least_squares.least_of(runs)
    shown = [run for run in runs if run.header.variant in least_squares.AVERAGING]
    table = samples(by_steps, ArmSample)
    errors = table.groupby(["arm", "steps"]).error
    medians = errors.median().unstack()
    title = claim(
        "The fewer steps between two averages, the nearer the optimum",
        when=all(list(row) == sorted(row) for row in medians.values)
        and all(run.lines[-1].residual_norm > 1.01 * least for run in shown),
    )  # fmt: skip
    words = (
        "left: A of 10,000 \u00d7 1,000, 500 steps per device and epoch; right: "
        "1,000 \u00d7 50, 10,000 steps, 5 seeds"
    )
    drawn = picture(title, words, [*shown, *by_steps], (10.4, 4.4), columns=2)
    left, right = drawn.axes
    for k, run in enumerate(shown):
        points = run.lines_of(PointRecord)
        points = [p for p in points if p.repeat == 0]
        above = [100 * (p.residual_norm / least - 1) for p in points]
        look = page.look(k, markevery=8)
        left.plot([p.iteration for p in points], above, **look)
        words = run.header.variant.replace("-", " ")
        name(left, 20, (12, 300)[k], words, look["color"], ha=("right", "left")[k])
    page.log_along(left, "y")
    left.set(xlabel="epoch", ylabel="% of ||A x - b|| above the optimum")
    benchmark.errors(right, by_steps[0])
    right.get_legend().remove()
    for k, arm in enumerate(medians.index):
        name(
            right,
            60,
            (0.03, 0.003)[k],
            arm,
            page.look(k)["color"],
            ha=("right", "left")[k],
        )
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
    panels, gains = [], []
    for runs in (cores, gpus):
        rows = least_squares.seconds_of(runs)
        reached = {
            least_squares.row_name(run): f"{run.lines[-1].distance:.0e}" for run in runs
        }
        panels.append(
            [row._replace(note=f"{row.note}  {reached[row.name]}") for row in rows]
        )
        pairs = [tuple(summarize(row.values) for row in rows[k : k + 2])
                 for k in range(0, len(rows), 2)]  # fmt: skip
        gains.append(pairs)
    ratios = [one.median / two.median for one, two in gains[0]]
    title = claim(
        "Two cores solve {a:.1f} to {b:.1f} times as fast as one; two H200s do not",
        when=all(apart(two, one) for one, two in gains[0])
        and not any(apart(two, one) for one, two in gains[1]),
        a=min(ratios), b=max(ratios),
    )  # fmt: skip
    words = (
        "min ||A x - b||, A of 10,000 \u00d7 1,000, n = 3; right: seconds, speedup, "
        "distance to the optimum"
    )
    size = (7.6, 2 * page.height(len(panels[0])))
    drawn = picture(title, words, [*cores, *gpus], size, rows=2)
    for axes, rows, runs in zip(drawn.axes, panels, (cores, gpus)):
        page.dots(axes, rows, "s", log=True)
        axes.set_title(machine(runs[0]))
    return drawn


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
    table = samples([*cores, *gpus], ArmSample)
    table = table[table.arm.isin(SOLVERS)]
    found = quantiles(table, ["work", "arm"])
    slower = sum(
        apart(found[w, "pytorch normal equations on 1 GPU"],
              found[w, "normal on 1 GPU, x alone"])
        for w in dict.fromkeys(table.work[table.machine == machine(gpus[0])])
    )  # fmt: skip
    title = claim(
        "On an H200 PyTorch's normal equations are faster in {a} of {b} sizes",
        when=slower > 0, a=slower, b=6,
    )  # fmt: skip
    words = "min ||A x - b||, x alone; medians and quartiles"
    grid = {"rows": 2, "columns": 2, "sharex": True, "sharey": "row"}
    drawn = picture(title, words, [*cores, *gpus], (10.4, 7.6), **grid)
    table["rows"] = [int(w.split(" x ")[0].replace(",", "")) for w in table.work]
    for k, axes in enumerate(drawn.axes):
        runs, columns = (cores, gpus)[k // 2], ("100", "1,000")[k % 2]
        here = table[(table.machine == machine(runs[0]))
                     & table.work.str.endswith(f" x {columns}")]  # fmt: skip
        for arm, (words, library, mark) in SOLVERS.items():
            same = here[here.arm == arm]
            if len(same):
                at = [(m, list(x.seconds)) for m, x in same.groupby("rows")]
                look = page.look(mark, color=page.LIBRARIES[library])
                page.quartiles(axes, at, label=words, **look)
        page.log_along(axes, "x")
        page.log_along(axes, "y")
        axes.set(xlabel="rows of A", ylabel="seconds")
        axes.set_title(f"{columns} columns, {machine(runs[0])}")
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
    steps = min(
        run.lines_of(FrameRecord)[-1].num_steps for run in spectral + [*without]
    )
    ends = []
    for runs in (spectral, without):
        shares = []
        for run in runs:
            frames = [f for f in run.lines_of(FrameRecord) if f.num_steps <= steps]
            shares.append(100 * frames[-1].coverage)
        ends.append(shares)
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
    looks = (TWO, "-", "with"), (page.OTHERS[0], page.LINES[1], "without")
    for runs, (color, line, words) in zip((spectral, without), looks):
        for run in runs:
            frames = run.lines_of(FrameRecord)
            at = [f.num_steps for f in frames], [f.coverage for f in frames]
            right.plot(*at, color=color, ls=line, lw=1.5)
        name(right, at[0][-1], at[1][-1] + 0.04, words, color, ha="right", va="bottom")
    real = references(first[0])["other real faces"]["coverage"]
    right.axhline(real, **page.LIMIT)
    name(right, 0, real + 0.02, "other real faces", "0.3", va="bottom", size=9)
    right.set(ylim=(0, 1.08), xlabel="steps of training")
    right.set_ylabel("share of real faces covered")
    right.set_xticks([0, 10_000, 20_000], ["0", "10,000", "20,000"])
    return drawn


# Chapters 12 and 14: low precision and several machines


@answers("low_precision/precision", "low_precision/book-1thread-cpu1")
def precision(runs: Runs) -> Picture:
    """What does int8 gain, and what does it cost?"""
    rows = [row for row in merged(runs[0].lines_of(PrecisionRecord)) if row.supported]
    base = baseline(rows)
    assert base is not None
    fast = [
        row.images_per_sec / base.images_per_sec
        for row in rows
        if row.weights == "trained" and row.precision.startswith("int8")
        and not row.precision.endswith("none")
        and row.images_per_sec_q1 > base.images_per_sec_q3
    ]  # fmt: skip
    title = claim(
        "Calibrated int8 is {a:.1f} to {b:.1f} times as fast as float32",
        when=len(fast) == 4, a=min(fast), b=max(fast),
    )  # fmt: skip
    return low_precision.picture(runs[0], title)


@answers("multiple_machines/sharing", "multiple_machines/book*-2workers-*")
def sharing(runs: Runs) -> Picture:
    """What do cheaper ways to share gradients save?"""
    found = quantiles(samples(runs, EpochRecord), "variant")
    saved = 100 * (1 - found["async"].median / found[""].median)
    title = claim(
        "Not waiting for the other worker saves {p:.0f} % of the time, 2 bits none",
        when=apart(found["async"], found[""]) and not apart(found["2bit"], found[""]),
        p=saved,
    )  # fmt: skip
    return workers.picture(runs, title, max(map(age, runs)))


# Peers


@answers(
    "peers/lenet", "peers/custom-cpu2", "h200/peers/custom-gpu2",
    "h200/peers_8192/custom-gpu2",
)  # fmt: skip
def peers(cores: Runs, small: Runs, large: Runs) -> Picture:
    """How fast is d2lpar beside PyTorch and d2l?"""
    panels = [samples(runs, ArmSample) for runs in (cores, small, large)]
    on_cores, on_gpus, _ = (quantiles(table, "arm") for table in panels)
    ours = on_cores["d2lpar concise, 2 contexts, 1 thread each"]
    plain = on_cores["PyTorch, plain loop, 2 threads"]
    title = claim(
        "PyTorch's loop is faster on cores, d2lpar's Gluon on an H200",
        when=apart(plain, ours)
        and apart(
            on_gpus["d2lpar concise, 1 GPU"], on_gpus["PyTorch, plain loop, 1 GPU"]
        ),
        ratio=plain.median / ours.median,
    )  # fmt: skip
    words = "an epoch of LeNet, 60,000 images; n = 5 or 6"
    counts = [table.arm.nunique() for table in panels]
    size = (7.6, 2.2 + 0.34 * sum(counts))
    runs = [*cores, *small, *large]
    drawn = picture(title, words, runs, size, rows=3, height_ratios=counts)
    names = (
        f"batch 256, {machine(cores[0])}",
        "batch 256, H200s",
        "batch 8,192, H200s",
    )
    for axes, table, words in zip(drawn.axes, panels, names):
        rows = [
            page.Row(arm.replace("concise", "in Gluon"), list(same.seconds),
                     benchmark.color_of(arm, "d2lpar" not in arm))
            for arm, same in table.groupby("arm", sort=False)
        ]  # fmt: skip
        page.dots(axes, rows, "s")
        axes.set_title(words)
    return drawn
