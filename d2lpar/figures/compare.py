"""Two runs side by side: accuracy or quality on the left, seconds on the right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar.figures import gan, training
from d2lpar.figures.page import new_page, plain_style, save
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(a: Run, b: Run, folder: Path, stem: str) -> list[Path]:
    """``<stem>.png`` and ``.svg``, labelled by what differs; return both paths.

    Raises :class:`~d2lpar.errors.RecordError` for runs that cannot be compared.
    """
    compared = comparison.compare(a, b)
    with plain_style():
        return save({stem: _two_runs(a, b, compared)}, folder)


def _two_runs(a: Run, b: Run, compared: comparison.Comparison) -> Figure:
    runs = (a, b)
    labels = [f"{x}: {s.label}" for x, s in (("a", compared.a), ("b", compared.b))]
    low, high = compared.spread
    differences = "; ".join(compared.differences) or "nothing else"
    page = new_page(
        wording.title(f"b is {compared.speedup:.2f} times as fast as a", runs),
        f"Speedup of b over a: {compared.speedup:.2f} ({low:.2f} to {high:.2f} by the "
        f"quartiles of both). Different in a and b: {differences}. "
        f"{wording.reading_curves(runs)} {wording.reading_bars(runs)} "
        f"{wording.provenance(runs)}",
        panels=2,
        keys=[f"{label}{training._final(run)}" for label, run in zip(labels, runs)],
        ticks=labels,
    )
    draw = gan.quality_curves if comparison.is_gan(a) else training._curves
    page.legend(draw(page.axes[0], runs))
    training._bars(page.axes[1], runs, page.ticks)
    page.axes[1].set_xlabel("run")
    return page.figure
