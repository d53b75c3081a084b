"""Two runs side by side: accuracy or quality on the left, seconds on the right."""

from __future__ import annotations

from d2lpar.figures import page, training
from d2lpar.records import comparison
from d2lpar.records.comparison import Comparison
from d2lpar.records.kinds import Run, timed_epochs
from d2lpar.text import number


def picture(a: Run, b: Run, compared: Comparison) -> page.Picture:
    """Accuracies or quality, and timed epochs, labelled by what differs."""
    runs, (low, high) = (a, b), compared.spread
    title = f"Samples per second of b over a: {number(compared.speedup)} "
    title += f"({low:.2f} to {high:.2f} by the quartiles)"
    note = f"Different in a and b: {'; '.join(compared.differences) or 'nothing else'}."
    drawn = page.new(title, note, runs, (10.5, 4.2), columns=2)
    left, right = drawn.axes
    if comparison.is_gan(a):
        values_of, label = comparison.quality_by_epoch, "Fréchet distance"
        training.curves(left, runs, values_of, label, names=("a", "b"))
        page.log_along(left, "y")
    else:
        training.curves(left, runs, names=("a", "b"))
    rows = []
    sides = zip("ab", runs, (compared.a, compared.b), training.colors(runs))
    for name, run, side, color in sides:
        seconds = [epoch.seconds for epoch in timed_epochs(run)]
        rows.append(page.Row(f"{name}: {side.label}", seconds, color))
    page.dots(right, rows, "s")
    return drawn
