"""Two runs side by side: accuracy or quality on the left, seconds on the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from d2lpar.figures import page, training
from d2lpar.records.kinds import Run, timed_epochs
from d2lpar.text import number


@page.plain_style()
def draw(a: Run, b: Run, compared: Any, folder: Path, stem: str) -> list[Path]:
    """``<stem>.png``, labelled by what differs; return its path.

    `compared` is their :class:`d2lpar.cli.compare.Comparison`.
    """
    runs, (low, high) = (a, b), compared.spread
    picture = page.new(
        f"Samples per second of b over a: {number(compared.speedup)} "
        f"({low:.2f} to {high:.2f} by the quartiles)",
        f"Different in a and b: {'; '.join(compared.differences) or 'nothing else'}.",
        runs,
        (10.5, 4.2),
        columns=2,
    )
    left, right = picture.axes
    training.curves(left, runs, names=("a", "b"))
    rows = []
    for k, (name, run, side) in enumerate(zip("ab", runs, (compared.a, compared.b))):
        seconds = [epoch.seconds for epoch in timed_epochs(run)]
        rows.append(page.Row(f"{name}: {side.label}", seconds, page.count_color(k)))
    page.dots(right, rows, "s")
    return page.save({stem: picture}, folder)
