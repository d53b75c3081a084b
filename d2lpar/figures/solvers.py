"""A solver's records to pictures and a table: error, distance, time by devices.

Computes nothing anew, like :mod:`d2lpar.figures.drawing`, whose :func:`~d2lpar.figures.drawing.draw`
calls this module for records that hold points in place of epochs. Never imports MXNet.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar.errors import RecordError
from d2lpar.figures.page import COLORS, LINES, MARKERS, new_page, plain_style, save
from d2lpar.records import wording
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.summary import summarize

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST = 1e-16  # a distance of 0 has no place on a logarithmic axis
COLUMNS = "{:24}{:>8}{:>12}{:>12}{:>15}{:>17}".format


def draw(
    runs: Sequence[Run],
    out: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Draw runs of several methods and device counts; return the files written.

    ``<stem>-devices``, the seconds against the number of devices, where there are
    several; ``<stem>-distance`` to the optimum against seconds, or ``<stem>-residual``
    where the optimum is not known; where a method averages ``<stem>-error`` (the seed's
    figure, a panel a device); and ``<stem>-results.txt``, which holds what
    :func:`results` says. Raises :class:`RecordError` for a run without points.
    """
    for run in runs:
        if not run.of(PointRecord):
            raise RecordError(f"{wording.where(run)}: holds no points of a solver")
    with plain_style():
        pictures = {}
        if len({run.header.num_devices for run in runs}) > 1:
            pictures["devices"] = _devices(runs)
        if any(
            point.distance is not None for run in runs for point in run.of(PointRecord)
        ):
            pictures["distance"] = _distance(runs)
        else:
            pictures["residual"] = _residual(runs)
        averaging = _most_devices(_averaging(runs))
        if averaging:
            pictures["error"] = _error(averaging, runs)
        named = {f"{stem}-{name}": figure for name, figure in pictures.items()}
        table = Path(out) / f"{stem}-results.txt"
        with replacing(table) as tmp:
            tmp.write_text(results(runs), encoding="utf-8")
            return [*save(named, Path(out)), table]


def results(runs: Sequence[Run]) -> str:
    """What the seed writes to ``data_parallel_result.txt``, of all runs, as plain text.

    A line a run: seconds (median of the repeats) and where its first repeat ended;
    then, where a method averages, the error of each device's own x, and the first
    numbers of the x that a run recorded.
    """
    header = runs[0].header
    lines = [
        f"{header.chapter}, preset {header.preset}",
        f"least ||A x - b|| of all runs: {_least(runs):.9g}",
        "",
        COLUMNS("method", "devices", "iterations", "seconds", "||A x - b||",
                "distance to x*"),
    ]  # fmt: skip
    lines += [_result(run) for run in runs]
    for run in _averaging(runs):
        errors = _first_repeat(run)[-1].device_residual_norms
        lines += ["", f"{_name(run)}: error of each device's x"]
        lines += [f"{error:.9g}" for error in errors]
    for run in runs:
        x = _first_repeat(run)[-1].extra.get("x_begins")
        if x:
            lines += ["", f"{_name(run)}: x begins"]
            lines += [f"{value:.9g}" for value in x]
    return "\n".join([*lines, "", textwrap.fill(wording.provenance(runs), 88), ""])


def _result(run: Run) -> str:
    last = _first_repeat(run)[-1]
    return COLUMNS(
        run.header.variant,
        run.header.num_devices,
        last.iteration,
        wording.number(_seconds(run)),
        f"{last.residual_norm:.9g}",
        "not known" if last.distance is None else f"{last.distance:.1e}",
    )


def _averaging(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if "averag" in run.header.variant]


def _least(runs: Sequence[Run]) -> float:
    return min(point.residual_norm for run in runs for point in run.of(PointRecord))


def _most_devices(runs) -> list[Run]:
    """Of every method the run on the most devices."""
    by_method = group(runs, lambda run: run.header.variant)
    return [
        max(same, key=lambda r: r.header.num_devices) for same in by_method.values()
    ]


def _seconds(run: Run) -> float:
    """Seconds to the end, the median of the repeats."""
    by_repeat = group(run.of(PointRecord), lambda point: point.repeat)
    return summarize([points[-1].seconds for points in by_repeat.values()]).median


def _first_repeat(run: Run) -> list[PointRecord]:
    return [point for point in run.of(PointRecord) if point.repeat == 0]


def _error(averaging: Sequence[Run], runs: Sequence[Run]) -> Figure:
    """The seed's two panels: ||A x - b|| of each device's x after each epoch."""
    panels = min(2, averaging[0].header.num_devices)
    page = new_page(
        wording.title("Error of each device's x after each epoch", averaging),
        "Every device descends on its own rows; after each epoch the average of all x "
        "is where all go on. "
        f"{'The first two devices. ' if averaging[0].header.num_devices > 2 else ''}"
        f"{wording.provenance(averaging)}",
        panels=panels,
        keys=["the best of all methods", *(run.header.variant for run in averaging)],
    )
    for device, axes in enumerate(page.axes):
        lines = [axes.axhline(_least(runs), color="0.35", ls=LINES[1], lw=1.2)]
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
    return _against_seconds(
        shown,
        wording.title("Distance to the optimum against time", shown),
        "Distance: ||x - x*|| / ||x*||, x* by LAPACK.",
        "distance to the optimum (relative)",
        lambda point: point.distance,
    )


def _residual(runs: Sequence[Run]) -> Figure:
    """How far ||A x - b|| is above the least one, against seconds, a curve a method."""
    shown, least = _most_devices(runs), _least(runs)
    return _against_seconds(
        shown,
        wording.title("Residual against time", shown),
        f"How far ||A x - b|| is above the least of all, {least:.6g}, in parts of it; "
        f"the least itself is drawn at {SMALLEST:g}.",
        "||A x - b|| above the least (relative)",
        lambda point: point.residual_norm / least - 1 if least else point.residual_norm,
    )


def _against_seconds(
    shown: Sequence[Run],
    title: str,
    reading: str,
    name: str,
    value: Callable[[PointRecord], float | None],
) -> Figure:
    """A value of every point against the seconds of work it took, on log axes."""
    direct = any(len(_first_repeat(run)) == 1 for run in shown)
    page = new_page(
        title,
        f"{reading} Seconds of work after a warm-up, the copy of A to the devices "
        f"among them. {'Direct methods are a single point. ' if direct else ''}"
        f"{wording.provenance(shown)}",
        keys=[_name(run) for run in shown],
    )
    (axes,) = page.axes
    lines = []
    for k, run in enumerate(shown):
        points = [p for p in _first_repeat(run) if value(p) is not None]
        lines += axes.plot(
            [point.seconds for point in points],
            [max(value(point), SMALLEST) for point in points],
            color=COLORS[k % len(COLORS)],
            ls=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
            ms=8 if len(points) == 1 else 4,
            clip_on=False,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel(name)
    page.legend(lines)
    return page.figure


def _devices(runs: Sequence[Run]) -> Figure:
    """Seconds to the end against the number of devices, and the ideal line."""
    shared = [r for r in runs if "averag" not in r.header.variant] or runs
    left_out = "Averaging is left out: more devices take more steps. "
    methods = group(shared, lambda run: run.header.variant)
    counts = sorted({run.header.num_devices for run in shared})
    curves = {
        method: {run.header.num_devices: _seconds(run) for run in same}
        for method, same in methods.items()
    }
    page = new_page(
        wording.title("Time to solve against the number of devices", shared),
        f"Thin lines: ideal, the time on {wording.plural(counts[0], 'device')} shared "
        f"out. {left_out if len(shared) < len(runs) else ''}"
        f"{wording.provenance(shared)}",
        keys=[
            f"{method}: "
            + ", ".join(f"{wording.number(curve[n])} s on {n}" for n in sorted(curve))
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


def _name(run: Run) -> str:
    """The method and the number of devices: "cgls, 2 devices"."""
    return f"{run.header.variant}, {wording.plural(run.header.num_devices, 'device')}"
