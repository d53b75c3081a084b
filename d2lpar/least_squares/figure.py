"""Solvers of least squares: error, distance to the optimum, time by device count."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import wording
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.tables import plain_table

AVERAGING = ("averaging", "averaging-as-published")
NAMES = {"averaging-as-published": "averaging as published"}
COLUMNS = ["method", "devices", "iterations", "seconds", "||A x - b||"]
COLUMNS += ["distance to x*"]


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """Draw runs of several methods and device counts; return the files written.

    ``<stem>-devices``, the seconds on each number of devices, where there are several;
    ``<stem>-distance`` to the optimum against seconds, or ``<stem>-residual`` where the
    optimum is not known; where a method averages ``<stem>-error`` (the figure of the
    least-squares notes, a panel per device); and ``<stem>-results.txt``. Raises
    :class:`RecordError` for a run without points.
    """
    for run in runs:
        if not run.of(PointRecord):
            raise RecordError(f"{wording.where(run)}: holds no points of a solver")
    drawn: dict[str, Figure | str] = {}
    if len({run.header.num_devices for run in runs}) > 1:
        drawn["devices"] = _devices(runs)
    points = [point for run in runs for point in run.of(PointRecord)]
    if any(point.distance is not None for point in points):
        drawn["distance"] = _distance(_most_devices(runs))
    else:
        drawn["residual"] = _residual(_most_devices(runs))
    if any(map(_averages, runs)):
        drawn["error"] = _error(runs)
    drawn["results"] = results(runs)
    return page.save(drawn, folder, stem)


def results(runs: Sequence[Run]) -> str:
    """What the least-squares notes write to ``data_parallel_result.txt``, of all runs.

    A line per run: seconds (median of the repeats) and where its first repeat ended;
    then, where a method averages, the error of each device's own x; and the x of every
    run that recorded it.
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
        for name, what in (("x", "x"), ("x_begins", "x begins")):
            if last.extra.get(name):
                lists.append((run, what, last.extra[name]))
                break
    header = runs[0].header
    lines = [
        f"{header.chapter}, preset {header.preset}",
        f"least ||A x - b|| of all runs: {_least(runs):.9g}",
        "",
        plain_table(COLUMNS, rows),
    ]
    for run, what, values in lists:
        numbers = " ".join(f"{value:.9g}" for value in values)
        lines += ["", f"{_name(run)}: {what}", *textwrap.wrap(numbers, 88)]
    return "\n".join([*lines, "", textwrap.fill(wording.provenance(runs), 88), ""])


def _averages(run: Run) -> bool:
    return run.header.variant in AVERAGING


def _least(runs: Sequence[Run]) -> float:
    return min(point.residual_norm for run in runs for point in run.of(PointRecord))


def _most_devices(runs: Sequence[Run]) -> list[Run]:
    """Of every method the run on the most devices."""
    by_method = group(runs, lambda run: run.header.variant).values()
    return [max(same, key=lambda run: run.header.num_devices) for same in by_method]


def _repeats(run: Run) -> list[list[PointRecord]]:
    by_repeat = group(run.of(PointRecord), lambda point: point.repeat)
    return list(by_repeat.values())


def _all_seconds(run: Run) -> list[float]:
    """Seconds to the end, one per repeat."""
    return [points[-1].seconds for points in _repeats(run)]


def _seconds(run: Run) -> float:
    """Seconds to the end, the median of the repeats."""
    return median(_all_seconds(run))


def _first_repeat(run: Run) -> list[PointRecord]:
    return [point for point in run.of(PointRecord) if point.repeat == 0]


def _method(run: Run) -> str:
    return NAMES.get(run.header.variant, run.header.variant)


def _name(run: Run) -> str:
    """The method and the number of devices: "cgls, 2 devices"."""
    return f"{run.header.variant}, {wording.plural(run.header.num_devices, 'device')}"


def _count(run: Run) -> str:
    return wording.plural(run.header.num_devices, wording.noun(run.header))


def _subtitle(runs: Sequence[Run], where: str = "") -> str:
    settings = runs[0].header.settings
    size = ""
    if {"rows", "columns"} <= settings.keys():
        size = f" of {settings['rows']:,} \u00d7 {settings['columns']:,}"
    return wording.subtitle(f"min ||A x - b||, A{size}{where}", runs)


def _caption(runs: Sequence[Run], words: str) -> str:
    return f"{words} {wording.stamp([run.header for run in runs])}"


def _error(runs: Sequence[Run]) -> Figure:
    """||A x - b|| of each of the first two devices' x against the epoch."""
    averaging = _most_devices([run for run in runs if _averages(run)])
    devices = averaging[0].header.devices
    best = min(averaging, key=lambda run: _first_repeat(run)[-1].residual_norm)
    last, least = _first_repeat(best)[-1], _least(runs)
    above = (last.residual_norm - least) / (least or 1.0)
    picture = page.new(
        f"{_method(best).capitalize()} ends {above:.0%} above the optimum, after "
        f"{last.iteration} epochs",
        _subtitle(averaging),
        _caption(averaging, "Insets: the last epochs. Dashed: the best of all methods, "
                 f"{least:.2f}. The first repeat of each."),
        panels=min(2, min(run.header.num_devices for run in averaging)),
        sharey=True,
    )  # fmt: skip
    for number, axes in enumerate(picture.axes):
        curves = [
            [(p.iteration, p.device_residual_norms[number]) for p in _first_repeat(run)]
            for run in averaging
        ]
        _error_curves(axes, averaging, curves, least)
        _tail(axes, curves, least)
        axes.set_title(f"error of {devices[number].partition(' ')[0]}'s x")
        axes.set_xlabel("epoch")
    picture.axes[0].set_ylabel("||A x - b||")
    return picture.figure


def _error_curves(
    axes: Axes, runs: Sequence[Run], curves: Sequence, least: float
) -> None:
    axes.axhline(least, **page.DASHED)
    highest = max(curves, key=lambda points: sum(value for _, value in points))
    for k, (run, points) in enumerate(zip(runs, curves)):
        axes.plot(*zip(*points), **page.look(k, markevery=max(1, len(points) // 8)))
        above = points is highest
        at = points[len(points) // (10 if above else 3)]
        place = {"textcoords": "offset points", "ha": "left" if above else "right"}
        name = _method(run).replace("averaging as", "as")
        axes.annotate(name, at, (7, 3) if above else (-3, -12), **place)
    axes.set_ylim(0, None)


def _tail(axes: Axes, curves: Sequence, least: float) -> None:
    """An inset with the last quarter of the curves, on a scale of its own."""
    inset = axes.inset_axes((0.5, 0.4, 0.48, 0.42))
    for k, points in enumerate(curves):
        tail = points[-max(2, len(points) // 4) :]
        inset.plot(*zip(*tail), **page.look(k, ms=3))
        inset.annotate(
            f"{tail[-1][1]:.2f}", tail[-1], (0, 7), size=page.SMALL, ha="right",
            textcoords="offset points",
        )  # fmt: skip
    inset.axhline(least, **page.DASHED)
    inset.tick_params(labelsize=page.SMALL)
    inset.margins(y=0.3)


def _distance(shown: Sequence[Run]) -> Figure:
    """Distance to the optimum against seconds of work: every repeat, a line each."""
    reached = [run for run in shown if (_first_repeat(run)[-1].distance or 1) < 1e-6]
    first = min(reached or shown, key=_seconds)
    seconds = wording.number(_seconds(first))
    found = "reaches the optimum" if reached else "is the first to end"
    picture = page.new(
        f"{_method(first)} {found} first, in {seconds} s".replace("normal", "Normal"),
        _subtitle(shown, f", {_count(shown[0])}"),
        _caption(shown, "||x - x*|| / ||x*||, x* by LAPACK, against seconds of work "
                 "after a warm-up; thin: all repeats. x = 0 has a distance of 1."),
    )  # fmt: skip
    (axes,) = picture.axes
    labels = []
    for k, run in enumerate(shown):
        ends = []
        for points in _repeats(run):
            known = [p for p in points if p.distance]
            _descent(axes, k, known, thin=points[0].repeat > 0)
            ends += known[-1:]
        if ends:  # the name stands behind all repeats
            latest = max(end.seconds for end in ends)
            labels.append((latest, ends[0].distance, _method(run)))
    axes.axhline(1, **page.DASHED)
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative distance")
    low, high = axes.get_xlim()
    axes.set_xlim(low, high * 2.2)  # room for the labels
    page.beside(axes, labels)
    return picture.figure


def _descent(axes: Axes, k: int, points: Sequence[PointRecord], thin: bool) -> None:
    every = max(1, len(points) // 8)
    style = page.look(k, ms=9 if len(points) == 1 else 4, markevery=every)
    if thin:
        style.update(lw=0.6, ms=5 if len(points) == 1 else 0, alpha=0.7)
    values = [p.seconds for p in points], [p.distance for p in points]
    axes.plot(*values, **style)


def _residual(shown: Sequence[Run]) -> Figure:
    """||A x - b|| after every iteration, against seconds: where x* is not known."""
    best = min(shown, key=lambda run: _first_repeat(run)[-1].residual_norm)
    last = _first_repeat(best)[-1]
    minutes = f"{wording.number(_seconds(best))} s"
    settings, expected = best.header.settings, ""
    m, n = settings.get("rows", 0), settings.get("columns", 0)
    if best.header.dataset.startswith("uniform") and m > n:
        expected = "For numbers uniform in [0, 1) about sqrt((m - n) / 12) = "
        expected += f"{((m - n) / 12) ** 0.5:.2f} is expected. "
    picture = page.new(
        f"{_method(best).upper()} reaches ||A x - b|| = {last.residual_norm:.2f} in "
        f"{minutes} and {last.iteration} iterations",
        _subtitle(shown, f", {_count(best)}"),
        _caption(shown, f"Each point an iteration that was recorded. {expected}"),
    )
    (axes,) = picture.axes
    labels = []
    for k, run in enumerate(shown):
        points = [(p.seconds, p.residual_norm) for p in _first_repeat(run)]
        axes.plot(*zip(*points), **page.look(k))
        end = points[-1]
        labels.append((*end, f"{_method(run)}: {end[1]:.2f}"))
    axes.set(xlim=(0, None), xlabel="seconds", ylabel="||A x - b||")
    axes.margins(y=0.15)
    page.beside(axes, labels)
    return picture.figure


def _devices(runs: Sequence[Run]) -> Figure:
    """Seconds to the end on each number of devices, by method."""
    shared = [run for run in runs if not _averages(run)] or list(runs)
    left_out = "Averaging is left out: more devices take more steps. "
    methods = group(shared, lambda run: run.header.variant)
    for same in methods.values():
        same.sort(key=lambda run: run.header.num_devices)
    quickest = sorted(methods.values(), key=lambda same: min(map(_seconds, same)))
    rows, gains = [], {}
    for same in quickest:
        for k, run in enumerate(same):
            gain = _seconds(same[0]) / _seconds(run)
            note = f"{gain:.2f}\u00d7" if k else ""
            name = f"{_method(run)}, {_count(run)}"
            color = page.count_color(k)
            rows.append(page.Bar(name, _all_seconds(run), color, note))
            if k:
                gains[_method(run)] = gain
    n = wording.each(len(_repeats(run)) for run in shared)
    picture = page.new(
        _devices_title(shared, gains),
        _subtitle(shared),
        _caption(shared, f"Medians of n = {n}; whiskers: quartiles. "
                 f"{left_out * (len(shared) < len(runs))}"),
        size=(page.WIDE, page.bars_height(rows)),
    )  # fmt: skip
    page.bars(picture.axes[0], rows, "s")
    return picture.figure


def _devices_title(runs: Sequence[Run], gains: dict[str, float]) -> str:
    """How many times as fast the most devices are as the fewest, over all methods."""
    last = max(runs, key=lambda run: run.header.num_devices)
    first = min(runs, key=lambda run: run.header.num_devices)
    if not gains:
        return "Seconds to solve, each method on one number of devices"
    few, most = f"{min(gains.values()):.2f}", f"{max(gains.values()):.2f}"
    said = f"{few} to {most}" if few != most else few
    return f"{_count(last)} solve {said} times as fast as {first.header.num_devices}"
