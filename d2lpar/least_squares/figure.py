"""Solvers of least squares: error, distance to the optimum, time by device count."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.text import number, plain_table, plural

AVERAGING = ("averaging", "averaging-as-published")
METHODS = ("normal", "cgls", "tsqr", "gradient", *AVERAGING)  # in their colours' order
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
    least-squares notes); and ``<stem>-results.txt``. Raises :class:`RecordError` for a
    run without points.
    """
    for run in runs:
        if not run.of(PointRecord):
            raise RecordError(f"{labels.where(run)}: holds no points of a solver")
    settings = runs[0].header.settings
    size = f"{settings['rows']:,} \u00d7 {settings['columns']:,}"
    note = labels.subtitle(f"min ||A x - b||, A of {size}", runs)
    drawn: dict[str, page.Picture | str] = {"results": results(runs)}
    if len({run.header.num_devices for run in runs}) > 1:
        rows = seconds_of(runs)
        title = "Seconds to solve, by method and number of devices"
        picture = page.new(title, note, runs, (7.6, page.height(len(rows))))
        page.dots(picture.axes[0], rows, "s")
        drawn["devices"] = picture
    most = most_devices(runs)
    count = plural(most[0].header.num_devices, labels.device_word(most[0].header))
    points = [point for run in runs for point in run.of(PointRecord)]
    if any(point.distance is not None for point in points):
        title = f"Distance to the optimum against seconds, on {count}"
        drawn["distance"] = page.new(title, note, most)
        distances(drawn["distance"].axes[0], most)
    else:
        title = f"||A x - b|| reaches {least_of(runs):.2f} on {count}"
        drawn["residual"] = page.new(title, note, most)
        residuals(drawn["residual"].axes[0], most)
    averaging = [run for run in most if run.header.variant in AVERAGING]
    if averaging:
        title = f"Error of each device's x above the optimum, {least_of(runs):.2f}"
        drawn["error"] = page.new(title, note, averaging)
        errors(drawn["error"].axes[0], averaging, least_of(runs))
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
        f"least ||A x - b|| of all runs: {least_of(runs):.9g}",
        "",
        plain_table(COLUMNS, rows),
    ]
    for heading, values in lists:
        numbers = " ".join(f"{value:.9g}" for value in values)
        lines += ["", heading, *textwrap.wrap(numbers, 88)]
    headers = [run.header for run in runs]
    where = f"{labels.hardware(headers)}. {labels.stamp(headers)}"
    return "\n".join([*lines, "", textwrap.fill(where, 88), ""])


def least_of(runs: Sequence[Run]) -> float:
    """The least ||A x - b|| of all runs."""
    return min(point.residual_norm for run in runs for point in run.of(PointRecord))


def most_devices(runs: Sequence[Run]) -> list[Run]:
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


def _look(run: Run, **others) -> dict:
    method = run.header.variant
    known = METHODS.index(method) if method in METHODS else len(METHODS)
    return page.look(known, label=_method(run), **others)


def errors(axes: Axes, runs: Sequence[Run], least: float) -> None:
    """||A x - b|| of each device's x above the least of all, against the epoch."""
    for run in runs:
        points = _repeats(run)[0]
        for device, label in enumerate(run.header.devices):
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
    """||x - x*|| / ||x*|| against seconds of work, of every repeat."""
    for run in runs:
        for repeat, points in enumerate(_repeats(run)):
            points = [p for p in points if p.distance]
            style = _look(run, lw=1.2, ms=4, markevery=len(points) // 8 or 1)
            style["label"] = None if repeat else _method(run)
            x, y = [p.seconds for p in points], [p.distance for p in points]
            axes.plot(x, y, **style)
    axes.axhline(1, **page.LIMIT)
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.set_xlabel("seconds")
    axes.set_ylabel("distance to the optimum; 1: x = 0")
    axes.legend(loc="lower left")


def residuals(axes: Axes, runs: Sequence[Run]) -> None:
    """||A x - b|| above the least of all against seconds, where x* is not known."""
    least = least_of(runs)
    for run in runs:
        points = [p for p in _repeats(run)[0] if p.residual_norm > least]
        above = [p.residual_norm - least for p in points]
        axes.plot([p.seconds for p in points], above, **_look(run))
    page.log_along(axes, "y")
    axes.set(xlim=(0, None), xlabel="seconds")
    axes.set_ylabel("||A x - b|| above its end")
    axes.legend()


def seconds_of(runs: Sequence[Run]) -> list[page.Row]:
    """Rows of seconds to the end on each number of devices, by method.

    On more devices, averaging takes more steps: it is left out where others are shown.
    """
    shared = [run for run in runs if run.header.variant not in AVERAGING] or runs
    rows = []
    for same in group(shared, lambda run: run.header.variant).values():
        same.sort(key=lambda run: run.header.num_devices)
        for k, run in enumerate(same):
            gain = median(_seconds(same[0])) / median(_seconds(run))
            noun = labels.device_word(run.header)
            rows.append(
                page.Row(
                    f"{_method(run)}, {plural(run.header.num_devices, noun)}",
                    _seconds(run),
                    page.count_color(k),
                    f"{gain:.2f}\u00d7" if k else "",
                )
            )
    return rows
