"""The pictures of figures/: each answers one question of a chapter, from its records.

A picture is what the subjects' figures draw of some records, under a title with the
condition under which it is true: if the records contradict it, :func:`claim` raises an
error with their numbers. A filled mark is told by the one rule, a hollow one cannot be
told; a line through a mark is the rule's interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import median

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
from d2lpar.low_precision import figure as low_precision
from d2lpar.low_precision.result import baseline, merged
from d2lpar.records import files, labels
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import (
    ArmSample,
    BenchmarkHeader,
    FrameRecord,
    PrecisionRecord,
    Run,
    group,
)
from d2lpar.records.measurements import references
from d2lpar.records.rule import Comparison, compare, of_turns
from d2lpar.scaling import figure as scaling
from d2lpar.scaling.model import all_reduces, studies
from d2lpar.scaling.result import comparisons, pays_from
from d2lpar.text import byte_size, number

FIGURES = Path(__file__).parents[1] / "figures"
WIDTH = 5.6  # inches: on a phone, 358 pixels wide, type of 10 points has 9 pixels
Runs = Sequence[Run]


PICTURES: dict[str, Callable[[], Picture]] = {}


def answers(file: str, *records: str):
    """Note a function of runs of these `records` as the drawing of ``<file>.png``."""

    def note(function: Callable[..., Picture]) -> Callable[..., Picture]:
        def draw() -> Picture:
            with page.plain_style():
                return function(*map(runs_of, records))

        PICTURES[file] = draw
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


def picture(title: str, words: str, runs: Runs, height: float, **grid):
    """A picture with empty panels, and the machines of its runs below."""
    machines = dict.fromkeys(machine(run) for run in runs)
    note = " \u00b7 ".join([words, *machines])
    return page.new(title, note, runs, (WIDTH, height), **grid)


def panels(
    title: str,
    words: str,
    groups: Sequence[Runs],
    height: float,
    draw: Callable[[Axes, Runs], None],
) -> Picture:
    """A panel for each group of runs below each other, under its machine."""
    runs = [run for same in groups for run in same]
    drawn = page.new(title, words, runs, (WIDTH, height), rows=len(groups))
    for axes, same in zip(drawn.axes, groups):
        draw(axes, same)
        axes.set_title(machine(same[0]))
    return drawn


def limit(axes: Axes, y: float, words: str) -> None:
    """A dashed line with words below its left end."""
    axes.axhline(y, **page.LIMIT)
    place = {"transform": axes.get_yaxis_transform(), "va": "top", "size": 9}
    axes.text(0.02, y, words, color="0.3", **place)


# One device and two


D2L = {"global_batch_size": 256, "seconds on 1": 1.8, "seconds on 2": 2.5}  # V100s


@answers(
    "multiple_gpus/two-devices",
    "scaling/book-*-concise-*",
    "gpus/scaling/book-*-concise-*",
)
def two_devices(cores: Runs, gpus: Runs) -> Picture:
    """From which batch on are two devices faster than one?"""
    found = [*studies(cores), *studies(gpus)]
    gains = [comparisons(study, 2) for study in found]
    pays = [pays_from(comparisons(study, 2)) or math.inf for study in found]
    title = claim(
        "Two cores surely pay from {core} images on, two GPUs from {gpu:,}",
        when=pays[0] < pays[1] < math.inf,
        by=[c for gain, b in zip(gains, pays) for k, c in gain.items() if k >= b],
        core=pays[0], gpu=pays[1],
    )  # fmt: skip
    words = (
        "LeNet in Gluon; filled: told; lines: 95 % intervals; \u25c6 d2l's, on V100s"
    )
    drawn = picture(title, words, [*cores, *gpus], 4.4)
    (axes,) = drawn.axes
    card = gpus[0].header.devices[0].split(" ", 1)[1].split()[1]
    scaling.speedup(axes, found, ["2 cores", f"2 GPUs, {card}"])
    axes.plot(
        D2L["global_batch_size"], D2L["seconds on 1"] / D2L["seconds on 2"],
        "D", ms=8, color=page.LIBRARIES["d2l"],
    )  # fmt: skip
    for gain, batch, at in zip(gains, pays, ((-16, 14), (22, -24))):
        place = {"textcoords": "offset points", "size": 10, "ha": "center"}
        axes.annotate(f"from {batch:,}", (batch, gain[batch].ratio), at, **place)
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
    drawn = picture(title, words, runs, 4.2)
    (axes,) = drawn.axes
    benchmark.errors(axes, runs[0])
    limit(axes, 1, "as large as the parameters")
    axes.set_ylabel("distance of parameters (relative)")
    axes.set_xlabel("steps of training on two devices")
    return drawn


@answers("benchmarks/memory", "benchmarks/memory")
def memory(runs: Runs) -> Picture:
    """How much memory does a training take, and can it be counted before?"""
    (run,) = runs
    samples = run.lines_of(ArmSample)
    curves = {
        arm: group(same, lambda x: x.batch_size, lambda x: x.peak_bytes / 2**20)
        for arm, same in group(samples, lambda x: x.arm).items()
    }
    counted = {x.batch_size: memory_estimate.of_sample(run, x) / 2**20 for x in samples}
    over = {
        arm: {b: 100 * (counted[b] / median(mib) - 1) for b, mib in curve.items()}
        for arm, curve in curves.items()
    }
    one, two = (max(over[arm].values()) for arm in ("1 context", "2 contexts"))
    title = claim(
        "The count is a bound: {one:.0f} % high on one context, {two:.0f} % on two",
        when=min(min(of.values()) for of in over.values()) > 0, one=one, two=two,
    )  # fmt: skip
    n = max(x.round for x in samples) + 1
    words = f"LeNet from scratch, 8,192 images, largest resident memory, n = {n}"
    drawn = picture(title, words, runs, 4.4)
    (axes,) = drawn.axes
    ends = {}
    for k, (arm, curve) in enumerate(curves.items()):
        points = [(b, median(mib)) for b, mib in curve.items()]
        axes.plot(*zip(*points), **page.look(k, color=page.COUNTS[k]))
        ends[f"{arm}, count up to {max(over[arm].values()):+.0f} %"] = points[-1][1]
    axes.plot(*zip(*counted.items()), color=page.INK, lw=1)
    ends["counted"] = counted[max(counted)]
    page.log_along(axes, "x", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    axes.set(ylim=(0, None), xlabel="global batch size", ylabel="MiB")
    page.name_beside(axes, ends)
    return drawn


@answers("timing/clocks", "timing/book-cpu1", "gpus/timing/book-gpu1")
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
        "A clock that does not wait reads {a} to {b} times too little",
        when=min(found) > 1, a=arrays.factor(min(found)), b=arrays.factor(max(found)),
    )  # fmt: skip
    words = "MXNet on one device; tick: calls have returned; dot: work has finished"
    return panels(
        title, words, (cores, gpus), 5.4,
        lambda axes, runs: arrays.clocks(
            axes, rows(runs), lambda row: arrays.SHORT[row.operation]
        ),
    )  # fmt: skip


# Communication


@answers("scaling/all-reduce", "scaling/book-*-concise-*", "gpus/scaling/book-*-conc*")
def all_reduce(cores: Runs, gpus: Runs) -> Picture:
    """Which all-reduce is fastest, by size?"""
    ways = {"ring": "ring", "kvstore device": "kvstore"}
    (lenet,) = {key[1:] for key in all_reduces(gpus) if key[1] > 1}

    def over_the_book(runs: Runs, way: str) -> dict[tuple[int, int], Comparison]:
        return {
            key[1:]: compare(row[way], row["book"])
            for key, row in sorted(all_reduces(runs).items())
            if key[0] == 2 and {way, "book"} <= row.keys() and row[way].n
        }

    ring, _ = (over_the_book(cores, way)[lenet] for way in ways)
    title = claim(
        "On two cores a ring takes {ring:.2g} times as long as the book's sum",
        when=ring.ratio > 1, by=[ring], ring=ring.ratio,
    )  # fmt: skip
    words = (
        f"lines: one array; {lenet[0]} arrays are LeNet's gradients, "
        f"{byte_size(lenet[1])}; filled: told, hollow: not told"
    )

    def draw(axes: Axes, runs: Runs) -> None:
        axes.axhline(1, color=page.INK, lw=1)
        ends = {}
        for k, (way, name) in enumerate(ways.items()):
            found = over_the_book(runs, way)
            line = {size: c for (count, size), c in found.items() if count == 1}
            style = page.look(k)
            scaling.verdicts(axes, line, **style)
            scaling.verdicts(axes, {2.0**29: found[lenet]}, **style)
            sign, ratio = page.SIGNS[style["marker"]], found[lenet].ratio
            ends[f"{sign} {name}: {ratio:.2g}\u00d7"] = ratio
        page.bytes_along(axes, "bytes of the array on each device")
        places = {2.0**k: byte_size(2**k) for k in (10, 15, 20, 25)}
        axes.set_xticks([*places, 2.0**29], [*places.values(), f"{lenet[0]} arrays"])
        axes.set_ylim(0.1, 20)
        page.log_along(axes, "y")
        axes.set_ylabel("times the book's all-reduce")
        page.name_beside(axes, ends)

    return panels(title, words, (cores, gpus), 6.8, draw)


@answers("benchmarks/local_sgd", "benchmarks/local_sgd")
def local_steps(runs: Runs) -> Picture:
    """What does it cost to average less often?"""
    samples = runs[0].lines_of(ArmSample)
    last = max(x.epoch for x in samples)
    ends = group([x for x in samples if x.epoch == last], lambda x: x.arm)
    accs = {arm: [x.test_acc for x in same] for arm, same in ends.items()}
    mib = {
        arm: median(x.wire_bytes for x in same) / 2**20 for arm, same in ends.items()
    }
    plain, always = "every step", "every step, outer momentum"
    rarely = "every epoch, outer momentum"
    turns = {arm: of_turns(of_arm) for arm, of_arm in accs.items()}
    gains = {arm: compare(of_arm, turns[plain]) for arm, of_arm in turns.items()}
    gain, loss = gains[always], compare(turns[always], turns[rarely])
    more = {arm: median(of_arm) - median(accs[plain]) for arm, of_arm in accs.items()}
    title = claim(
        "Outer momentum gains {gain:.2f} in accuracy, rare averages lose it again",
        when=gain.ratio > 1 < loss.ratio and {5} == {len(a) for a in accs.values()},
        by=[gain, loss], gain=more[always],
    )  # fmt: skip
    words = "LeNet, 12,800 images, batch 64, 3 epochs; 5 seeds; +: told over every step"
    drawn = picture(title, words, runs, page.height(len(ends)))
    (axes,) = drawn.axes
    rows = [
        page.Row(
            f"{arm}, {number(mib[arm])} MiB", of_arm,
            page.OTHERS[0] if "momentum" in arm else page.INK,
            f"{more[arm]:+.2f}" if gains[arm].is_told else "",
        )
        for arm, of_arm in accs.items()
    ]  # fmt: skip
    page.dots(axes, rows, "", log=False)
    axes.set_xlabel("test accuracy")
    axes.set_xlim(auto=True)
    axes.autoscale(axis="x")
    return drawn


@answers(
    "least_squares/methods",
    "least_squares/book-1thread-*-cpu?",
    "h200/least_squares/book-*-gpu?",
)
def methods(cores: Runs, gpus: Runs) -> Picture:
    """Which methods reach the optimum, and which sooner on two devices?"""
    missed = {run.header.variant for run in cores if run.lines[-1].distance > 1e-6}
    pairs = {
        same[0].header.variant: compare(seconds_of(same[0]), seconds_of(same[-1]))
        for same in comparable(cores)
        if same[0].header.variant not in missed
    }
    normal = pairs["normal"]
    title = claim(
        "A second core solves the normal equations {r:.1f} times as fast",
        when=normal.ratio > 1, by=[normal], r=normal.ratio,
    )  # fmt: skip
    words = "A of 10,000 \u00d7 1,000; factors: one device over two; filled: told"
    return panels(
        title, words, (cores, gpus), 7,
        lambda axes, runs: least_squares.slopes(axes, runs, missed),
    )  # fmt: skip


# The GAN


@answers(
    "gan/faces",
    "h200/seeds/gan/sharp-gpu1",
    "h200/seeds/gan/sharp-seed?-gpu1",
    "h200/seeds/gan/sharp-d-norm-none*gpu1",
)
def faces(first: Runs, more: Runs, without: Runs) -> Picture:
    """How do faces come out of noise, and what does spectral normalisation do?"""
    spectral = [*first, *more]
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
    drawn = picture(title, words, [*spectral, *without], 6.9, rows=2,
                    height_ratios=(2, 1))  # fmt: skip
    left, right = drawn.axes
    gan.strip(left, first[0])
    named = {
        f"with: {median(ends[0]):.0f} %": spectral,
        f"without: {median(ends[1]):.0f} %": without,
    }
    heights = {}
    for k, (name, runs) in enumerate(named.items()):
        for run in runs:
            at = [(f.num_steps, f.coverage) for f in frames[id(run)]]
            right.plot(*zip(*at), **page.look(k, marker="", lw=1.5))
        heights[name] = median(ends[k]) / 100
    limit(
        right, references(first[0])["other real faces"]["coverage"], "other real faces"
    )
    right.set(ylim=(0, 1.03), xlabel="steps of training")
    right.set_ylabel("share of real faces covered")
    right.set_xticks([0, 10_000, 20_000], ["0", "10,000", "20,000"])
    page.name_beside(right, heights)
    return drawn


@answers("gan/published", "gpus/gan/as-published-gpu1")
def published(runs: Runs) -> Picture:
    """What does the CryptoPunks notebook's recipe draw?"""
    (run,) = runs
    end = run.lines_of(FrameRecord)[-1]
    own, real = (
        100 * end.coverage,
        100 * references(run)["other real faces"]["coverage"],
    )
    title = claim(
        "The published recipe covers {a:.0f} % of faces, other real faces {b:.0f} %",
        when=end.num_steps == 4_000, a=own, b=real,
    )  # fmt: skip
    words = "4,000 steps on all 10,000 faces at once; above: eight noises in training"
    drawn = picture(title, words, runs, 8.4, rows=2)
    left, right = drawn.axes
    gan.strip(left, run)
    covered = f"at the end: {own:.0f} % covered; by other real faces: {real:.0f} %"
    gan.show(right, punks.from_png(end.samples, 5, 5), covered)
    return drawn


@answers("low_precision/precision", "low_precision/book-1thread-cpu1")
def precision(runs: Runs) -> Picture:
    """What does int8 gain, and what does it cost?"""
    rows = [row for row in merged(runs[0].lines_of(PrecisionRecord)) if row.supported]
    base = baseline(rows)
    lost = [
        100 * (base.test_acc - row.test_acc) for row in rows if row.weights == "trained"
    ]
    title = claim(
        "Int8 loses at most {c:.1f} points, with one stretched channel up to {d:.1f}",
        when=max(lost) < 1, c=max(lost),
        d=max(100 * (base.test_acc - row.test_acc) for row in rows),
    )  # fmt: skip
    return low_precision.picture(runs[0], title)


@answers(
    "peers/lenet",
    "peers/custom-cpu2",
    "gpus/peers/one/custom-gpu1",
    "gpus/peers/two/custom-gpu2",
)
def peers(cores: Runs, one: Runs, two: Runs) -> Picture:
    """How long do PyTorch, JAX and d2l take beside d2lpar in Gluon?"""
    rows: dict[str, Comparison] = {}
    for (run,), where in zip((cores, one, two), ("2 cores", "1 GPU", "2 GPUs")):
        arms = {arm.name: arm.summary for arm in arm_times(run) if arm.seconds}
        ours = min(
            (of for name, of in arms.items() if name.startswith("d2lpar concise")),
            key=lambda of: of.median,
        )
        for name, summary in arms.items():
            words = name.split(", ")
            if name.startswith("d2lpar") or "1 process" in name:
                continue
            short = ", ".join(words[:2] if where != "2 cores" else words[:1])
            rows.setdefault(f"{where}: {short}", compare(summary, ours))
    eager, graph = (rows[f"1 GPU: PyTorch, {form}"] for form in ("eager", "CUDA graph"))
    title = claim(
        "On a GPU PyTorch takes {a:.1f} times as long as ours, captured {b:.2f}",
        when=eager.ratio > 1 > graph.ratio, by=[eager, graph],
        a=eager.ratio, b=graph.ratio,
    )  # fmt: skip
    words = "an epoch of LeNet, batch 256, over ours in Gluon; filled: told"
    drawn = picture(title, words, [*cores, *one], page.height(len(rows)) + 0.3)
    (axes,) = drawn.axes
    axes.axvline(1, color=page.INK, lw=1)
    for k, (name, found) in enumerate(rows.items()):
        color = benchmark.color_of(name.partition(": ")[2], is_peer=True)
        axes.plot([found.low, found.high], [k, k], color=color, lw=2)
        fill = color if found.is_told else "white"
        axes.plot(found.ratio, k, "o", color=color, mfc=fill, ms=8)
        words = f"{found.ratio:.1f}" if found.ratio > 1 else f"{found.ratio:.2f}"
        axes.text(1.02, k, words, va="center", transform=axes.get_yaxis_transform())
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(False, axis="y")
    page.log_along(axes, "x", base=2)
    axes.set_xlim(0.25, 4.5)
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["0.25", "0.5", "1", "2", "4"])
    axes.set_xlabel("times ours; left of 1: faster")
    return drawn
