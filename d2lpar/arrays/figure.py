"""Timings of array work: two clocks side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from d2lpar.arrays.result import TITLES, Row, fastest_forms, rows
from d2lpar.figures import page
from d2lpar.records import labels
from d2lpar.records.kinds import Run

SHORT = {"x2": "\u00d72", "sum": "sum", "trig": "sin²/cos²", "product": "product"}


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``clocks`` of the fastest forms, titled by `answers`."""
    shown = fastest_forms(rows(runs))
    if not shown:
        return {}
    title = page.answer(answers, "clocks", "Array work, two clocks")
    note = "dot: devices have finished; tick: calls have returned; fastest forms"
    size = (7.6, page.height(len(shown)))
    picture = page.new(title, labels.subtitle(note, runs), runs, size)

    def in_words(row: Row) -> str:
        return ", ".join(filter(None, (TITLES[row.operation], row.library, row.where)))

    clocks(picture.axes[0], shown, in_words)
    return {"clocks": picture}


def clocks(axes: Axes, table: Sequence[Row], name: Callable[[Row], str]) -> None:
    """Draw rows: a tick where the calls return, a dot where the work has ended."""
    shown = []
    for row in table:
        note = f"{factor(row.seconds.median / row.naive.median)}\u00d7"
        color = page.LIBRARIES.get(row.library, page.GREY)
        shown.append(page.Row(name(row), row.seconds, color, note, row.naive.median))
    page.dots(axes, shown, "s", log=True)


def factor(ratio: float) -> str:
    """Return a ratio in two digits: "2.6", "1,600"."""
    return f"{float(f'{ratio:.2g}'):,g}"
