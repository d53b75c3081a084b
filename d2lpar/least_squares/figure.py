"""Solvers of least squares: error, distance to the optimum, time by device count."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.axes import Axes

from d2lpar.figures import page
from d2lpar.least_squares.result import (
    AVERAGING,
    FAILED,
    METHODS,
    comparable,
    in_order,
    least_of,
    reached,
    repeats,
    seconds_of,
)
from d2lpar.records import labels
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.rule import compare
from d2lpar.text import plural


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw what solvers found, as in the least-squares notes.

    ``devices`` has seconds on each number; ``distance`` that to the optimum, if known;
    ``error`` is there if a method averages.
    """
    runs = in_order(runs)
    words = "min ||A x - b||, A of {rows:,} \u00d7 {columns:,}"
    note = labels.subtitle(words.format(**runs[0].header.settings), runs)
    n = max(len(repeats(run)) for run in runs)
    most_devices = max((run.header for run in runs), key=lambda x: x.num_devices)
    of_most = f"{note} \u00b7 on {labels.count(most_devices)}, {plural(n, 'repeat')}"
    drawn: dict[str, page.Picture] = {}

    def new(name, title, runs, note=of_most) -> Axes:
        drawn[name] = page.new(page.answer(answers, name, title), note, runs)
        return drawn[name].axes[0]

    if len({run.header.num_devices for run in runs}) > 1:
        title = "Seconds to solve, by method and number of devices"
        failed = [name for name, arrives in reached(runs).items() if not arrives]
        slopes(new("devices", title, runs, note), runs, failed)
    by_method = group(runs, lambda run: run.header.variant).values()
    most = [max(same, key=lambda run: run.header.num_devices) for same in by_method]
    if any(p.distance is not None for run in runs for p in run.lines_of(PointRecord)):
        title = "Distance to the optimum against seconds"
        against_seconds(new("distance", title, most), most)
    averaging = [run for run in most if run.header.variant in AVERAGING]
    if averaging:
        title = f"Error of each device's x above the optimum, {least_of(runs):.2f}"
        errors(new("error", title, averaging), averaging, least_of(runs))
    return drawn


def _method(run: Run) -> str:
    return run.header.variant.replace("-", " ")


def _look(run: Run, **others) -> dict:
    return page.look(METHODS.index(run.header.variant), **others)


def errors(axes: Axes, runs: Sequence[Run], least: float) -> None:
    """Draw ||A x - b|| of each device's x above the least of all, against the epoch."""
    ends = {}
    for run in runs:
        points = repeats(run)[0]
        recorded = min(len(p.device_residual_norms) for p in points)
        for device, label in enumerate(run.header.devices[:recorded]):
            above = [p.device_residual_norms[device] - least for p in points]
            style = _look(run, markevery=max(1, len(points) // 8))
            style.update(ls=page.LINES[device % 5], mfc="white" if device else None)
            axes.plot([p.iteration for p in points], above, **style)
            ends[f"{_method(run)}, {label.split()[0]}"] = above[-1]
    page.epochs_along(axes)
    page.log_along(axes, "y")
    axes.set_ylabel("||A x - b|| above the optimum")
    page.name_beside(axes, ends)


def against_seconds(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw the distance to the optimum against seconds."""
    ends = {}
    for run in runs:
        for points in repeats(run):
            seconds = [p.seconds for p in points if p.distance]
            distances = [p.distance for p in points if p.distance]
            style = _look(run, lw=1.2, ms=4, markevery=len(seconds) // 8 or 1)
            axes.plot(seconds, distances, **style)
        if distances:
            ends[f"{page.SIGNS[style['marker']]} {_method(run)}"] = distances[-1]
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.axhline(1, **page.LIMIT)
    axes.set(xlabel="seconds", ylabel="distance to the optimum; 1: x = 0")
    page.name_beside(axes, ends)


def slopes(axes: Axes, runs: Sequence[Run], greyed: Collection[str] = ()) -> None:
    """Draw a line per method from its seconds on the fewest devices to the most.

    `greyed` are methods that did not converge.
    """
    ends = {}
    for same in comparable(runs):
        found = [seconds_of(run) for run in same]
        color = page.GREY if same[0].header.variant in greyed else page.OURS
        style = {"color": color, "ls": page.LINES[color == page.GREY]}
        for x, summary in enumerate(found):
            axes.plot([x] * summary.n, summary.samples, ".", color=color, alpha=0.45)
        gain = compare(found[0], found[-1])
        style["mfc"] = color if gain.is_told else "white"
        axes.plot([summary.median for summary in found], "o", **style)
        words = [_method(same[0]), page.times_as_fast(gain)]
        words += [FAILED] * (color == page.GREY)
        ends[", ".join(words)] = found[-1].median
    axes.set_xticks(range(len(same)), [labels.count(run.header) for run in same])
    axes.set_xlim(-0.15, len(same) - 0.95)
    axes.grid(False, axis="x")
    page.log_along(axes, "y")
    axes.set_ylabel("seconds")
    page.name_beside(axes, ends)
