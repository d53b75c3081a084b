"""Solvers of least squares: error, distance to the optimum, time by device count."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.text import number, plain_table, plural

AVERAGING = ("averaging", "averaging-as-published")
COLUMNS = [
    *("method", "devices", "iterations", "seconds", "||A x - b||"),
    "distance to x*",
]


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """Draw runs of several methods and device counts; return the files written.

    ``<stem>-devices``, the seconds on each number of devices, if there are several;
    ``<stem>-distance`` to the optimum against seconds, or ``<stem>-residual`` if the
    optimum is not known; if a method averages ``<stem>-error`` (the figure of the
    least-squares notes, a panel per device); and ``<stem>-results.txt``. Raises
    :class:`RecordError` for a run without points.
    """
    for run in runs:
        if not run.of(PointRecord):
            raise RecordError(f"{labels.where(run)}: holds no points of a solver")
    drawn: dict[str, Figure | str] = {}
    if len({run.header.num_devices for run in runs}) > 1:
        drawn["devices"] = _devices(runs)
    points = [point for run in runs for point in run.of(PointRecord)]
    if any(point.distance is not None for point in points):
        drawn["distance"] = _distance(_most_devices(runs))
    else:
        drawn["residual"] = _residual(_most_devices(runs))
    averaging = [run for run in runs if run.header.variant in AVERAGING]
    if averaging:
        drawn["error"] = _error(_most_devices(averaging), _least(runs))
    drawn["results"] = results(runs)
    return page.save(drawn, folder, stem)


def results(runs: Sequence[Run]) -> str:
    """What the least-squares notes write to ``data_parallel_result.txt``, of all runs.

    A line per run: seconds (median of the repeats) and where its first repeat ended;
    then, if a method averages, the error of each device's own x; and the x of every run
    that recorded it.
    """
    rows, lists = [], []
    for run in runs:
        last = _repeats(run)[0][-1]
        name = f"{run.header.variant}, {plural(run.header.num_devices, 'device')}"
        distance = "not known" if last.distance is None else f"{last.distance:.1e}"
        rows.append([
            run.header.variant, str(run.header.num_devices), str(last.iteration),
            number(median(_seconds(run))), f"{last.residual_norm:.9g}", distance,
        ])  # fmt: skip
        if run.header.variant in AVERAGING:
            errors = last.device_residual_norms
            lists.append((f"{name}: error of each device's x", errors))
        if last.x:
            lists.append((f"{name}: x", last.x))
        elif last.x_begins:
            lists.append((f"{name}: x begins", last.x_begins))
    header = runs[0].header
    lines = [
        f"{header.chapter}, preset {header.preset}",
        f"least ||A x - b|| of all runs: {_least(runs):.9g}",
        "",
        plain_table(COLUMNS, rows),
    ]
    for heading, values in lists:
        numbers = " ".join(f"{value:.9g}" for value in values)
        lines += ["", heading, *textwrap.wrap(numbers, 88)]
    headers = [run.header for run in runs]
    where = f"{labels.hardware(headers)}. {labels.stamp(headers)}"
    return "\n".join([*lines, "", textwrap.fill(where, 88), ""])


def _least(runs: Sequence[Run]) -> float:
    return min(point.residual_norm for run in runs for point in run.of(PointRecord))


def _most_devices(runs: Sequence[Run]) -> list[Run]:
    """Of every method the run on the most devices."""
    by_method = group(runs, lambda run: run.header.variant).values()
    return [max(same, key=lambda run: run.header.num_devices) for same in by_method]


def _repeats(run: Run) -> list[list[PointRecord]]:
    by_repeat = group(run.of(PointRecord), lambda point: point.repeat)
    return list(by_repeat.values())


def _seconds(run: Run) -> list[float]:
    """Seconds to the end, one per repeat."""
    return [points[-1].seconds for points in _repeats(run)]


def _method(run: Run) -> str:
    return run.header.variant.replace("-", " ")


def _count(run: Run) -> str:
    return plural(run.header.num_devices, labels.device_word(run.header))


def _page(runs: Sequence[Run], title: str, caption: str, **layout) -> page.Picture:
    """A page that says which problem the runs solve, and where."""
    settings = runs[0].header.settings
    size = f"{settings['rows']:,} \u00d7 {settings['columns']:,}"
    subtitle = labels.subtitle(f"min ||A x - b||, A of {size}", runs)
    stamp = labels.stamp([run.header for run in runs])
    return page.new(title, subtitle, f"{caption} {stamp}", **layout)


def _error(runs: Sequence[Run], least: float) -> Figure:
    """||A x - b|| of each of the first two devices' x against the epoch."""
    picture = _page(
        runs,
        f"Error of each device's x: the optimum is {least:.2f}",
        "Insets: the last epochs. Dashed: the best of all methods.",
        panels=min(2, min(run.header.num_devices for run in runs)),
        sharey=True,
    )
    for device, axes in enumerate(picture.axes):
        axes.axhline(least, **page.DASHED)
        inset = axes.inset_axes((0.5, 0.4, 0.48, 0.42))
        inset.axhline(least, **page.DASHED)
        for k, run in enumerate(runs):
            points = [
                (p.iteration, p.device_residual_norms[device]) for p in _repeats(run)[0]
            ]
            every = max(1, len(points) // 8)
            axes.plot(
                *zip(*points), label=_method(run), **page.look(k, markevery=every)
            )
            tail = points[-max(2, len(points) // 4) :]
            inset.plot(*zip(*tail), **page.look(k, ms=3))
            inset.annotate(
                f"{tail[-1][1]:.2f}", tail[-1], (0, 7), size=page.SMALL, ha="right",
                textcoords="offset points",
            )  # fmt: skip
        inset.tick_params(labelsize=page.SMALL)
        inset.margins(y=0.3)
        axes.set_ylim(0, None)
        axes.set_title(f"error of {runs[0].header.devices[device].split()[0]}'s x")
        axes.set_xlabel("epoch")
    picture.axes[0].set_ylabel("||A x - b||")
    page.key(picture)
    return picture.figure


def _distance(runs: Sequence[Run]) -> Figure:
    """Distance to the optimum against seconds of work: every repeat, a line each."""
    picture = _page(
        runs,
        f"Distance to the optimum against seconds, on {_count(runs[0])}",
        "||x - x*|| / ||x*||, x* by LAPACK; thin: further repeats. x = 0 has a "
        "distance of 1.",
    )
    (axes,) = picture.axes
    names = []
    for k, run in enumerate(runs):
        ends = []
        for points in _repeats(run):
            points = [p for p in points if p.distance]
            if not points:
                continue
            alone = len(points) == 1
            style = page.look(k, ms=9 if alone else 4, markevery=len(points) // 8 or 1)
            if points[0].repeat > 0:
                style.update(lw=0.6, ms=5 if alone else 0, alpha=0.7)
            axes.plot(
                [p.seconds for p in points], [p.distance for p in points], **style
            )
            ends.append(points[-1])
        if ends:  # the name stands behind all repeats
            latest = max(end.seconds for end in ends)
            names.append((latest, ends[0].distance, _method(run)))
    axes.axhline(1, **page.DASHED)
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="relative distance")
    axes.set_xlim(right=axes.get_xlim()[1] * 2.2)  # room for the names
    page.beside(axes, names)
    return picture.figure


def _residual(runs: Sequence[Run]) -> Figure:
    """||A x - b|| against seconds, if x* is not known."""
    picture = _page(
        runs,
        f"||A x - b|| reaches {_least(runs):.2f} on {_count(runs[0])}",
        "Each point is an iteration that was recorded.",
    )
    (axes,) = picture.axes
    names = []
    for k, run in enumerate(runs):
        points = [(p.seconds, p.residual_norm) for p in _repeats(run)[0]]
        axes.plot(*zip(*points), **page.look(k))
        names.append((*points[-1], f"{_method(run)}: {points[-1][1]:.2f}"))
    axes.set(xlim=(0, None), xlabel="seconds", ylabel="||A x - b||")
    axes.margins(y=0.15)
    page.beside(axes, names)
    return picture.figure


def _devices(runs: Sequence[Run]) -> Figure:
    """Seconds to the end on each number of devices, by method.

    On more devices, averaging takes more steps: it is left out where others are shown.
    """
    shared = [run for run in runs if run.header.variant not in AVERAGING] or runs
    bars = []
    for same in group(shared, lambda run: run.header.variant).values():
        same.sort(key=lambda run: run.header.num_devices)
        for k, run in enumerate(same):
            gain = median(_seconds(same[0])) / median(_seconds(run))
            note = f"{gain:.2f}\u00d7" if k else ""
            name = f"{_method(run)}, {_count(run)}"
            bars.append(page.Bar(name, _seconds(run), page.count_color(k), note))
    n = min(len(bar.values) for bar in bars)
    picture = _page(
        shared,
        "Seconds to solve, by method and number of devices",
        f"Medians of n = {n}; whiskers: quartiles.",
        size=(page.WIDE, page.bars_height(bars)),
    )
    page.bars(picture.axes[0], bars, "s")
    return picture.figure
