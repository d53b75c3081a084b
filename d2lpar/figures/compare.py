"""Two runs side by side: accuracy or quality on the left, seconds on the right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from d2lpar.figures import page, training
from d2lpar.records.kinds import Run
from d2lpar.text import number


@page.plain_style()
def draw(a: Run, b: Run, compared: Any, folder: Path, stem: str) -> list[Path]:
    """``<stem>.png`` and ``.svg``, labelled by what differs; return both paths.

    `compared` is their :class:`d2lpar.cli.compare.Comparison`.
    """
    runs = (a, b)
    low, high = compared.spread
    picture = page.new(
        f"Samples per second of b over a: {number(compared.speedup)} "
        f"({low:.2f} to {high:.2f} by the quartiles)",
        training.workload(runs),
        f"Different in a and b: {'; '.join(compared.differences) or 'nothing else'}.",
        panels=2,
    )
    left, right = picture.axes
    training.accuracy_curves(left, runs, ("a", "b"))
    rows = [
        training.second_bar(run, f"{name}: {side.label}", page.count_color(k))
        for k, (run, name, side) in enumerate(
            zip(runs, ("a", "b"), (compared.a, compared.b))
        )
    ]
    page.bars(right, rows, "s", 4.7)
    return page.save({stem: picture.figure}, folder)
