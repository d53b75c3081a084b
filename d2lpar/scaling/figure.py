"""Scaling studies: where more devices pay, a step's time and parts, the all-reduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from d2lpar.figures import page
from d2lpar.records import labels
from d2lpar.records.kinds import Run
from d2lpar.records.rule import Comparison
from d2lpar.scaling.model import Study, all_reduces, break_even, studies
from d2lpar.scaling.result import comparisons, name_of
from d2lpar.text import number, plural

BRACKET = "medians and quartiles; band: the bracket of several devices"
PARTS = {  # of a step; an update and its all-reduce are measured as one difference
    "split and copy": (("split and copy",), {"color": "0.8"}),
    "forward": (("forward",), {"color": page.OTHERS[0]}),
    "backward": (("backward",), {"color": page.OTHERS[1]}),
    "all-reduce and update": (("all-reduce", "update"), {"color": page.SUMS}),
}


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw what the runs hold: ``speedup``, ``steps``, ``parts``, ``all-reduce``."""

    def new(title: str, words: str, columns: int = 1) -> page.Picture:
        size = (max(7.6, 4.6 * columns), 4.2)
        note = labels.subtitle(words, runs)
        return page.new(title, note, runs, size, columns=columns, sharey=True)

    drawn: dict[str, page.Picture] = {}
    found = studies(runs)
    if any(comparisons(study, n) for study in found for n in study.counts[1:]):
        title = page.answer(answers, "speedup", "Speedup of a step over one device")
        drawn["speedup"] = new(
            title, "LeNet; lines through marks: 95 % intervals; filled: told"
        )
        speedup(drawn["speedup"].axes[0], found)
    drawn["steps"] = new("Time of a step", f"LeNet; {BRACKET}", len(found))
    for axes, study in zip(drawn["steps"].axes, found):
        steps(axes, study)
        axes.set_title(name_of(study))
    if batches := {batch for study in found for _, batch in study.parts}:
        title = "Where the time of a step goes"
        drawn["parts"] = new(title, "LeNet, each part by omission", len(batches))
        parts(drawn["parts"].axes, found)
        inks = drawn["parts"].axes[0].get_legend_handles_labels()
        drawn["parts"].legend(*inks, loc="outside right upper")
    if all_reduces(runs):
        title = "The same all-reduce in several ways"
        drawn["all-reduce"] = new(title, "results checked")
        all_reduce(drawn["all-reduce"].axes[0], runs)
    return drawn


def speedup(
    axes: Axes, found: Sequence[Study], names: Sequence[str] | None = None
) -> None:
    """Draw speedups over one device by global batch, with the rule's intervals.

    `names` are written at the ends of the studies' lines. A line says where it crosses.
    """
    ends, crossings = {}, []
    for s, study in enumerate(found):
        for k, n in enumerate(study.counts[1:], 1):
            if not (gains := comparisons(study, n)):
                continue
            color = page.COUNTS[(s + k) % len(page.COUNTS)]
            if study.name == "ddp":
                color = page.LIBRARIES["PyTorch"]
            marker, ls = page.MARKERS[s + k - 1], page.LINES[s + k - 1]
            verdicts(axes, gains, color=color, marker=marker, ls=ls)
            name = names[s] if names else f"{name_of(study)}, {n} devices"
            ends[f"{page.SIGNS[marker]} {name}"] = gains[max(gains)].ratio
            crossing = break_even({batch: c.ratio for batch, c in gains.items()})
            if crossing and crossing > min(gains):
                crossings.append(crossing)
    for crossing in crossings:  # lines rise: beside the first is room above, then below
        place = (-24, 5) if crossing == min(crossings) else (6, -12)
        look = {"textcoords": "offset points", "size": 9, "color": page.PALE}
        axes.annotate(f"{crossing:,.0f}", (crossing, 1), place, **look)
    axes.axhline(1, color=page.INK, lw=1)
    across = {"transform": axes.get_yaxis_transform()}
    axes.add_artist(Rectangle((0, 1e-3), 1, 1 - 1e-3, color="0.93", zorder=0, **across))
    axes.text(0.5, 0.03, "slower", ha="center", transform=axes.transAxes)
    page.log_along(axes, "x", base=2)
    page.log_along(axes, "y", base=2)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}\u00d7")
    axes.set(xlabel="global batch size", ylabel="speedup over 1 device")
    page.name_beside(axes, ends)


def verdicts(axes: Axes, found: Mapping[Any, Comparison], **style) -> None:
    """Draw ratios by size with their intervals: filled is told, hollow is not."""
    style = {"ms": 6, "lw": 1.2, **style}
    marks = {"color": style["color"], "marker": style["marker"], "ms": style["ms"]}
    sizes = list(found)
    axes.plot(sizes, [c.ratio for c in found.values()], **style, mew=0)
    for size, c in found.items():
        axes.plot([size, size], [c.low, c.high], color=style["color"], lw=1)
        axes.plot(size, c.ratio, **marks, mfc=style["color"] if c.is_told else "white")


def steps(axes: Axes, study: Study) -> None:
    """Draw milliseconds of a step by batch, and the bracket of several devices."""
    for k, n in enumerate(study.counts):
        color = page.count_color(k)
        ms = [
            (batch, [1e3 * s for s in study.seconds(n, batch).samples])
            for batch in study.batches
            if (n, batch) in study.records
        ]
        style = {"marker": page.MARKERS[k], "ls": page.LINES[k], "lw": 1.2}
        page.quartiles(axes, ms, label=plural(n, "device"), color=color, **style)
        if n > 1 and (bounds := study.bracket(n)):
            low, high = ([1e3 * s for s in side] for side in zip(*bounds.values()))
            axes.fill_between(list(bounds), low, high, alpha=0.25, lw=0, color=color)
    page.log_along(axes, "x", base=2)
    page.log_along(axes, "y")
    axes.set(xlabel="global batch size", ylabel="milliseconds per step")
    axes.legend()


def parts(panels: Sequence[Axes], found: Sequence[Study]) -> None:
    """Draw a step's milliseconds: a panel per batch, a stacked row per study."""
    batches = sorted({batch for study in found for _, batch in study.parts})
    for axes, batch in zip(panels, batches):
        rows = {
            f"{name_of(study)}, {plural(n, 'device')}": study.parts[n, batch]
            for study in found
            for n in study.counts
            if (n, batch) in study.parts
        }
        left = numpy.zeros(len(rows))
        for part, (names, style) in PARTS.items():
            ms = [1e3 * sum(row[name] for name in names) for row in rows.values()]
            axes.barh(list(rows), ms, 0.6, left, label=part, ec="white", **style)
            left += ms
        for k, whole in enumerate(left):
            axes.text(1.02 * whole, k, number(whole), va="center")
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.2 * max(left)))
        axes.set_xlabel(f"ms, global batch {batch:,}")
        axes.grid(False, axis="y")


def all_reduce(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw GB/s of one array by bytes and variant.

    As NCCL counts: 2 (n - 1) / n times the bytes of a device, divided by the time.
    """
    measured = all_reduces(runs)
    count = max(n for n, _, _ in measured)
    rows = {key[2]: row for key, row in measured.items() if key[:2] == (count, 1)}
    found = dict.fromkeys(v for row in rows.values() for v in row if row[v].n)
    for k, variant in enumerate(found):
        points = []
        for size, row in sorted(rows.items()):
            bus = 2 * (count - 1) / count * size / 1e9
            samples = row[variant].samples if variant in row else ()
            if samples:
                points.append((size, [bus / s for s in samples]))
        page.quartiles(axes, points, **page.look(k, ms=4, lw=1.4, label=variant))
    page.bytes_along(axes, "bytes of an array on each device")
    page.log_along(axes, "y")
    axes.set_ylabel("GB/s of the bus")
    axes.legend(loc="lower right")  # at their ends the lines lie on each other
