"""The curves of runs that are still going on, as a notebook shows them."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from d2lpar.figures import page

DOTS_PER_INCH = 90
MANY = 6  # names of runs: a legend of more would cover the curves


@page.plain_style()
def png(runs: Sequence[tuple[str, Sequence[Mapping[str, float]]]], title: str) -> bytes:
    """A panel for each curve of the runs, whose names are its keys, under the title.

    A run is its name and the points so far, at least one: values by label, the abscissa
    first, as :func:`d2lpar.cli.progress.curves` returns them. Runs of one name are
    repeats of each other and look alike.
    """
    abscissa, *labels = runs[0][1][0]
    names = list(dict.fromkeys(name for name, _ in runs))
    by_count = all(re.fullmatch(r"\d+ devices?", name) for name in names)
    beside = len(names) > MANY
    figure = Figure(figsize=(4.2 * len(labels) + 2.6 * beside, 3.1))
    figure.suptitle(page.wrap(title, 55 * len(labels)), size=10)
    for axes, label in zip(figure.subplots(1, len(labels), squeeze=False)[0], labels):
        for number, (name, points) in enumerate(runs):
            first = [name for name, _ in runs].index(name) == number
            k = names.index(name)
            look = page.look(k, label=name if first else None)
            if by_count:  # as in the pictures at the end
                look["color"] = page.count_color(k)
            axes.plot([p[abscissa] for p in points], [p[label] for p in points], **look)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set(xlabel=abscissa, ylabel=label)
    axes.legend(**({"loc": "upper left", "bbox_to_anchor": (1, 1)} if beside else {}))
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DOTS_PER_INCH)
    return written.getvalue()
