"""Solvers of least squares: error, distance to the optimum, time by device count."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.least_squares.result import (
    AVERAGING,
    comparable,
    knows_optimum,
    least_of,
    repeats,
)
from d2lpar.records.kinds import PointRecord, Run, group

METHODS = ("normal", "cgls", "tsqr", "gradient", *AVERAGING)  # in their colours' order


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw runs of several methods and device counts, on the most devices of each.

    ``devices``, the seconds on each number of devices, if there are several;
    ``distance`` to the optimum against seconds, or ``residual`` if the optimum is not
    known; and if a method averages ``error`` (the figure of the least-squares notes).
    `answers` title them. Raises :class:`RecordError` for a run without points.
    """
    for run in runs:
        if not run.lines_of(PointRecord):
            raise RecordError(f"{labels.where(run)}: holds no points of a solver")
    size = [runs[0].header.settings.get(name) for name in ("rows", "columns")]
    words = "min ||A x - b||"
    if None not in size:
        words += ", A of {:,} \u00d7 {:,}".format(*size)
    note = labels.subtitle(words, runs)
    drawn: dict[str, page.Picture] = {}
    if len({run.header.num_devices for run in runs}) > 1:
        rows = rows_by_count(runs)
        title = "Seconds to solve, by method and number of devices"
        title = page.answer(answers, "devices", title)
        drawn["devices"] = picture = page.new(
            title, note, runs, (7.6, page.height(len(rows)))
        )
        page.dots(picture.axes[0], rows, "s")
    most = most_devices(runs)
    if knows_optimum(runs):
        title = "Distance to the optimum against seconds"
        title = page.answer(answers, "distance", title)
        drawn["distance"] = picture = page.new(title, note, most)
        distances(picture.axes[0], most)
    else:
        title = f"||A x - b|| reaches {least_of(runs):.2f}"
        title = page.answer(answers, "residual", title)
        drawn["residual"] = picture = page.new(title, note, most)
        residuals(picture.axes[0], most)
    averaging = [run for run in most if run.header.variant in AVERAGING]
    if averaging:
        title = f"Error of each device's x above the optimum, {least_of(runs):.2f}"
        drawn["error"] = picture = page.new(title, note, averaging)
        errors(picture.axes[0], averaging, least_of(runs))
    return drawn


def most_devices(runs: Sequence[Run]) -> list[Run]:
    """Return of every method the run on the most devices."""
    by_method = group(runs, lambda run: run.header.variant).values()
    return [max(same, key=lambda run: run.header.num_devices) for same in by_method]


def _method(run: Run) -> str:
    return run.header.variant.replace("-", " ")


def _look(run: Run, **others) -> dict:
    method = run.header.variant
    known = METHODS.index(method) if method in METHODS else len(METHODS)
    return page.look(known, label=_method(run), **others)


def errors(axes: Axes, runs: Sequence[Run], least: float) -> None:
    """Draw ||A x - b|| of each device's x above the least of all, against the epoch."""
    for run in runs:
        points = repeats(run)[0]
        recorded = min(len(p.device_residual_norms) for p in points)
        for device, label in enumerate(run.header.devices[:recorded]):
            above = [p.device_residual_norms[device] - least for p in points]
            style = _look(run, markevery=max(1, len(points) // 8))
            style.update(ls=page.LINES[device % 5], mfc="white" if device else None)
            style["label"] += f", {label.split()[0]}"
            axes.plot([p.iteration for p in points], above, **style)
    page.epochs_along(axes)
    page.log_along(axes, "y")
    axes.set_ylabel("||A x - b|| above the optimum")
    axes.legend()


def distances(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw ||x - x*|| / ||x*|| against seconds of work, of every repeat."""
    for run in runs:
        for number, points in enumerate(repeats(run)):
            points = [p for p in points if p.distance]
            style = _look(run, lw=1.2, ms=4, markevery=len(points) // 8 or 1)
            style["label"] = None if number else _method(run)
            x, y = [p.seconds for p in points], [p.distance for p in points]
            axes.plot(x, y, **style)
    axes.axhline(1, **page.LIMIT)
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.set_xlabel("seconds")
    axes.set_ylabel("distance to the optimum; 1: x = 0")
    axes.legend(loc="lower left")


def residuals(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw ||A x - b|| above the least against seconds, where x* is not known."""
    least = least_of(runs)
    for run in runs:
        points = [p for p in repeats(run)[0] if p.residual_norm > least]
        above = [p.residual_norm - least for p in points]
        axes.plot([p.seconds for p in points], above, **_look(run))
    page.log_along(axes, "y")
    axes.set(xlim=(0, None), xlabel="seconds")
    axes.set_ylabel("||A x - b|| above its end")
    axes.legend()


def row_name(run: Run) -> str:
    """Return the method, and on how many devices."""
    return f"{_method(run)}, {labels.count(run.header)}"


def rows_by_count(runs: Sequence[Run]) -> list[page.Row]:
    """Return rows of seconds to the end on each number of devices, by method."""
    rows = []
    for same in comparable(runs):
        seconds = [[points[-1].seconds for points in repeats(run)] for run in same]
        rows += page.by_count(dict(zip(map(row_name, same), seconds)))
    return rows
