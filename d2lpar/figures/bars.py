"""A benchmark's picture: a row per arm in the order they ran, with every sample."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import Run, group


def pictures(runs: Sequence[Run]) -> dict[str, page.Picture]:
    """The picture of one benchmark; :class:`RecordError` for several records of it."""
    if len(runs) > 1:
        names = " and ".join(map(labels.where, runs))
        raise RecordError(f"{names}: records of one benchmark; name one of them")
    return {"": picture(runs[0], f"Seconds for {runs[0].header.work}")}


def picture(run: Run, title: str) -> page.Picture:
    """The benchmark under a title: works below each other."""
    works = group(arm_times(run), lambda arm: arm.work)
    counts = [len(arms) for arms in works.values()]
    n = sorted({len(arm.seconds) for arms in works.values() for arm in arms})
    samples = " to ".join(map(str, n[:: len(n) - 1 or 1]))
    note = f"{run.header.work}; n = {samples}; {labels.machine(run.header)}"
    size = (7.6, 1.1 + sum(0.6 + 0.32 * count for count in counts))
    drawn = page.new(title, note, [run], size, rows=len(works), height_ratios=counts)
    for axes, (work, arms) in zip(drawn.axes, works.items()):
        axes.set_title(page.wrap(work, 80))
        page.dots(axes, list(map(row, arms)), "s")
    return drawn


def row(arm: ArmTimes) -> page.Row:
    """An arm's samples under its name."""
    color = page.color_of(arm.name, arm.is_peer)
    return page.Row(arm.name, arm.seconds, color, arm.why_not)
