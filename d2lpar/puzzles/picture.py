"""A picture of the rounds of a solution: who sends how much to whom."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy

from d2lpar.puzzles.apart import file_of, in_one_line
from d2lpar.puzzles.cases import PUZZLES, WITH_ROUNDS
from d2lpar.puzzles.interconnect import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS, MOST = 4, 24  # pictures in a row, and in all


def draw(solution: Callable, num_devices: int = 4) -> Figure | None:
    """Draw each round of a solution, right or not, up to where it fails.

    An arrow is a message, labelled with its length in units of a device's array. Prints
    why, and returns None, if nothing can be drawn.
    """
    name = getattr(solution, "__name__", type(solution).__name__)
    if name not in WITH_ROUNDS:
        print(f"{name}: only {', '.join(WITH_ROUNDS)} have rounds of exchange")
        return None
    size = 4 * num_devices
    network, rng = (
        Network(num_devices, PUZZLES[name].route),
        numpy.random.default_rng(0),
    )
    case = PUZZLES[name].case(num_devices, size, rng, network.place)
    try:
        solution(*case.args, network.exchange)
    except NotImplementedError:
        print(f"{name}: not solved yet")
    except (Exception, SystemExit) as error:
        print(f"{name}: {in_one_line(error, file_of(solution))}")
    rounds = network.messages[:MOST]
    if len(rounds) < len(network.messages):
        print(f"{name}: the first {MOST} of {len(network.messages)} rounds")
    return _picture(name, num_devices, size, rounds) if rounds else None


def _picture(name: str, n: int, size: int, rounds: list) -> Figure:
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:  # a notebook shows it as a cell's result
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    columns = min(COLUMNS, len(rounds))
    rows = -(-len(rounds) // columns)
    figure = Picture(figsize=(2.2 * columns, 2.4 * rows), layout="constrained")
    figure.suptitle(f"{name} on {n} devices")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    angles = numpy.pi / 2 - 2 * numpy.pi * numpy.arange(n) / n
    places = numpy.stack([numpy.cos(angles), numpy.sin(angles)], axis=1)
    for panel in panels:
        panel.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
        panel.axis("off")
    for number, (panel, messages) in enumerate(zip(panels, rounds), 1):
        panel.set_title(f"round {number}", fontsize=10)
        for k, place in enumerate(places):
            panel.text(
                *place, str(k), ha="center", va="center",
                bbox={"boxstyle": "circle", "facecolor": "#dde6f0"},
            )  # fmt: skip
        for sender, to, elements in messages:
            start, end = places[sender], places[to]
            style = {"arrowstyle": "-|>", "shrinkA": 13, "shrinkB": 13,
                     "connectionstyle": "arc3,rad=0.25"}  # fmt: skip
            panel.annotate("", end, start, arrowprops=style)
            # Beside the bow of the arrow, which is to the right of its direction.
            x, y = end - start
            away = 1 / 8 + 0.15 / math.hypot(x, y)
            at = (start + end) / 2 + away * numpy.array([y, -x])
            share = str(Fraction(elements, size))
            panel.text(*at, share, ha="center", va="center", fontsize=9)
    return figure
