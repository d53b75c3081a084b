"""Two runs side by side: accuracy or quality on the left, seconds on the right."""

from __future__ import annotations

from pathlib import Path

from d2lpar.figures import gan, page, training
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run


@page.plain_style()
def draw(a: Run, b: Run, folder: Path, stem: str) -> list[Path]:
    """``<stem>.png`` and ``.svg``, labelled by what differs; return both paths.

    Raises :class:`~d2lpar.errors.RecordError` for runs that cannot be compared.
    """
    runs, compared = (a, b), comparison.compare(a, b)
    labels = [f"{x}: {s.label}" for x, s in (("a", compared.a), ("b", compared.b))]
    low, high = compared.spread
    differences = "; ".join(compared.differences) or "nothing else"
    picture = page.new(
        runs,
        f"b is {compared.speedup:.2f} times as fast as a",
        f"Speedup of b over a: {compared.speedup:.2f} ({low:.2f} to {high:.2f} by the "
        f"quartiles of both). Different in a and b: {differences}. "
        f"{wording.reading_curves(runs)} {wording.reading_bars(runs)} ",
        panels=2,
        keys=[f"{label}{training.final(run)}" for label, run in zip(labels, runs)],
        ticks=labels,
    )
    left, right = picture.axes
    curves = gan.quality_curves if comparison.is_gan(a) else training.accuracy_curves
    picture.legend(curves(left, runs))
    training.second_bars(right, runs)
    right.set_xlabel("run")
    return page.save({stem: picture.figure}, folder)
