"""A benchmark's picture: a row per arm in the order they ran, with every sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import Run, group


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """One benchmark as ``<stem>.png``, a panel per work.

    Raises :class:`RecordError` for several records of one benchmark.
    """
    if len(runs) > 1:
        raise RecordError(
            f"{' and '.join(map(labels.where, runs))}: records of one benchmark, "
            f"{stem}; name one of them"
        )
    (run,) = runs
    return page.save({stem: picture(run, f"Seconds for {run.header.work}")}, folder)


def picture(run: Run, title: str) -> page.Picture:
    """The benchmark under a title: works below each other."""
    works = group(arm_times(run), lambda arm: arm.work)
    counts = [len(arms) for arms in works.values()]
    n = sorted({len(arm.seconds) for arms in works.values() for arm in arms})
    drawn = page.new(
        title,
        f"{run.header.work}; n = {' to '.join(map(str, n[:: len(n) - 1 or 1]))}; "
        f"{labels.machine(run.header)}",
        [run],
        (7.6, 1.1 + sum(0.6 + 0.32 * count for count in counts)),
        rows=len(works),
        height_ratios=counts,
    )
    for axes, (work, arms) in zip(drawn.axes, works.items()):
        axes.set_title(page.wrap(work, 80))
        page.dots(axes, list(map(row, arms)), "s")
    return drawn


def row(arm: ArmTimes, name: str = "") -> page.Row:
    """An arm's samples under its own or another name."""
    color = page.color_of(arm.name, arm.is_peer)
    return page.Row(name or arm.name, arm.seconds, color, arm.why_not)
