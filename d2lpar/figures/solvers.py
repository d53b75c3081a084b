"""Solvers of least squares: error, distance to the optimum, time by device count."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import wording
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.tables import plain_table

SMALLEST = 1e-16  # a distance of 0 has no place on a logarithmic axis
COLUMNS = ["method", "devices", "iterations", "seconds", "||A x - b||"]
COLUMNS += ["distance to x*"]


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """Draw runs of several methods and device counts; return the files written.

    ``<stem>-devices``, the seconds against the number of devices, where there are
    several; ``<stem>-distance`` to the optimum against seconds, or ``<stem>-residual``
    where the optimum is not known; where a method averages ``<stem>-error`` (the figure
    of the least-squares notes, a panel per device); and ``<stem>-results.txt``. Raises
    :class:`RecordError` for a run without points.
    """
    for run in runs:
        if not run.of(PointRecord):
            raise RecordError(f"{wording.where(run)}: holds no points of a solver")
    drawn = {}
    if len({run.header.num_devices for run in runs}) > 1:
        drawn["devices"] = _devices(runs)
    points = [point for run in runs for point in run.of(PointRecord)]
    shown, least = _most_devices(runs), _least(runs)
    if any(point.distance is not None for point in points):
        drawn["distance"] = _against_seconds(
            shown,
            "Distance to the optimum",
            "Distance: ||x - x*|| / ||x*||, x* by LAPACK.",
            lambda point: point.distance,
        )
    else:
        drawn["residual"] = _against_seconds(
            shown,
            "Residual above the least",
            f"How far ||A x - b|| is above the least of all, {least:.6g}, in parts of "
            f"it; the least itself is drawn at {SMALLEST:g}.",
            lambda point: (point.residual_norm - least) / (least or 1.0),
        )
    if any(map(_averages, runs)):
        drawn["error"] = _error(runs)
    drawn["results"] = results(runs)
    return page.save(drawn, folder, stem)


def results(runs: Sequence[Run]) -> str:
    """What the least-squares notes write to ``data_parallel_result.txt``, of all runs.

    A line per run: seconds (median of the repeats) and where its first repeat ended;
    then, where a method averages, the error of each device's own x, and the first
    numbers of the x that a run recorded.
    """
    rows, lists = [], []
    for run in runs:
        last = _first_repeat(run)[-1]
        distance = "not known" if last.distance is None else f"{last.distance:.1e}"
        seconds, error = wording.number(_seconds(run)), f"{last.residual_norm:.9g}"
        counts = (str(run.header.num_devices), str(last.iteration))
        rows.append((run.header.variant, *counts, seconds, error, distance))
        if _averages(run):
            lists.append((run, "error of each device's x", last.device_residual_norms))
        if last.extra.get("x_begins"):
            lists.append((run, "x begins", last.extra["x_begins"]))
    header = runs[0].header
    lines = [
        f"{header.chapter}, preset {header.preset}",
        f"least ||A x - b|| of all runs: {_least(runs):.9g}",
        "",
        plain_table(COLUMNS, rows),
    ]
    for run, what, values in lists:
        lines += ["", f"{_name(run)}: {what}", *(f"{value:.9g}" for value in values)]
    return "\n".join([*lines, "", textwrap.fill(wording.provenance(runs), 88), ""])


def _averages(run: Run) -> bool:
    return run.header.variant in ("averaging", "averaging-as-published")


def _least(runs: Sequence[Run]) -> float:
    return min(point.residual_norm for run in runs for point in run.of(PointRecord))


def _most_devices(runs: Sequence[Run]) -> list[Run]:
    """Of every method the run on the most devices."""
    by_method = group(runs, lambda run: run.header.variant).values()
    return [max(same, key=lambda run: run.header.num_devices) for same in by_method]


def _seconds(run: Run) -> float:
    """Seconds to the end, the median of the repeats."""
    by_repeat = group(run.of(PointRecord), lambda point: point.repeat)
    return median(points[-1].seconds for points in by_repeat.values())


def _first_repeat(run: Run) -> list[PointRecord]:
    return [point for point in run.of(PointRecord) if point.repeat == 0]


def _name(run: Run) -> str:
    """The method and the number of devices: "cgls, 2 devices"."""
    return f"{run.header.variant}, {wording.plural(run.header.num_devices, 'device')}"


def _error(runs: Sequence[Run]) -> Figure:
    """||A x - b|| of each of the first two devices' x against the epoch."""
    averaging = _most_devices([run for run in runs if _averages(run)])
    devices = averaging[0].header.devices
    picture = page.new(
        averaging,
        "Error of each device's x after each epoch",
        "Every device descends on its own rows; after each epoch all continue from the "
        f"average of all x. {'The first two devices. ' if len(devices) > 2 else ''}",
        panels=min(2, min(run.header.num_devices for run in averaging)),
        keys=["the best of all methods", *(run.header.variant for run in averaging)],
    )
    for number, axes in enumerate(picture.axes):
        lines = [axes.axhline(_least(runs), **page.DASHED)]
        for k, run in enumerate(averaging):
            points = [
                (point.iteration, point.device_residual_norms[number])
                for point in _first_repeat(run)
            ]
            style = page.look(k, markevery=max(1, len(points) // 10))
            lines += axes.plot(*zip(*points), **style)
        axes.set_xlabel(f"epoch on {devices[number].partition(' ')[0]}")
        axes.set_ylabel("error ||A x - b||")
    return picture.legend(lines)


def _against_seconds(
    shown: Sequence[Run],
    what: str,
    caption: str,
    value: Callable[[PointRecord], float | None],
) -> Figure:
    """A value of every point against the seconds of work it took, on log axes."""
    direct = any(len(_first_repeat(run)) == 1 for run in shown)
    picture = page.new(
        shown,
        f"{what} against time",
        f"{caption} Seconds of work after a warm-up, including the copy of A to the "
        f"devices. {'Direct methods are a single point. ' if direct else ''}",
        keys=[_name(run) for run in shown],
    )
    (axes,) = picture.axes
    lines = []
    for k, run in enumerate(shown):
        points = [p for p in _first_repeat(run) if value(p) is not None]
        lines += axes.plot(
            [point.seconds for point in points],
            [max(value(point), SMALLEST) for point in points],
            **page.look(k, ms=8 if len(points) == 1 else 4, clip_on=False),
        )
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel=f"{what} (relative)")
    return picture.legend(lines)


def _devices(runs: Sequence[Run]) -> Figure:
    """Seconds to the end against the number of devices, and the ideal line."""
    shared = [run for run in runs if not _averages(run)] or runs
    left_out = "Averaging is left out: more devices take more steps. "
    counts = sorted({run.header.num_devices for run in shared})
    curves = {
        method: sorted((run.header.num_devices, _seconds(run)) for run in same)
        for method, same in group(shared, lambda run: run.header.variant).items()
    }
    picture = page.new(
        shared,
        "Time to solve against the number of devices",
        f"Thin lines: ideal, the time on {wording.plural(counts[0], 'device')} divided "
        f"among all. {left_out if len(shared) < len(runs) else ''}",
        keys=[
            f"{method}: "
            + ", ".join(f"{wording.number(seconds)} s on {n}" for n, seconds in curve)
            for method, curve in curves.items()
        ],
    )
    (axes,) = picture.axes
    lines = []
    for k, curve in enumerate(curves.values()):
        drawn = axes.plot(*zip(*curve), **page.look(k))
        first, seconds = curve[0]
        ideal = [(n, seconds * first / n) for n, _ in curve]
        axes.plot(*zip(*ideal), color=drawn[0].get_color(), lw=0.6)
        lines += drawn
    axes.set(yscale="log", xlabel="number of devices", ylabel="seconds", xticks=counts)
    axes.margins(x=0.1)
    return picture.legend(lines)
