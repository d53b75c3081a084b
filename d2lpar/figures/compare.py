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
        f"b trains {wording.times(compared.speedup)} as a ({low:.2f} to {high:.2f} "
        "by the quartiles)",
        training.workload(runs),
        f"Different in a and b: {differences}. {wording.reading_bars(runs)}",
        panels=2,
    )
    left, right = picture.axes
    curves = gan.quality_curves if comparison.is_gan(a) else training.accuracy_curves
    curves(left, runs, ("a", "b"))
    rows = [
        training.second_bar(run, label, page.count_color(k))
        for k, (run, label) in enumerate(zip(runs, labels))
    ]
    page.bars(right, rows, "s", 4.7)
    right.set_xlabel("seconds per epoch")
    return page.save({stem: picture.figure}, folder)
