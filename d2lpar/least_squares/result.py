"""What solvers found: seconds, iterations and errors, and their x."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median

from d2lpar.figures import labels
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.result import Result, Table, listed
from d2lpar.text import number, plural, times

AVERAGING = ("averaging", "averaging-as-published")
COLUMNS = ["method", "", "seconds", "quartiles", "n", "iterations", "residual"]
COLUMNS += ["/ least", "distance"]
FLOOR = 1.01  # residuals up to this multiple of the least one count as the least


def result(runs: Sequence[Run]) -> Result:
    """A row per method and device count: seconds, and where the first repeat ended.

    Further: the least ||A x - b||; if a method averages, the error of each device's own
    x; and the x of every run that recorded it, as the least-squares notes write them to
    ``data_parallel_result.txt``.
    """
    runs = [run for run in runs if run.lines_of(PointRecord)]
    if not runs:
        return Result()
    rows, least = [], least_of(runs)
    methods = group(runs, lambda run: run.header.variant)
    for run in (run for same in methods.values() for run in same):
        ends = [points[-1] for points in repeats(run)]
        last = ends[0]
        rows.append([
            run.header.variant,
            labels.count(run.header),
            *summarize([point.seconds for point in ends]).cells(),
            str(last.iteration),
            f"{last.residual_norm:.6g}",
            f"{last.residual_norm / least:.4f}" if least else "-",
            "-" if last.distance is None else f"{last.distance:.1e}",
        ])  # fmt: skip
    note = (
        "seconds: of a solve, the median of n; residual: ||A x - b||; distance: of x "
        "to the optimum, relative"
    )
    answers = {"devices": _by_count(runs)}
    answers["distance" if knows_optimum(runs) else "residual"] = [_reached(runs)]
    further = [f"least ||A x - b|| of all runs: {least:.9g}"]
    for run in runs:
        further += _solutions(run)
    return Result(Table(COLUMNS, rows, names=2), note, answers, further)


def repeats(run: Run) -> list[list[PointRecord]]:
    """The points of each repeat, at least one."""
    return list(group(run.lines_of(PointRecord), lambda point: point.repeat).values())


def least_of(runs: Sequence[Run]) -> float:
    """The least ||A x - b|| of all runs."""
    return min(
        point.residual_norm for run in runs for point in run.lines_of(PointRecord)
    )


def knows_optimum(runs: Sequence[Run]) -> bool:
    """Whether LAPACK's solution was at hand, to which distances were measured."""
    points = [point for run in runs for point in run.lines_of(PointRecord)]
    return any(point.distance is not None for point in points)


def comparable(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """By method its runs on all device counts, ascending.

    On more devices averaging takes more steps: it is left out where others are.
    """
    shared = [run for run in runs if run.header.variant not in AVERAGING] or runs
    by_method = group(shared, lambda run: run.header.variant)
    for same in by_method.values():
        same.sort(key=lambda run: run.header.num_devices)
    return by_method


def _reached(runs: Sequence[Run]) -> str:
    """Which methods end at the least residual."""
    least = least_of(runs)
    worst: dict[str, float] = {}
    for run in runs:
        end = median(points[-1].residual_norm for points in repeats(run))
        method = run.header.variant or "the solver"
        worst[method] = max(end, worst.get(method, end))
    if len(worst) == 1:
        seconds = listed(map(_seconds_to_solve, runs))
        return f"{listed(worst)} takes {seconds}, to ||A x - b|| = {least:.6g}."
    reached = [method for method, end in worst.items() if end <= FLOOR * least]
    missed = "" if len(reached) == len(worst) else "; the other methods do not"
    return (
        f"{listed(reached)} {'reach' if len(reached) > 1 else 'reaches'} the least "
        f"residual, {least:.6g}, within 1 %{missed}."
    )


def _seconds_to_solve(run: Run) -> str:
    seconds = median(points[-1].seconds for points in repeats(run))
    return f"{number(seconds)} s on {labels.count(run.header)}"


def _by_count(runs: Sequence[Run]) -> list[str]:
    """How long the methods take on the most devices beside the fewest."""
    found: dict[str, dict[str, float]] = {}
    counts = {run.header.num_devices: labels.count(run.header) for run in runs}
    for method, same in comparable(runs).items():
        if {same[0].header.num_devices, same[-1].header.num_devices} != {
            min(counts), max(counts)
        }:  # fmt: skip
            continue
        one, many = (
            summarize([points[-1].seconds for points in repeats(run)])
            for run in (same[0], same[-1])
        )
        if not one.can_be_compared(many):
            continue
        ratio = one.median / many.median
        outcome = "faster with" if ratio > 1 else "slower with"
        if one.overlaps(many):
            outcome = "about as fast (the quartiles overlap) with"
        found.setdefault(outcome, {})[method] = max(ratio, 1 / ratio)
    if not found or len(counts) == 1:
        return []
    words = []
    for outcome, ratios in found.items():
        ends = dict.fromkeys(map(times, (min(ratios.values()), max(ratios.values()))))
        spread = "" if "overlap" in outcome else f" ({' to '.join(ends)} times)"
        words.append(f"{outcome} {listed(ratios)}{spread}")
    fewest, most = counts[min(counts)], counts[max(counts)]
    return [f"Beside {fewest}, {most} are {'; '.join(words)}."]


def _solutions(run: Run) -> list[str]:
    """The error of each device's x, and x or its beginning, of the first repeat."""
    last = repeats(run)[0][-1]
    averages = run.header.variant in AVERAGING
    lists = {
        "error of each device's x": last.device_residual_norms if averages else None,
        "x": last.x,
        "x begins": None if last.x else last.x_begins,
    }
    name = f"{run.header.variant}, {plural(run.header.num_devices, 'device')}"
    return [
        "\n".join([f"{name}: {what}", *_lines(values)])
        for what, values in lists.items()
        if values
    ]


def _lines(values: Sequence[float]) -> list[str]:
    return textwrap.wrap(" ".join(f"{value:.9g}" for value in values), 88)
