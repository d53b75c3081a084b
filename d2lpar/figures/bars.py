"""A benchmark's picture: one bar per arm, the fastest first, and every sample."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import Run, group


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """One benchmark as ``<stem>.png`` and ``.svg``, one panel per work.

    Raises :class:`RecordError` for several records of one benchmark.
    """
    if len(runs) > 1:
        raise RecordError(
            f"{' and '.join(map(labels.where, runs))}: records of one benchmark, "
            f"{stem}; name one of them"
        )
    (run,) = runs

    def fastest_first(arm: ArmTimes) -> float:
        return median(arm.seconds) if arm.seconds else float("inf")

    works = {
        work: sorted(arms, key=fastest_first)
        for work, arms in group(arm_times(run), lambda arm: arm.work).items()
    }
    columns = min(len(works), 2)
    names = list(works)
    rows_of_panels = [names[k : k + columns] for k in range(0, len(names), columns)]
    heights = [
        max(page.bars_height(list(map(_bar, works[work]))) for work in row)
        for row in rows_of_panels
    ]
    width = 6.2 if columns > 1 else page.WIDE + 0.6
    gaps = 0.25 * len(rows_of_panels) if columns > 1 else 0
    header = run.header
    machine = labels.hardware([header])
    if header.on_gpus:
        machine = ", ".join([*dict.fromkeys(header.on_gpus), *labels.gpu_words(header)])
    picture = page.new(
        f"Seconds for {header.work}",
        machine,
        f"Bars: medians; whiskers: quartiles; dots: samples. {labels.stamp([header])}",
        panels=columns,
        rows=len(rows_of_panels),
        size=(columns * width, sum(heights) + gaps),
        height_ratios=heights,
    )
    most = [max(len(works[work]) for work in row) for row in rows_of_panels]
    for k, (work, axes) in enumerate(itertools.zip_longest(names, picture.axes)):
        if work is None:
            axes.set_axis_off()
            continue
        axes.set_title(work, weight="bold")
        rows = list(map(_bar, works[work]))
        page.bars(axes, rows, "s", width, most=most[k // columns])
    return page.save({stem: picture.figure}, folder)


def _bar(arm: ArmTimes) -> page.Bar:
    color = page.color_of(arm.name, arm.is_peer)
    return page.Bar(arm.name, arm.seconds, color, arm.why_not)
