"""The pictures of figures/: each answers one question of a chapter, from its records.

A title states what was found and the condition under which that is so: if the records
contradict it, :func:`claim` raises an error with their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

import memory_estimate
import numpy
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from d2lpar import lenet_figure
from d2lpar.arrays import figure as arrays
from d2lpar.arrays import result as timing
from d2lpar.errors import RecordError
from d2lpar.figures import benchmark, labels, page
from d2lpar.figures.page import Picture
from d2lpar.gan import figure as gan
from d2lpar.least_squares import figure as least_squares
from d2lpar.low_precision import figure as low_precision
from d2lpar.low_precision.result import baseline, merged
from d2lpar.records import comparison, files
from d2lpar.records.comparison import ArmTimes, Summary, arm_times, summarize
from d2lpar.records.kinds import (
    BenchmarkHeader,
    FrameRecord,
    PrecisionRecord,
    Run,
    group,
    timed_epochs,
)
from d2lpar.scaling import figure as scaling
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.scaling.result import speedups
from d2lpar.workers import figure as workers

FIGURES = Path(__file__).parents[1] / "figures"


class Entry(NamedTuple):
    """A picture: its file, the question it answers, its records, and its drawing."""

    file: str
    question: str
    records: tuple[str, ...]
    function: Callable[..., Picture]

    def draw(self) -> Picture:
        """Draw it from a list of runs for each of `records`."""
        runs = [
            [files.read(path) for path in sorted(FIGURES.glob(f"{pattern}.jsonl"))]
            for pattern in self.records
        ]
        with page.plain_style():
            return self.function(*runs)


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


def apart(less: Summary, more: Summary) -> bool:
    """Whether the quartiles of two measurements do not overlap, in this order."""
    return less.q3 < more.q1


def machine(runs: Sequence[Run]) -> str:
    """The machine in a few words, for the title of a panel."""
    header = runs[0].header
    if isinstance(header, BenchmarkHeader):
        return labels.machine(header)
    return labels.hardware([run.header for run in runs])


def side_by_side(
    title: str,
    note: str,
    draw: Callable[[Axes, list[Run]], None],
    *machines: list[Run],
    sharey: bool = True,
) -> Picture:
    """A picture with a panel for each machine's runs."""
    runs = [run for same in machines for run in same]
    picture = page.new(title, note, runs, (10.5, 4.4), columns=2, sharey=sharey)
    for axes, same in zip(picture.axes, machines):
        draw(axes, same)
        axes.set_title(machine(same))
        if sharey:
            axes.yaxis.label.set_visible(axes is picture.axes[0])
    return picture


# Chapters 1 and 5: from scratch and in Gluon


def pooled(runs: list[Run]) -> list[Run]:
    """One run for each number of devices, with the epochs of all random seeds."""
    by_count = group(runs, lambda run: run.header.num_devices)
    return [
        replace(same[0], lines=tuple(line for run in same for line in run.lines))
        for _, same in sorted(by_count.items())
    ]


def to_accuracy(runs: list[Run], enough: float = 0.80) -> list[float]:
    """Seconds of training until a test accuracy, of each run."""
    found = []
    for run in runs:
        passed = list(accumulate(epoch.seconds for epoch in run.epochs))
        accuracies = [epoch.test_acc for epoch in run.epochs]
        first = next(k for k, acc in enumerate(accuracies) if acc >= enough)
        found.append(passed[first])
    return found


@answers(
    "multiple_gpus/book-accuracy",
    "seeds/multiple_gpus_concise/book*-cpu1",
    "seeds/multiple_gpus_concise/book*-cpu2",
    "h200/seeds/multiple_gpus_concise/book*-gpu1",
    "h200/multiple_gpus_concise/book-gpu2",
)
def accuracy(
    one: list[Run], two: list[Run], gpu: list[Run], gpus: list[Run]
) -> Picture:
    """Does a second device get to the same accuracy sooner?"""
    alone, both, on_gpu = (summarize(to_accuracy(runs)) for runs in (one, two, gpu))
    title = claim(
        "Two contexts reach 0.80 in {r:.0f} % of the time of one with as many "
        "threads; an H200 takes {seconds:.1f} s",
        when=apart(both, alone) and alone.n == both.n == on_gpu.n >= 5,
        r=100 * both.median / alone.median, seconds=on_gpu.median,
    )  # fmt: skip
    note = (
        "LeNet in Gluon on Fashion-MNIST, global batch 256, 10 epochs; medians and "
        "range of 5 seeds; two H200s: one training, in another sitting"
    )

    def draw(axes: Axes, runs: list[Run]) -> None:
        lenet_figure.curves(axes, runs, by_seconds=True)

    return side_by_side(title, note, draw, pooled(one + two), pooled(gpu + gpus))


@answers(
    "multiple_gpus/book-seconds",
    "seeds/multiple_gpus*/book*-cpu?",
    "h200/seeds/multiple_gpus*/book*-gpu1",
    "h200/multiple_gpus*/book-gpu2",
)
def seconds(cores: list[Run], one_gpu: list[Run], two_gpus: list[Run]) -> Picture:
    """How long does an epoch take, and a training to an accuracy of 0.80?"""

    def by_row(runs: list[Run]) -> dict[tuple[str, int], list[Run]]:
        rows = group(runs, lambda r: (r.header.chapter, r.header.num_devices))
        return dict(sorted(rows.items()))

    def timed(runs: list[Run]) -> list[float]:
        return [epoch.seconds for run in runs for epoch in timed_epochs(run)]

    panels = by_row(cores), by_row(one_gpu + two_gpus)
    chapters = "multiple_gpus", "multiple_gpus_concise"
    per_epoch, until = (
        [[summarize(of(panel[c, n])) for n in (1, 2)] for panel in panels
         for c in chapters]
        for of in (timed, to_accuracy)
    )  # fmt: skip
    gains = [one.median / two.median for one, two in per_epoch[:2]]
    title = claim(
        "Two contexts are {scratch:.1f} and {gluon:.1f} times as fast as one with as "
        "many threads, to 0.80, too; at this batch a second H200 gains nothing",
        when=all(apart(two, one) for one, two in per_epoch[:2] + until[:2])
        and not any(apart(two, one) for one, two in per_epoch[2:]),
        scratch=gains[0], gluon=gains[1],
    )  # fmt: skip
    note = (
        "LeNet on Fashion-MNIST, global batch 256; epochs of 5 seeds, and 5 trainings; "
        "line: quartiles; two H200s: one training"
    )
    runs = cores + one_gpu + two_gpus
    picture = page.new(title, note, runs, (12, 5), rows=2, columns=2, sharey="row")
    for k, panel in enumerate(panels):
        for of, axes in zip((timed, to_accuracy), picture.axes[2 * k : 2 * k + 2]):
            rows = [
                page.Row(
                    f"{labels.CHAPTERS[chapter]}, "
                    f"{labels.configuration(same[0].header)}",
                    of(same),
                    page.count_color(count - 1),
                )
                for (chapter, count), same in panel.items()
            ]
            page.dots(axes, rows, "s")
        picture.axes[2 * k].set_title(machine(next(iter(panel.values()))))
    for axes, words in zip(picture.axes[2:], ("per epoch", "of training to 0.80")):
        axes.set_xlabel(f"seconds {words}")
    for axes in picture.axes[:2]:
        axes.set_xlabel("")
    return picture


# What the book's authors printed on V100s: seconds per epoch on one and two, of LeNet
# in its notebook, and of ResNet-18 with batches of 256 and 512 in the next notebook of
# the same course, https://github.com/mli/d2l-1day-notebooks (commit 9ccfd6d).
ON_V100S = {"LeNet": (1.8, 2.5), "ResNet-18": (13.2, 7.3)}


@answers(
    "h200/benchmarks/resnet18",
    "h200/seeds/multiple_gpus/book*-gpu1",
    "h200/multiple_gpus/book-gpu2",
    "h200/benchmarks/resnet18",
)
def beside_the_book(
    lenet: list[Run], lenet_on_two: list[Run], resnet: list[Run]
) -> Picture:
    """How fast are H200s beside the V100s of the book's authors?"""
    epochs = [
        [epoch.seconds for run in runs for epoch in timed_epochs(run)]
        for runs in (lenet, lenet_on_two)
    ]
    (deep,) = arm_times(resnet[0])
    gains = [
        printed[0] / median(ours)
        for printed, ours in zip(ON_V100S.values(), (epochs[0], deep.seconds))
    ]
    title = claim(
        "One H200 is {lenet:.0f} times as fast as one V100 with LeNet, {resnet:.1f} "
        "times with ResNet-18, which alone gained from a second V100",
        when=min(gains) > 2 and ON_V100S["LeNet"][0] < ON_V100S["LeNet"][1],
        lenet=gains[0], resnet=gains[1],
    )  # fmt: skip
    note = "Fashion-MNIST, batch 256; V100s: as printed in 2019; lines: quartiles"
    runs = lenet + lenet_on_two + resnet
    picture = page.new(title, note, runs, (7.6, 4.6), rows=2)
    ours = {"LeNet": epochs, "ResNet-18": [deep.seconds, []]}
    for axes, (net, printed) in zip(picture.axes, ON_V100S.items()):
        doubled, absent = ("", "")
        if net == "ResNet-18":
            doubled, absent = ", batch 512", "no two could be had"
        rows = [
            page.Row("1 V100", printed[:1], page.GREY),
            page.Row(f"2 V100s{doubled}", printed[1:], page.GREY),
            page.Row("1 H200", ours[net][0], page.count_color(0)),
            page.Row("2 H200s", ours[net][1], page.count_color(1), absent),
        ]
        page.dots(axes, rows, "s", log=False)
        axes.set_title(net + (" from scratch" if net == "LeNet" else ""))
    picture.axes[0].set_xlabel("")
    picture.axes[1].set_xlabel("seconds per epoch")
    return picture


@answers("benchmarks/equivalence", "benchmarks/equivalence")
def equivalence(runs: list[Run]) -> Picture:
    """Do two devices compute what one computes?"""
    (run,) = runs
    by_arm = group(run.lines, lambda line: line.arm)
    ends = {
        arm: median(line.error for line in lines if line.steps == lines[-1].steps)
        for arm, lines in by_arm.items()
    }
    low, book, double = ends.values()
    last = run.lines[-1].steps
    title = claim(
        "Two devices' parameters are {low:.0e} from one's after {n} steps at a rate of "
        "0.02; at 0.2 rounding grows to {book:.1f}, in float64 to {double:.0e}",
        when=low < 1e-4 and 0.1 < book and double < 1e-6 * book,
        n=last, low=low, book=book, double=double,
    )  # fmt: skip
    note = labels.subtitle(
        f"LeNet, batch {run.header.settings['global_batch_size']}; relative distance "
        "of all parameters; a dot per seed, lines: medians",
        runs,
    )
    picture = page.new(title, note, runs)
    benchmark.errors(picture.axes[0], run)
    picture.axes[0].set_ylabel("distance, relative")
    return picture


@answers("benchmarks/memory", "benchmarks/memory", "h200/benchmarks/memory")
def memory(cores: list[Run], gpus: list[Run]) -> Picture:
    """How much memory does a training take, and can it be counted before?"""

    on_cores, on_gpus = (
        [line.peak_bytes / memory_estimate.of_sample(run, line) for line in run.lines]
        for [run] in (cores, gpus)
    )
    title = claim(
        "On cores a training takes {a:.1f} to {b:.1f} times the memory that is counted "
        "before, on an H200, to which the count was fitted, {c:.1f} to {d:.1f} times",
        when=0.6 < min(on_cores) and max(on_cores + on_gpus) < 1.25,
        a=min(on_cores), b=max(on_cores), c=min(on_gpus), d=max(on_gpus),
    )  # fmt: skip
    note = (
        "LeNet from scratch, 8,192 images; filled: measured, median of 3; hollow: "
        "counted from the layers' shapes"
    )

    def draw(axes: Axes, runs: list[Run]) -> None:
        benchmark.memory(axes, runs[0], partial(memory_estimate.of_sample, runs[0]))
        where = "of the GPU" if runs is gpus else "of the process"
        axes.set_ylabel(f"MiB {where}")

    return side_by_side(title, note, draw, cores, gpus, sharey=False)


# Chapters 3 and 4: arrays and timing


def too_short(runs: list[Run]) -> list[float]:
    """How many times as long as its calls MXNet's work takes, by row."""
    found = [row for row in timing.rows(runs) if row.library == "MXNet"]
    return [
        r.seconds.median / r.naive.median for r in found if r.operation in timing.TITLES
    ]


@answers("timing/book-clocks", "timing/book-cpu?")
def clocks(runs: list[Run]) -> Picture:
    """What does a naive clock measure on CPU contexts?"""
    ratios = too_short(runs)
    title = claim(
        "A naive clock measures MXNet's calls, not its work: it is short by "
        "{least:.0f} to {most:,.0f} times",
        when=min(ratios) > 1.5,
        least=min(ratios), most=round(max(ratios), -4),
    )  # fmt: skip
    return arrays.clocks(runs, title)


@answers("h200/timing/book-clocks", "h200/timing/book-gpu?")
def clocks_of_gpus(runs: list[Run]) -> Picture:
    """What does a naive clock measure on GPUs?"""
    found, ratios = timing.rows(runs), too_short(runs)
    sums = timing.rows_of("sum", found)
    host = timing.fastest(row for row in sums if row.where == "CPU")
    gpu = timing.fastest(row for row in sums if row.where != "CPU")
    title = claim(
        "PyTorch adds 1,000,000 numbers {r:.1f} times as fast on the host as on an "
        "H200; a naive clock is short by up to {most:,.0f} times",
        when=apart(host.seconds, gpu.seconds)
        and host.library == gpu.library == "PyTorch"
        and max(ratios) > 100,
        r=gpu.seconds.median / host.seconds.median, most=round(max(ratios), -1),
    )  # fmt: skip
    return arrays.clocks(runs, title)


@answers("timing/roofline", "timing/book-cpu?", "h200/timing/book-gpu?")
def roofline(cores: list[Run], gpus: list[Run]) -> Picture:
    """How near does array work come to what the processor allows?"""
    shares = {}
    for name, runs in (("cores", cores), ("gpu", gpus)):
        one = [row for row in timing.rows(runs) if row.num_devices == 1]
        twice = {
            row.form: row.gb_per_sec
            for row in timing.rows_of("x2", one)
            if row.library == "MXNet"
        }
        limit = arrays.copy_rate(one) / 100
        shares[f"{name}_written"] = twice["as written"] / limit
        shares[f"{name}_best"] = max(twice.values()) / limit
    title = claim(
        "Doubling as written reaches {cores_written:.0f} % of a copy's rate on cores "
        "and "
        "{gpu_written:.0f} % on an H200; in its best form {cores_best:.0f} and "
        "{gpu_best:.0f} %",
        when=shares["cores_written"] < 30 < shares["gpu_written"]
        and max(shares.values()) <= 100,
        **shares,
    )
    note = (
        "one context or one GPU, float32; dashed: its own fastest copy and product; "
        "solid: data sheet"
    )

    def draw(axes: Axes, runs: list[Run]) -> None:
        arrays.roofline(axes, timing.rows(runs), machine(runs).partition(",")[0])

    return side_by_side(title, note, draw, cores, gpus, sharey=False)


@answers("timing/copies", "timing/book-cpu?", "h200/timing/book-gpu?")
def copies(cores: list[Run], gpus: list[Run]) -> Picture:
    """How fast are copies to, from and between devices?"""

    def last(direction: str) -> timing.Row:
        rows = timing.rows_of(direction, timing.rows(gpus))
        return max(rows, key=lambda row: (row.num_devices, row.num_bytes))

    host, between = last("host to device"), last("device to device")
    title = claim(
        "Between two H200s copies reach {between:.0f} GB/s, {r:.0f} times those from "
        "the host",
        when=apart(between.seconds, host.seconds),
        between=between.gb_per_sec,
        r=between.gb_per_sec / host.gb_per_sec,
    )
    note = "two devices copy at the same time; host memory is pageable; medians"
    return side_by_side(title, note, arrays.copies, cores, gpus)


# Chapter 13: kernels


@answers("benchmarks/kernels", "benchmarks/kernels", "h200/benchmarks/kernels")
def kernels(cores: list[Run], gpus: list[Run]) -> Picture:
    """Are kernels in CUDA C worth it?"""

    def rates(run: Run) -> dict[str, dict[tuple[str, str], list[float]]]:
        """GB/s by work, and who does it where: NumPy on one context's numbers alone."""
        found: dict[str, dict[tuple[str, str], list[float]]] = {}
        for arm in arm_times(run):
            who, layout = arm.name.split(", ", 1)
            contexts = 2 if layout.startswith("2") and who != "NumPy" else 1
            num_bytes = 50_000_000 * contexts * (8 if arm.work.startswith("y") else 12)
            # NumPy uses no other contexts, and beside a GPU it is the host's.
            if who != "NumPy" or layout == "1 context, 1 thread":
                values = [num_bytes / s / 1e9 for s in arm.seconds]
                found.setdefault(arm.work, {})[who, layout] = values
        return found

    ours, gpu = rates(cores[0]), rates(gpus[0])
    both, less = [], []
    for work, rows in ours.items():
        for who, layout in rows:
            if who == "kernel":
                kernel = median(rows[who, layout])
                both.append(kernel / median(rows["loop in C", layout]))
                if work.startswith("p"):
                    less.append(kernel / median(rows["MXNet", layout]))
    title = claim(
        "On cores a kernel keeps up with a loop in C, and its update is {r:.0f} to "
        "{most:.0f} times as fast as MXNet's; on an H200 MXNet's operators are faster",
        when=0.8 < min(both) <= max(both) < 1.25 and min(less) > 2
        and all(
            apart(*(summarize(rows[who, "1 GPU"]) for who in ("kernel", "MXNet")))
            for rows in gpu.values()
        ),
        r=min(less), most=max(less), least=min(both), best=max(both),
    )  # fmt: skip
    note = f"GB/s read and written, n = 21 \u00b7 {machine(cores)}"
    panels = [
        (f"{work}, {words}", rows)
        for rates_of, words in ((ours, "on cores"), (gpu, "on an H200"))
        for work, rows in rates_of.items()
    ]
    counts = [len(rows) for _, rows in panels]
    size = (7.6, 2 + 0.3 * sum(counts) + 0.4 * len(counts))
    picture = page.new(title, note, cores + gpus, size, rows=4, height_ratios=counts)
    colors = {**page.LIBRARIES, "kernel": page.OTHERS[0], "loop in C": page.INK}
    for axes, (name, rows) in zip(picture.axes, panels):
        found = [
            page.Row(f"{who}, {layout}", values, colors[who])
            for (who, layout), values in rows.items()
        ]
        page.dots(axes, found, "GB/s", log=False)
        axes.set_title(name)
        axes.set_xlabel("GB/s" if axes is picture.axes[-1] else "")
    return picture


# Chapter 6: scaling


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
def speedup(cores: list[Run], gpus: list[Run], ddp: list[Run]) -> Picture:
    """From which batch on does a second device pay?"""
    (a, b), (c, d) = pays_between(studies(cores)), pays_between(studies(gpus))
    title = claim(
        "A second core pays from a batch between {a} and {b} on, a second H200 from "
        "one "
        "between {c:,} and {d:,}",
        when=b < c, a=a, b=b, c=c, d=d,
    )  # fmt: skip
    note = (
        "a step of LeNet at the same global batch; dots: pairs of samples (n = 5), "
        "lines: medians"
    )
    picture = page.new(
        title, note, [*cores, *gpus, *ddp], (13, 4.6), columns=3, sharey=True
    )
    names = ("2 cores, MXNet", "2 H200s, MXNet", "2 and 4 H200s, PyTorch DDP")
    for axes, runs, name in zip(picture.axes, (cores, gpus, ddp), names):
        scaling.speedup(axes, studies(runs))
        axes.set_title(name)
        axes.set_xlabel("global batch size")
        axes.label_outer()
    return picture


@answers(
    "h200/scaling/book-1thread-steps-concise", "h200/scaling/book-1thread-concise-*"
)
def steps(runs: list[Run]) -> Picture:
    """Can the time on two GPUs be predicted?"""
    (study,) = studies(runs)
    errors = [100 * abs(error) for error in study.errors_of(2).values()]
    title = claim(
        "Fitted to one GPU, the model misses two by {m:.0f} % (median), {most:.0f} % "
        "at most",
        when=max(errors) < 25, m=median(errors), most=max(errors),
    )  # fmt: skip
    return scaling.steps(study, title)


@answers("scaling/one-step")
def one_step() -> Picture:
    """Where does the time of a step go?"""
    trace = json.loads((FIGURES / "scaling" / "one-step-trace.json").read_text())
    facts, shares = trace["metadata"], {}
    steps = group(trace["traceEvents"], lambda event: event["pid"])
    for batch, events in steps.items():
        end = max(event["ts"] + event["dur"] for event in events)
        shares[batch] = sum(e["dur"] for e in events if e["tid"] == 0) / end
    few, many = shares
    title = claim(
        "Python is busy for {few:.0f} % of a step of {n} images, and for {many:.0f} % "
        "of one of {m}",
        when=shares[few] > 0.4 and shares[many] < 0.2,
        few=100 * shares[few], n=few, many=100 * shares[many], m=many,
    )  # fmt: skip
    note = f"LeNet from scratch, MXNet's profiler \u00b7 {facts['machine']}"
    picture = page.new(title, note, [], (7.6, 4.2), rows=2)
    picture.metadata["Description"] = f"{facts['date']}, commit {facts['commit'][:7]}."
    sums = ("CopyCPU2CPU", "_npi_add")
    inks = {"Python": page.GREY, "operators": page.OURS, "copies, sums": page.OTHERS[0]}
    for axes, (batch, events) in zip(picture.axes, steps.items()):
        for event in events:
            kind = "copies, sums" if event["name"] in sums else "operators"
            kind = kind if event["tid"] else "Python"
            ms = event["dur"] / 1e3, event["ts"] / 1e3
            axes.barh(event["tid"], ms[0], left=ms[1], color=inks[kind], lw=0)
        axes.set_yticks(range(3), ["Python", "context 0", "context 1"])
        axes.set(ylim=(2.5, -0.5), xlim=(0, None), title=f"a step of {batch} images")
        axes.grid(False, axis="y")
    picture.axes[1].set_xlabel("milliseconds")
    marks = [Patch(color=color, label=name) for name, color in inks.items()]
    picture.legend(handles=marks, loc="outside lower right", ncols=3)
    return picture


@answers("scaling/all-reduce", "scaling/book-1thread-*", "h200/scaling/book-1thread-*")
def all_reduce(cores: list[Run], gpus: list[Run]) -> Picture:
    """How fast is an all-reduce, by size and algorithm?"""

    def best(runs: list[Run]) -> float:
        """GB/s of the bus: of two devices the bytes of one."""
        largest = max(key for key in all_reduces(runs) if key[1] == 1)
        ways = all_reduces(runs)[largest].values()
        return largest[2] / min(median(way) for way in ways if way) / 1e9

    title = claim(
        "The largest all-reduce reaches {a:.1f} GB/s between two cores, {b:.0f} "
        "between two H200s",
        when=best(cores) < best(gpus), a=best(cores), b=best(gpus),
    )  # fmt: skip
    note = (
        "medians and quartiles, results checked; hollow: LeNet's gradients as several "
        "arrays"
    )
    return side_by_side(title, note, scaling.all_reduce, cores, gpus)


@answers(
    "scaling/large-batches",
    "scaling/book-1thread-concise-*",
    "h200/scaling/book-1thread-concise-*",
)
def large_batches(cores: list[Run], gpus: list[Run]) -> Picture:
    """What does a larger batch cost in accuracy?"""

    def lost(runs: list[Run]) -> float:
        (study,) = studies(runs)
        ends = {
            key: epochs[-1].test_acc or 0 for key, epochs in study.trainings.items()
        }
        return ends[1, 128] - ends[2, 1024]

    title = claim(
        "Eight times the batch costs {a:.2f} of accuracy after 8 epochs on cores, "
        "{b:.2f} on H200s (one training each)",
        when=min(lost(cores), lost(gpus)) > 0.05, a=lost(cores), b=lost(gpus),
    )  # fmt: skip
    note = (
        "LeNet in Gluon: devices \u00d7 batch per device; learning rate scaled and "
        "warmed up"
    )

    def draw(axes: Axes, runs: list[Run]) -> None:
        scaling.accuracies(axes, studies(runs)[0])

    return side_by_side(title, note, draw, cores, gpus)


# Chapters 8 and 9: least squares


@answers(
    "least_squares/book-1thread-error",
    "least_squares/book-1thread-*-cpu2",
    "benchmarks/local_steps",
)
def error(runs: list[Run], by_steps: list[Run]) -> Picture:
    """How far from the optimum does averaging end?"""
    least = least_squares.least_of(runs)
    averaging = [run for run in runs if run.header.variant in least_squares.AVERAGING]
    ends = {
        run.header.variant: 100 * (run.lines[-1].residual_norm / least - 1)
        for run in averaging
    }
    found = group(by_steps[0].lines, lambda x: (x.arm, x.steps), lambda x: x.error)
    two = [median(errors) for (arm, _), errors in found.items() if arm == "2 devices"]
    title = claim(
        "Averaging ends {a:.0f} % above the optimum, as published {b:.0f} %; the fewer "
        "steps between two averages, the nearer",
        when=min(ends.values()) > 1 and two == sorted(two),
        a=ends["averaging"], b=ends["averaging-as-published"],
    )  # fmt: skip
    note = labels.subtitle(
        "left: A of 10,000 \u00d7 1,000, a line per device's x; right: 1,000 \u00d7 "
        "50, 10,000 steps, 5 seeds",
        runs,
    )
    picture = page.new(title, note, averaging + by_steps, (10.5, 4.4), columns=2)
    left, right = picture.axes
    least_squares.errors(left, averaging, least)
    benchmark.errors(right, by_steps[0])
    right.set(xlabel="steps between two averages", ylabel="")
    return picture


@answers(
    "least_squares/distance",
    "least_squares/book-1thread-*-cpu2",
    "h200/least_squares/book-*-gpu2",
)
def distance(cores: list[Run], gpus: list[Run]) -> Picture:
    """Which methods reach the optimum, and how soon?"""
    ends = group(
        [(run.header.variant, run.lines[-1].distance) for run in (*cores, *gpus)],
        lambda end: end[0] in ("normal", "tsqr", "cgls"),
        lambda end: end[1],
    )
    title = claim(
        "Normal equations, TSQR and CGLS reach the optimum; gradient descent and "
        "averaging do not",
        when=max(ends[True]) < 1e-6 and min(ends[False]) > 0.01,
        farthest=max(ends[True]), nearest=min(ends[False]),
    )  # fmt: skip
    note = (
        "min ||A x - b||, A of 10,000 \u00d7 1,000, two devices, every repeat; optimum "
        "by LAPACK"
    )
    picture = side_by_side(title, note, least_squares.distances, cores, gpus)
    picture.axes[1].get_legend().remove()
    return picture


@answers(
    "least_squares/devices",
    "least_squares/book-1thread-*-cpu?",
    "h200/least_squares/book-*-gpu?",
)
def devices(cores: list[Run], gpus: list[Run]) -> Picture:
    """Do two devices solve sooner than one?"""

    def gains(rows: list[page.Row]) -> list[float]:
        return [
            median(a.values) / median(b.values) for a, b in zip(rows[::2], rows[1::2])
        ]

    panels = [least_squares.seconds_of(runs) for runs in (cores, gpus)]
    ours, theirs = map(gains, panels)
    title = claim(
        "Two cores solve {a:.1f} to {b:.1f} times as fast as one; a second H200 gains "
        "nothing",
        when=min(ours) > 1.2 and max(theirs) < 1.05,
        a=min(ours), b=max(ours), of_gpus=max(theirs),
    )  # fmt: skip
    note = "min ||A x - b||, A of 10,000 \u00d7 1,000; n = 3"
    size = (7.6, 2 * page.height(8))
    picture = page.new(title, note, cores + gpus, size, rows=2)
    for axes, rows, runs in zip(picture.axes, panels, (cores, gpus)):
        page.dots(axes, rows, "s", log=True)
        axes.set_title(machine(runs))
    return picture


@answers("least_squares_large/book-residual", "least_squares_large/book-cgls-cpu2")
def residual(runs: list[Run]) -> Picture:
    """How soon is A larger than memory solved?"""
    first = [point for point in runs[0].lines if point.repeat == 0]
    least = least_squares.least_of(runs)
    near = next(p.seconds for p in first if p.residual_norm < 1.001 * least)
    title = claim(
        "CGLS from a file is within 0.1 % of its end after {near:.0f} of {all:.0f} "
        "seconds",
        when=near < first[-1].seconds / 2, near=near, all=first[-1].seconds,
    )  # fmt: skip
    note = labels.subtitle(
        "A of 100,000 \u00d7 10,000, in blocks; a log axis has no place for the end",
        runs,
    )
    picture = page.new(title, note, runs)
    least_squares.residuals(picture.axes[0], runs)
    return picture


SOLVERS = {  # by the name of an arm: on cores, and on a GPU
    "normal": page.look(0),
    "cgls": page.look(1),
    "tsqr": page.look(2),
    "numpy": {"color": page.LIBRARIES["NumPy"], "marker": "s"},
    "numpy normal equations": {
        "color": page.LIBRARIES["NumPy"], "marker": "*", "ms": 12, "ls": "",
    },
    "pytorch normal equations": {
        "color": page.LIBRARIES["PyTorch"], "marker": "P", "ls": "",
    },
    "scipy gelsy": {"color": page.LIBRARIES["SciPy"], "marker": "v", "ls": "--"},
    "dask": {"color": page.GREY, "marker": "x"},
}  # fmt: skip


@answers(
    "benchmarks/least_squares",
    "benchmarks/least_squares",
    "benchmarks/same_method/least_squares",
    "h200/benchmarks/least_squares",
)
def beside_libraries(
    all_sizes: list[Run], same_method: list[Run], gpus: list[Run]
) -> Picture:
    """How do our solvers compare with NumPy, SciPy, Dask and PyTorch?"""
    arms = group(arm_times(all_sizes[0]), lambda arm: arm.work)
    own = group(arm_times(same_method[0]), lambda arm: arm.work)
    on_gpu = group(arm_times(gpus[0]), lambda arm: arm.work)

    def faster(arms: list[ArmTimes], name: str, slower: str) -> bool:
        by_name = {arm.name: summarize(arm.seconds) for arm in arms if arm.seconds}
        return apart(by_name[name], by_name[slower])

    title = claim(
        "Normal equations beat an SVD from 10,000 rows on; on an H200 PyTorch's beat "
        "d2lpar's where A is small",
        when=all(
            faster(on_gpu[w], "pytorch normal equations on 1 GPU",
                   "normal on 1 GPU, x alone")
            for w in ("1,000 x 100", "10,000 x 100", "10,000 x 1,000")
        ) and all(
            faster(arms[work], "normal on 2 contexts", "numpy")
            for work in arms if work != "1,000 x 100"
        ) and not faster(arms["1,000 x 100"], "normal on 2 contexts", "numpy")
        and all(faster(own[w], "numpy normal equations", "numpy lstsq") for w in own),
    )  # fmt: skip
    note = "min ||A x - b||, medians and quartiles of 5 to 10"
    runs = all_sizes + same_method + gpus
    grid = {"rows": 2, "columns": 2, "sharex": True, "sharey": "row"}
    picture = page.new(title, note, runs, (10.5, 8), **grid)
    for row, (places, machine_words) in enumerate((
        (("on 2 contexts", ""), "2 cores"), (("on 1 GPU",), "one H200"),
    )):  # fmt: skip
        works = on_gpu if row else {**own, **arms}
        for axes, columns in zip(picture.axes[2 * row :], ("100", "1,000")):
            for solver, style in SOLVERS.items():
                names = {f"{solver} {place}".strip() for place in places}
                at = {}
                for same in (works,) if row else (own, arms):
                    for work, found in same.items():
                        for arm in found:
                            if work.endswith(f" x {columns}") and arm.name in names:
                                rows = int(work.split(" x ")[0].replace(",", ""))
                                at.setdefault(rows, arm.seconds)
                if at:
                    shown = {"numpy": "numpy lstsq (SVD)"}.get(solver, solver)
                    page.quartiles(axes, sorted(at.items()), label=shown, **style)
            page.log_along(axes, "x")
            page.log_along(axes, "y")
            axes.set_title(f"{columns} columns, {machine_words}")
            axes.set_xlabel("rows" if row else "")
        picture.axes[2 * row].set_ylabel("seconds")
        inks = picture.axes[2 * row].get_legend_handles_labels()
        picture.axes[2 * row].legend(*inks)
    return picture


# Chapter 10: the GAN


def coverage(run: Run) -> float:
    """Percent of the real faces that are covered at the end."""
    return 100 * comparison.final_quality(run, "coverage")


def steps_of(run: Run) -> int:
    return run.lines_of(FrameRecord)[-1].num_steps or 0


@answers("h200/gan/sharp-strip", "h200/gan/sharp-gpu2")
def strip(runs: list[Run]) -> Picture:
    """How do faces come out of noise?"""
    title = claim(
        "After {n:,} steps on two H200s {c:.0f} % of the real faces are covered",
        when=coverage(runs[0]) > 75, n=steps_of(runs[0]), c=coverage(runs[0]),
    )  # fmt: skip
    return gan.strip(runs[0], title)


@answers("h200/gan/sharp-samples", "h200/gan/sharp-gpu2")
def samples(runs: list[Run]) -> Picture:
    """Are generated faces copies of real ones?"""
    distances = runs[0].lines_of(FrameRecord)[-1].distances
    title = claim(
        "None of 25 generated faces is a copy: the nearest real ones are {d:.2f} away "
        "(median)",
        when=min(distances) > 0, d=median(distances), least=min(distances),
    )  # fmt: skip
    return gan.samples(runs[0], title)


@answers(
    "h200/gan/custom-d-norm-none-samples",
    "h200/gan/custom-d-norm-none-gpu1",
    "h200/gan/sharp-gpu1",
)
def no_normalisation(without: list[Run], normal: list[Run]) -> Picture:
    """What does spectral normalisation do?"""
    last = without[0].lines_of(FrameRecord)[-1]
    there = min(
        normal[0].lines_of(FrameRecord), key=lambda frame: abs(frame.epoch - last.epoch)
    )
    a, b = (100 * frame.coverage for frame in (last, there))
    title = claim(
        "Without spectral normalisation {a:.0f} % of the faces are covered after {m} "
        "epochs, with it {b:.0f} % after {n}",
        when=a + 10 < b, a=a, b=b, m=last.epoch, n=there.epoch,
    )  # fmt: skip
    note = lenet_figure.workload(without)
    runs = [without[0], normal[0]]
    picture = page.new(title, note, runs, (7.6, 3.2), columns=2)
    for axes, name, frame in zip(picture.axes, ("without", "with"), (last, there)):
        halves = numpy.split(gan.fixed_faces(frame), 2, axis=1)
        gan.show(axes, numpy.concatenate(halves), name)
    return picture


@answers("gan/quality", "gan/book-cpu2", "h200/gan/sharp-gpu?")
def quality(cores: list[Run], gpus: list[Run]) -> Picture:
    """How good are the faces, beside sets that everybody can judge?"""
    known = comparison.references(gpus[0])
    ends = [comparison.final_quality(run) for run in (*cores, *gpus)]
    title = claim(
        "Generated faces are nearer to the real ones than noise, {a:.0f} to {b:.0f} "
        "times as far as other real faces",
        when=max(ends) < known["noise"]["frechet"],
        a=min(ends) / known["other real faces"]["frechet"],
        b=max(ends) / known["other real faces"]["frechet"],
    )  # fmt: skip
    note = (
        "Fréchet distance of random features; coverage: share of real faces; batch 64"
    )
    picture = page.new(title, note, cores + gpus, (10.5, 4.4), columns=2)
    gan.quality(picture.axes, [*gpus, *cores], ["1 H200", "2 H200s", "2 cores"])
    return picture


# Chapter 12: low precision; chapter 14: several machines


@answers("low_precision/book-1thread-cpu1-precision", "low_precision/book-1thread-cpu1")
def precision(runs: list[Run]) -> Picture:
    """What does int8 gain, and what does it cost?"""
    rows = [row for row in merged(runs[0].lines_of(PrecisionRecord)) if row.supported]
    base = baseline(rows)
    calibrated = [
        row
        for row in rows
        if row.weights == "trained"
        and row.precision.startswith("int8")
        and not row.precision.endswith("none")
    ]
    scaled = [row.images_per_sec / base.images_per_sec for row in calibrated]
    lost = max(base.test_acc - row.test_acc for row in calibrated)
    stretched = [row.test_acc for row in rows if row.weights == "stretched"]
    worst = base.test_acc - min(stretched)
    title = claim(
        "Calibrated int8 is {a:.1f} to {b:.1f} times as fast and loses at most "
        "{lost:.1f} points; an outlier channel costs up to {c:.0f}",
        when=0 < lost < 0.005 < worst and min(scaled) > 2,
        a=min(scaled), b=max(scaled), c=100 * worst, lost=100 * lost,
    )  # fmt: skip
    return low_precision.picture(runs[0], title)


@answers(
    "multiple_machines/book-2workers-sharing", "multiple_machines/book*-2workers-*"
)
def sharing(runs: list[Run]) -> Picture:
    """What do cheaper ways to share gradients save?"""
    ways = group(runs, lambda run: run.header.variant)
    sent, times = {}, {}
    for way, same in ways.items():
        epochs = [epoch for run in same for epoch in timed_epochs(run)]
        sent[way] = median(epoch.wire_bytes or 0 for epoch in epochs)
        times[way] = summarize([epoch.seconds for epoch in epochs])
    title = claim(
        "2 bits per gradient send {p:.0f} % of the bytes; on one machine that saves no "
        "time",
        when=sent["2bit"] < 0.7 * sent[""] and not apart(times["2bit"], times[""]),
        p=100 * sent["2bit"] / sent[""],
    )  # fmt: skip
    return workers.picture(runs, title)


# Peers


@answers("peers/custom-cpu2", "peers/custom-cpu2")
def peers(runs: list[Run]) -> Picture:
    """How fast is d2lpar beside PyTorch and d2l?"""
    arms = {arm.name: summarize(arm.seconds) for arm in arm_times(runs[0])}
    ours, plain, book = (
        arms[name]
        for name in ("d2lpar concise, 2 contexts, 1 thread each",
                     "PyTorch, plain loop, 2 threads", "d2l's notebook loop, 2 threads")
    )  # fmt: skip
    title = claim(
        "PyTorch's plain loop takes {a:.2f} of the time of d2lpar's two contexts, "
        "d2l's notebook "
        "{b:.1f} times it",
        when=apart(plain, ours) and apart(ours, book),
        a=plain.median / ours.median, b=book.median / ours.median,
    )  # fmt: skip
    return benchmark.picture(runs[0], title)


@answers(
    "h200/peers/custom-gpu2", "h200/peers/custom-gpu2", "h200/peers_8192/custom-gpu2"
)
def peers_on_gpus(small: list[Run], large: list[Run]) -> Picture:
    """How fast is d2lpar beside PyTorch and d2l on H200s?"""
    gains = []
    for runs in (small, large):
        arms = {arm.name: median(arm.seconds) for arm in arm_times(runs[0])}
        gains.append([
            seconds / arms[name.replace("1 GPU", "2 GPUs")]
            for name, seconds in arms.items()
            if name.replace("1 GPU", "2 GPUs") != name
            and name.replace("1 GPU", "2 GPUs") in arms
        ])  # fmt: skip
    title = claim(
        "In every library a second H200 pays at a batch of 8,192 ({a:.1f} to {b:.1f} "
        "times as fast), "
        "and not at 256",
        when=max(gains[0]) < 1.02 and min(gains[1]) > 1.2,
        a=min(gains[1]), b=max(gains[1]), at_256=max(gains[0]),
    )  # fmt: skip
    note = (
        f"an epoch of LeNet, 60,000 images; n = 5, of one process · "
        f"{labels.machine(small[0].header)}"
    )
    panels = [arm_times(runs[0]) for runs in (small, large)]
    counts = list(map(len, panels))
    size = (7.6, 1.6 + 0.36 * sum(counts))
    picture = page.new(title, note, small + large, size, rows=2, height_ratios=counts)
    for axes, arms, batch in zip(picture.axes, panels, ("256", "8,192")):
        page.dots(axes, list(map(benchmark.row, arms)), "s")
        axes.set_title(f"global batch {batch}")
    return picture
