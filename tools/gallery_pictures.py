"""The pictures of figures/: each answers one question of a chapter, from its records.

A title states what was found and the condition under which that is so: if the records
contradict it, :func:`d2lpar.figures.page.claim` raises an error with their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

from matplotlib.axes import Axes

from d2lpar.arrays import figure as arrays
from d2lpar.arrays import table
from d2lpar.figures import bars, labels, page, training
from d2lpar.figures.page import Picture, claim
from d2lpar.gan import figure as gan
from d2lpar.least_squares import figure as least_squares
from d2lpar.low_precision import figure as low_precision
from d2lpar.low_precision.table import baseline, merged
from d2lpar.records import comparison, files
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.comparison import Summary, summarize
from d2lpar.records.kinds import FrameRecord, PrecisionRecord, Run, group, timed_epochs
from d2lpar.scaling import figure as scaling
from d2lpar.scaling.model import Study, all_reduces, studies
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


def apart(less: Summary, more: Summary) -> bool:
    """Whether the quartiles of two measurements do not overlap, in this order."""
    return less.q3 < more.q1


def machine(runs: Sequence[Run]) -> str:
    """The machine in a few words, for the title of a panel."""
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


# Chapters 2 and 3: from scratch and in Gluon


def pooled(runs: list[Run]) -> list[Run]:
    """One run for each number of devices, with the epochs of all random seeds."""
    by_count = group(runs, lambda run: run.header.num_devices)
    return [
        replace(same[0], lines=tuple(line for run in same for line in run.lines))
        for _, same in sorted(by_count.items())
    ]


def to_accuracy(runs: list[Run], enough: float = 0.80) -> Summary:
    """Seconds of training until a test accuracy, over the runs of several seeds."""
    found = []
    for run in runs:
        passed = list(accumulate(epoch.seconds for epoch in run.epochs))
        accuracies = [epoch.test_acc for epoch in run.epochs]
        first = next(k for k, acc in enumerate(accuracies) if acc >= enough)
        found.append(passed[first])
    return summarize(found)


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
    alone, both, on_gpu = map(to_accuracy, (one, two, gpu))
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
        training.curves(axes, runs, by_seconds=True)

    return side_by_side(title, note, draw, pooled(one + two), pooled(gpu + gpus))


@answers(
    "multiple_gpus/book-seconds",
    "multiple_gpus*/book-1thread-cpu1",
    "multiple_gpus*/book-cpu?",
    "h200/multiple_gpus*/book-gpu?",
)
def seconds(one_thread: list[Run], cores: list[Run], gpus: list[Run]) -> Picture:
    """How long does an epoch take on one and two devices?"""

    def of(runs: list[Run], chapter: str, count: int) -> Summary:
        (found,) = group(runs, lambda r: (r.header.chapter, r.header.num_devices))[
            chapter, count
        ]
        return comparison.seconds_per_epoch(found)

    both = ("multiple_gpus", "multiple_gpus_concise")
    title = claim(
        "Two contexts are {scratch:.1f} and {gluon:.1f} times as fast as one with as "
        "many "
        "threads; at this batch a second H200 gains nothing",
        when=all(apart(of(cores, c, 2), of(cores, c, 1)) for c in both)
        and not any(apart(of(gpus, c, 2), of(gpus, c, 1)) for c in both),
        scratch=of(cores, both[0], 1).median / of(cores, both[0], 2).median,
        gluon=of(cores, both[1], 1).median / of(cores, both[1], 2).median,
    )
    note = "LeNet on Fashion-MNIST, global batch 256; line: quartiles of 9 epochs"
    size = (7.6, 5.4)
    picture = page.new(
        title, note, one_thread + cores + gpus, size, rows=2, height_ratios=[6, 4]
    )
    for axes, runs in zip(picture.axes, (one_thread + cores, gpus)):
        runs = sorted(
            runs,
            key=lambda run: (
                run.header.chapter,
                run.header.num_devices,
                run.header.threads_per_device or 0,
            ),
        )
        rows = []
        for run in runs:
            name = f"{training.CHAPTERS[run.header.chapter]}, {training.where(run)}"
            times = [epoch.seconds for epoch in timed_epochs(run)]
            color = page.count_color(run.header.num_devices - 1)
            rows.append(page.Row(name, times, color))
        page.dots(axes, rows, "s")
        axes.set_title(machine(runs))
    return picture


# Chapter 4: arrays


def too_short(runs: list[Run]) -> list[float]:
    """How many times as long as its calls MXNet's work takes, by row."""
    found = [row for row in table.rows(runs) if row.library == "MXNet"]
    return [
        r.seconds.median / r.naive.median for r in found if r.operation in table.TITLES
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
    found, ratios = table.rows(runs), too_short(runs)
    sums = table.of("sum", found)
    host = table.fastest(row for row in sums if row.where == "CPU")
    gpu = table.fastest(row for row in sums if row.where != "CPU")
    assert host and gpu
    title = claim(
        "A small sum is {r:.0f} times as fast on the host as on an H200; a naive clock "
        "is "
        "short by up to {most:,.0f} times",
        when=apart(host.seconds, gpu.seconds) and max(ratios) > 100,
        r=gpu.seconds.median / host.seconds.median, most=round(max(ratios), -1),
    )  # fmt: skip
    return arrays.clocks(runs, title)


@answers("timing/roofline", "timing/book-cpu?", "h200/timing/book-gpu?")
def roofline(cores: list[Run], gpus: list[Run]) -> Picture:
    """How near does array work come to what the processor allows?"""
    shares = {}
    for name, runs in (("cores", cores), ("gpu", gpus)):
        one = [row for row in table.rows(runs) if row.num_devices == 1]
        twice = {r.form: r.gb_per_sec for r in table.of("x2", one)}
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
        arrays.roofline(axes, table.rows(runs), machine(runs).partition(",")[0])

    return side_by_side(title, note, draw, cores, gpus, sharey=False)


@answers("timing/copies", "timing/book-cpu?", "h200/timing/book-gpu?")
def copies(cores: list[Run], gpus: list[Run]) -> Picture:
    """How fast are copies to, from and between devices?"""

    def last(direction: str) -> table.Row:
        rows = table.of(direction, table.rows(gpus))
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


# Chapter 5: kernels


@answers("benchmarks/kernels", "benchmarks/kernels")
def kernels(runs: list[Run]) -> Picture:
    """Are kernels in CUDA C worth it on a CPU?"""
    # GB/s, so that the work is equal: NumPy works on one context's numbers alone.
    (run,) = runs
    rates: dict[tuple[str, str, str], list[float]] = {}
    for arm in arm_times(run):
        who, layout = arm.name.split(", ", 1)
        contexts = 2 if layout.startswith("2") and who != "NumPy" else 1
        num_bytes = 50_000_000 * contexts * (8 if arm.work.startswith("y") else 12)
        if not (who == "NumPy" and layout != "1 context, 1 thread"):  # uses no others
            rates[arm.work, who, layout] = [num_bytes / s / 1e9 for s in arm.seconds]
    of = {key: summarize(values) for key, values in rates.items()}
    both = [
        of[work, "kernel", layout].median / of[work, "loop in C", layout].median
        for work, who, layout in of
        if who == "kernel"
    ]
    update = next(work for work, *_ in of if work.startswith("p"))
    less = [
        of[update, "kernel", layout].median / of[update, "MXNet", layout].median
        for work, who, layout in of
        if (work, who) == (update, "kernel")
    ]
    title = claim(
        "A kernel keeps up with a loop in C; its update is {r:.0f} to {most:.0f} "
        "times as fast as MXNet's",
        when=0.8 < min(both) <= max(both) < 1.25 and min(less) > 2,
        r=min(less), most=max(less), least=min(both), best=max(both),
    )  # fmt: skip
    note = f"GB/s read and written, n = 21 · {machine(runs)}"
    works = list(dict.fromkeys(work for work, *_ in rates))
    counts = [sum(work == w for w, *_ in rates) for work in works]
    picture = page.new(title, note, runs, (7.6, 7.6), rows=2, height_ratios=counts)
    colors = {"kernel": page.OTHERS[0], "loop in C": page.INK, "MXNet": page.OURS}
    for axes, work in zip(picture.axes, works):
        rows = [
            page.Row(f"{who}, {layout}", values, colors.get(who) or page.color_of(who))
            for (w, who, layout), values in rates.items()
            if w == work
        ]
        page.dots(axes, rows, "GB/s", log=False)
        axes.set_title(work)
    return picture


# Chapter 6: scaling


def pays_between(found: Sequence[Study]) -> tuple[int, int]:
    """The batches below which two devices never pay, and from which on they always do.

    By the quartiles of the pairs, of all studies.
    """
    never, always = [], []
    for study in found:
        pairs = {b: summarize(p) for b, p in scaling.pairs_of(study, 2).items()}
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


@answers("scaling/parts", "scaling/book-1thread-*", "h200/scaling/book-1thread-*")
def parts(cores: list[Run], gpus: list[Run]) -> Picture:
    """Where does the time of a step go?"""
    steps = [p for study in studies(cores) for p in study.parts.values()]
    shares = [100 * p["backward"] / sum(p.values()) for p in steps]
    title = claim(
        "On cores the backward pass takes {a:.0f} to {b:.0f} % of a step",
        when=all(max(p, key=lambda part: p[part]) == "backward" for p in steps),
        a=min(shares), b=max(shares),
    )  # fmt: skip
    note = "LeNet, each part by omission: what is below its noise is drawn as nothing"
    picture = page.new(
        title, note, cores + gpus, (12, 6.4), rows=2, columns=3, sharey="row"
    )
    for panels, runs in ((picture.axes[:3], cores), (picture.axes[3:], gpus)):
        scaling.parts(panels, studies(runs))
        panels[0].set_title(machine(runs))
    inks = picture.axes[0].get_legend_handles_labels()
    picture.legend(*inks, loc="outside lower right", ncols=4)
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


@answers("least_squares/book-1thread-error", "least_squares/book-1thread-*-cpu2")
def error(runs: list[Run]) -> Picture:
    """How far from the optimum does averaging end?"""
    least = least_squares.least_of(runs)
    averaging = [run for run in runs if run.header.variant in least_squares.AVERAGING]
    ends = {
        run.header.variant: 100 * (run.lines[-1].residual_norm / least - 1)
        for run in averaging
    }
    title = claim(
        "Averaging ends {a:.0f} % above the optimum, as published {b:.0f} %",
        when=min(ends.values()) > 1,
        a=ends["averaging"], b=ends["averaging-as-published"],
    )  # fmt: skip
    note = labels.subtitle(
        "min ||A x - b||, A of 10,000 \u00d7 1,000; a line per device's x", runs
    )
    picture = page.new(title, note, averaging)
    least_squares.errors(picture.axes[0], averaging, least)
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
        "A of 100,000 \u00d7 10,000, in blocks; recorded iterations", runs
    )
    picture = page.new(title, note, runs)
    least_squares.residuals(picture.axes[0], runs)
    return picture


SOLVERS = {
    "normal on 2 contexts": page.look(0),
    "cgls on 2 contexts": page.look(1),
    "tsqr on 2 contexts": page.look(2),
    "numpy": {"color": page.LIBRARIES["numpy"], "marker": "s"},
    "numpy normal equations": {
        "color": page.LIBRARIES["numpy"], "marker": "*", "ms": 12, "ls": "",
    },
    "scipy gelsy": {"color": page.LIBRARIES["scipy"], "marker": "v", "ls": "--"},
    "dask": {"color": page.GREY, "marker": "x"},
}  # fmt: skip


@answers(
    "benchmarks/least_squares",
    "benchmarks/least_squares",
    "benchmarks/same_method/least_squares",
)
def beside_libraries(all_sizes: list[Run], same_method: list[Run]) -> Picture:
    """How do our solvers compare with NumPy, SciPy and Dask?"""
    arms = group(arm_times(all_sizes[0]), lambda arm: arm.work)
    own = group(arm_times(same_method[0]), lambda arm: arm.work)

    def faster(arms: list[ArmTimes], name: str, slower: str) -> bool:
        by_name = {arm.name: summarize(arm.seconds) for arm in arms if arm.seconds}
        return apart(by_name[name], by_name[slower])

    title = claim(
        "Normal equations beat an SVD from 10,000 rows on, d2lpar's and NumPy's own "
        "alike",
        when=all(
            faster(arms[work], "normal on 2 contexts", "numpy")
            for work in arms if work != "1,000 x 100"
        ) and not faster(arms["1,000 x 100"], "normal on 2 contexts", "numpy")
        and all(faster(own[w], "numpy normal equations", "numpy lstsq") for w in own),
    )  # fmt: skip
    note = labels.subtitle(
        "min ||A x - b||, medians and quartiles of 9 or 10", all_sizes
    )
    runs = all_sizes + same_method
    picture = page.new(title, note, runs, (10.5, 5), columns=2, sharey=True)
    points: dict[tuple[str, str], list] = {}
    seen: set[tuple[str, str, str]] = set()
    for work, found in (*arms.items(), *own.items()):
        rows, columns = work.split(" x ")
        for arm in found:
            if arm.name in SOLVERS and (columns, arm.name, rows) not in seen:
                seen.add((columns, arm.name, rows))  # own repeats some
                at = int(rows.replace(",", ""))
                points.setdefault((columns, arm.name), []).append((at, arm.seconds))
    for axes, columns in zip(picture.axes, ("100", "1,000")):
        for name, style in SOLVERS.items():
            at = sorted(points.get((columns, name), []))
            shown = {"numpy": "numpy lstsq (SVD)"}.get(name, name)
            page.quartiles(axes, at, label=shown, **style)
        page.log_along(axes, "x")
        page.log_along(axes, "y")
        axes.set(xlabel="rows", title=f"{columns} columns")
    picture.axes[0].set_ylabel("seconds")
    inks = picture.axes[0].get_legend_handles_labels()
    picture.legend(*inks, loc="outside right center")
    return picture


# Chapter 10: the GAN


def coverage(run: Run) -> float:
    """Percent of the real faces that are covered at the end."""
    return 100 * comparison.final_quality(run, "coverage")


def steps_of(run: Run) -> int:
    return run.of(FrameRecord)[-1].num_steps or 0


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
    distances = runs[0].of(FrameRecord)[-1].distances or []
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
    n = steps_of(without[0])
    by_steps = {f.num_steps: f.coverage for f in normal[0].of(FrameRecord)}
    there = 100 * by_steps[min(by_steps, key=lambda steps: abs(steps - n))]
    title = claim(
        "Without spectral normalisation {a:.0f} % of the faces are covered after {n:,} "
        "steps, "
        "with it {b:.0f} %",
        when=coverage(without[0]) + 10 < there, a=coverage(without[0]), b=there, n=n,
    )  # fmt: skip
    return gan.samples(without[0], title)


@answers(
    "h200/gan/custom-sync-batch-norm-strip",
    "h200/gan/custom-sync-batch-norm-gpu2",
    "h200/gan/sharp-gpu2",
)
def synchronised(runs: list[Run], own: list[Run]) -> Picture:
    """What does BatchNorm over both GPUs change?"""
    n = steps_of(runs[0])
    by_steps = {f.num_steps: f.coverage for f in own[0].of(FrameRecord)}
    there = 100 * by_steps[min(by_steps, key=lambda steps: abs(steps - n))]
    title = claim(
        "BatchNorm over both GPUs changes little by step {n:,}: {a:.0f} % of the faces "
        "are "
        "covered, with each GPU's own {b:.0f} %",
        when=abs(coverage(runs[0]) - there) < 5, a=coverage(runs[0]), b=there, n=n,
    )  # fmt: skip
    return gan.strip(runs[0], title)


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


@answers("benchmarks/gan", "benchmarks/gan", "h200/benchmarks/gan-wide")
def gan_steps(cores: list[Run], gpus: list[Run]) -> Picture:
    """How long does a step of the GAN take?"""
    panels = [arm_times(runs[0]) for runs in (cores, gpus)]
    ours, peer, one, two = (
        next(summarize(arm.seconds) for arm in arms if arm.name == name)
        for arms, name in (
            (panels[0], "2 contexts, 1 thread each"),
            (panels[0], "CryptoPunks notebook (PyTorch), 2 threads"),
            (panels[1], "1 GPU"), (panels[1], "2 GPUs"),
        )
    )  # fmt: skip
    title = claim(
        "On two threads a step is {r:.1f} times as fast as the notebook's; a second "
        "H200 does not pay at 64 faces",
        when=apart(ours, peer) and apart(one, two), r=peer.median / ours.median,
    )  # fmt: skip
    note = "both updates on one batch; line: quartiles, n = 30 and 16"
    picture = page.new(
        title, note, cores + gpus, (7.6, 5), rows=2, height_ratios=[5, 4]
    )
    for axes, arms, runs in zip(picture.axes, panels, (cores, gpus)):
        page.dots(axes, list(map(bars.row, arms)), "s", log=False)
        axes.set_title(f"{runs[0].header.work}; {labels.machine(runs[0].header)}")
    return picture


# Chapter 12: low precision; chapter 14: several machines


@answers("low_precision/book-1thread-cpu1-precision", "low_precision/book-1thread-cpu1")
def precision(runs: list[Run]) -> Picture:
    """What does int8 gain, and what does it cost?"""
    rows = [row for row in merged(runs[0].of(PrecisionRecord)) if row.supported]
    base = baseline(rows)
    trained = [row for row in rows if row.weights == "trained"]
    lost = max(base.test_acc - row.test_acc for row in trained)
    stretched = [row.test_acc for row in rows if row.weights == "stretched"]
    margin = 2 * low_precision.half_interval(base.test_acc, 10_000)
    scaled = [
        row.images_per_sec / base.images_per_sec
        for row in trained
        if row.precision.startswith("int8") and row.precision != "int8-none"
    ]
    worst = base.test_acc - min(stretched)
    title = claim(
        "Calibrated int8 is {a:.1f} to {b:.1f} times as fast, and as accurate within "
        "the test's "
        "error; an outlier channel costs up to {c:.0f} points",
        when=lost < margin < worst and min(scaled) > 2,
        a=min(scaled), b=max(scaled), c=100 * worst, lost=lost,
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
    return bars.picture(runs[0], title)


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
        page.dots(axes, list(map(bars.row, arms)), "s")
        axes.set_title(f"global batch {batch}")
    return picture


@answers("benchmarks/own_loop", "benchmarks/own_loop")
def own_loop(runs: list[Run]) -> Picture:
    """How fast are d2lpar's functions in a reader's own loop?"""
    arms = {(a.work, a.name): summarize(a.seconds) for a in arm_times(runs[0])}
    one, two = dict.fromkeys(work for work, _ in arms)
    title = claim(
        "On two contexts d2lpar's functions take {r:.2f} of the time of d2l's; on one "
        "they overlap",
        when=apart(arms[two, "d2lpar's functions"], arms[two, "d2l's functions"])
        and not apart(arms[one, "d2lpar's functions"], arms[one, "d2l's functions"]),
        r=arms[two, "d2lpar's functions"].median / arms[two, "d2l's functions"].median,
    )  # fmt: skip
    return bars.picture(runs[0], title)
