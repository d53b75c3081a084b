"""A solver's records to pictures: error, distance to the optimum, time by devices.

Only draws, like :mod:`d2lpar.figures`, whose :func:`~d2lpar.figures.draw` calls this
module for records that hold points in place of epochs. Never imports MXNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar import captions
from d2lpar.errors import RecordError
from d2lpar.page import COLORS, LINES, MARKERS, new_page, plain_style, save
from d2lpar.records import Run, group
from d2lpar.timing import summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST = 1e-16  # a distance of 0 has no place on a logarithmic axis


def draw(runs: Sequence[Run], out: str | Path, stem: str) -> list[Path]:
    """Draw runs of several methods and device counts; return the files written.

    ``<stem>-devices``, the seconds against the number of devices; where it is known
    ``<stem>-distance`` to the optimum against seconds; and where a method averages
    ``<stem>-error`` (the seed's figure, a panel a device). Raises
    :class:`RecordError` for a run without points.
    """
    for run in runs:
        if not run.points:
            raise RecordError(f"{captions.where(run)}: holds no points of a solver")
    with plain_style():
        pictures = {"devices": _devices(runs)}
        if any(point.distance is not None for run in runs for point in run.points):
            pictures["distance"] = _distance(runs)
        averaging = _most_devices(r for r in runs if "averag" in r.header.variant)
        if averaging:
            pictures["error"] = _error(averaging, runs)
        return save({f"{stem}-{name}": p for name, p in pictures.items()}, Path(out))


def _most_devices(runs) -> list[Run]:
    """Of every method the run on the most devices."""
    by_method = group(runs, lambda run: run.header.variant)
    return [
        max(same, key=lambda r: r.header.num_devices) for same in by_method.values()
    ]


def _seconds(run: Run) -> float:
    """Seconds to the end, the median of the repeats."""
    by_repeat = group(run.points, lambda point: point.repeat)
    return summarize([points[-1].seconds for points in by_repeat.values()]).median


def _first_repeat(run: Run) -> list:
    return [point for point in run.points if point.repeat == 0]


def _error(averaging: Sequence[Run], runs: Sequence[Run]) -> Figure:
    """The seed's two panels: ||A x - b|| of each device's x after each epoch."""
    panels = min(2, averaging[0].header.num_devices)
    best = min(point.residual_norm for run in runs for point in run.points)
    page = new_page(
        captions.title("Error of each device's x after each epoch", averaging),
        "Every device descends on its own rows; after each epoch the average of all x "
        "is where all go on. "
        f"{'The first two devices. ' if averaging[0].header.num_devices > 2 else ''}"
        f"{captions.provenance(averaging)}",
        panels=panels,
        keys=["the best of all methods", *(run.header.variant for run in averaging)],
    )
    for device, axes in enumerate(page.axes):
        lines = [axes.axhline(best, color="0.35", ls=LINES[1], lw=1.2)]
        for k, run in enumerate(averaging):
            points = _first_repeat(run)
            lines += axes.plot(
                [point.iteration for point in points],
                [point.device_residual_norms[device] for point in points],
                color=COLORS[k],
                ls=LINES[2 * k],
                marker=MARKERS[k],
                ms=4,
                markevery=max(1, len(points) // 10),
            )
        name = averaging[0].header.devices[device].partition(" ")[0]
        axes.set_xlabel(f"epoch on {name}")
        axes.set_ylabel("error ||A x - b||")
    page.legend(lines)
    return page.figure


def _distance(runs: Sequence[Run]) -> Figure:
    """||x - x*|| / ||x*|| against seconds of work, a curve a method."""
    shown = _most_devices(runs)
    page = new_page(
        captions.title("Distance to the optimum against time", shown),
        "Distance: ||x - x*|| / ||x*||, x* by LAPACK. Seconds of work after a warm-up, "
        "the copy of A to the devices among them. Direct methods are a single point. "
        f"{captions.provenance(shown)}",
        keys=[f"{r.header.variant}, {_number_of_devices(r)}" for r in shown],
    )
    (axes,) = page.axes
    lines = []
    for k, run in enumerate(shown):
        points = [p for p in _first_repeat(run) if p.distance is not None]
        lines += axes.plot(
            [point.seconds for point in points],
            [max(point.distance, SMALLEST) for point in points],
            color=COLORS[k % len(COLORS)],
            ls=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
            ms=8 if len(points) == 1 else 4,
            clip_on=False,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("distance to the optimum (relative)")
    page.legend(lines)
    return page.figure


def _devices(runs: Sequence[Run]) -> Figure:
    """Seconds to the end against the number of devices, and the ideal line."""
    shared = [r for r in runs if "averag" not in r.header.variant] or runs
    methods = group(shared, lambda run: run.header.variant)
    counts = sorted({run.header.num_devices for run in shared})
    curves = {
        method: {run.header.num_devices: _seconds(run) for run in same}
        for method, same in methods.items()
    }
    page = new_page(
        captions.title("Time to solve against the number of devices", shared),
        f"Thin lines: ideal, the time on {captions.plural(counts[0], 'device')} shared "
        "out. Averaging is left out: more devices take more steps. "
        f"{captions.provenance(shared)}",
        keys=[
            f"{method}: "
            + ", ".join(f"{captions.number(curve[n])} s on {n}" for n in sorted(curve))
            for method, curve in curves.items()
        ],
    )
    (axes,) = page.axes
    lines = []
    for k, curve in enumerate(curves.values()):
        ns = sorted(curve)
        color = COLORS[k % len(COLORS)]
        lines += axes.plot(
            ns,
            [curve[n] for n in ns],
            color=color,
            ls=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
        )
        ideal = [curve[ns[0]] * ns[0] / n for n in ns]
        axes.plot(ns, ideal, color=color, lw=0.6)
    axes.set_yscale("log")
    axes.set_xticks(counts)
    span = max(counts[-1] - counts[0], 1)
    axes.set_xlim(counts[0] - 0.1 * span, counts[-1] + 0.1 * span)
    axes.set_xlabel("number of devices")
    axes.set_ylabel("seconds")
    page.legend(lines)
    return page.figure


def _number_of_devices(run: Run) -> str:
    return captions.plural(run.header.num_devices, "device")
