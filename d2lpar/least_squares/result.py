"""What solvers found: seconds, iterations and errors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from d2lpar.records import labels
from d2lpar.records.comparison import Summary, floor_of, phrase, summarize
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.result import Result, Table, listed, sentence

AVERAGING = ("averaging", "averaging-as-published")
COLUMNS = ["method", "", "seconds", "range", "n", "iterations", "residual"]
COLUMNS += ["/ least", "distance"]
FLOOR = 1.01  # residuals up to this multiple of the least one count as the least


def result(runs: Sequence[Run]) -> Result:
    """Return a row per method and device count: seconds, and how repeat 0 ended."""
    runs = [run for run in runs if run.lines_of(PointRecord)]
    if not runs:
        return Result()
    rows, least = [], least_of(runs)
    methods = group(runs, lambda run: run.header.variant)
    for run in (run for same in methods.values() for run in same):
        last = repeats(run)[0][-1]
        rows.append([
            run.header.variant,
            labels.count(run.header),
            *seconds_of(run).cells(),
            str(last.iteration),
            f"{last.residual_norm:.6g}",
            f"{last.residual_norm / least:.4f}" if least else "-",
            "-" if last.distance is None else f"{last.distance:.1e}",
        ])  # fmt: skip
    note = (
        "seconds: of a solve, the median of n; residual: ||A x - b||; / least: over "
        "the least one; distance: of x to the optimum, relative"
    )
    answers = {"devices": _by_count(runs), "distance": [sentence(_reached(runs))]}
    further = [f"least ||A x - b|| of all runs: {least:.9g}"]
    return Result(Table(COLUMNS, rows, names=2), note, answers, further)


def repeats(run: Run) -> list[list[PointRecord]]:
    """Return the points of each repeat, at least one."""
    return list(group(run.lines_of(PointRecord), lambda point: point.repeat).values())


def seconds_of(run: Run) -> Summary:
    """Summarize the seconds of a solve; a process makes one, or some `repeats`."""
    in_one_process = run.header.settings.get("repeats", 1)
    processes = group(
        [points[-1] for points in repeats(run)],
        lambda last: last.repeat // in_one_process,
        lambda last: last.seconds,
    )
    return summarize(*processes.values(), floor=floor_of(run.header))


def least_of(runs: Sequence[Run]) -> float:
    """Return the least ||A x - b|| of all runs."""
    return min(p.residual_norm for run in runs for p in run.lines_of(PointRecord))


def knows_optimum(runs: Sequence[Run]) -> bool:
    """Return whether distances to LAPACK's solution were recorded."""
    points = [p for run in runs for p in run.lines_of(PointRecord)]
    return any(p.distance is not None for p in points)


def comparable(runs: Sequence[Run]) -> list[list[Run]]:
    """Return each method's runs by device count; averaging only if it is alone."""
    shared = [run for run in runs if run.header.variant not in AVERAGING] or runs
    methods = group(shared, lambda run: run.header.variant).values()
    return [sorted(same, key=lambda run: run.header.num_devices) for same in methods]


def _by_count(runs: Sequence[Run]) -> list[str]:
    """Return a sentence per method: seconds on the most devices beside the fewest."""
    found = []
    for fewest, *_, most in (same for same in comparable(runs) if len(same) > 1):
        name = f"solving by {fewest.header.variant} on {labels.count(most.header)}"
        other = f"on {labels.count(fewest.header)}"
        found.append(phrase(name, seconds_of(most), other, seconds_of(fewest)))
    return [sentence(text) for text in found]


def _reached(runs: Sequence[Run]) -> str:
    """Return the names of the methods that end within 1 % of the least residual."""
    least = least_of(runs)
    reached: dict[str, bool] = {}
    for run in runs:
        end = median(points[-1].residual_norm for points in repeats(run))
        method = run.header.variant or "the solver"
        reached[method] = reached.get(method, True) and end <= FLOOR * least
    if len(reached) == 1:
        return f"||A x - b|| ends at {least:.6g}"
    names = listed(method for method, there in reached.items() if there)
    return f"methods that end within 1 % of the least ||A x - b||, {least:.6g}: {names}"
