"""What solvers found: seconds, iterations and errors."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from d2lpar.records import labels
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.records.measurements import REPEAT, of_repeats
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.records.rule import Summary, compare, in_short, phrase

AVERAGING = ("averaging", "averaging-as-published")
METHODS = ("normal", "cgls", "tsqr", "gradient", *AVERAGING)  # in the order of tables
COLUMNS = ["method", "", "seconds", "range", "iterations", "/ least"]
FLOOR = 1.01  # residuals up to this multiple of the least one count as the least
FAILED = "not converged"


def result(runs: Sequence[Run]) -> Result:
    """Return a row per method and device count: seconds, and how repeat 0 ended.

    Methods that end above the least residual have no seconds, and come last.
    """
    runs = in_order(runs)
    rows, ends, least, there = [], [], least_of(runs), reached(runs)
    for run in runs:
        names = [run.header.variant, labels.count(run.header)]
        last = repeats(run)[0][-1]
        middle, spread, _ = seconds_of(run).cells()
        seconds = [middle, spread] if there[run.header.variant] else ["-", FAILED]
        over = f"{last.residual_norm / least:.4f}" if least else "-"
        rows.append([*names, *seconds, str(last.iteration), over])
        distance = "-" if last.distance is None else f"{last.distance:.1e}"
        ends.append([*names, f"{last.residual_norm:.6g}", distance])
    solves = " or ".join(sorted({str(seconds_of(run).n) for run in runs}))
    note = (
        f"seconds: of a solve, the median of {solves}; / least: ||A x - b|| over the "
        f"least one; {FAILED}: more than 1 % above it"
    )
    distances = Table(
        ["method", "", "||A x - b||", "distance"], ends, names=2,
        title="At the end; distance: of x to the optimum, relative",
    )  # fmt: skip
    pairs = [
        (same[0], same[-1])  # on the fewest and the most devices
        for same in comparable(runs)
        if len(same) > 1 and there[same[0].header.variant]
    ]
    pairs.sort(key=lambda pair: -_gain(*pair))  # those that are not told come last
    speeds = []
    for fewest, most in pairs:
        name = f"solving by {fewest.header.variant} on {labels.count(most.header)}"
        other = f"on {labels.count(fewest.header)}"
        both = seconds_of(most), seconds_of(fewest)
        speeds.append(sentence(phrase(name, both[0], other, both[1], REPEAT)))
    answers = {"devices": speeds, "distance": [sentence(_arrive(runs))]}
    if apart := _apart(runs):
        answers["error"] = [sentence(apart)]
    further: list = [distances, f"least ||A x - b|| of all runs: {least:.9g}"]
    short = f"{sum(there.values())} of {len(there)} methods reach the optimum"
    if len(there) == 1:
        short = _arrive(runs)
    if pairs and _gain(*pairs[0]) > 1:
        fewest, most = pairs[0]
        speed = in_short(seconds_of(most), seconds_of(fewest))
        how = f"{labels.count(most.header)} help {most.header.variant} most"
        short += f"; {how}: {speed}"
    return Result(Table(COLUMNS, rows, names=2), note, answers, further, short)


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs by method, those that reach the least residual first."""
    there = reached(runs)

    def place(run: Run) -> tuple:
        name = run.header.variant
        return not there[name], METHODS.index(name), run.header.num_devices

    return sorted(runs, key=place)


def reached(runs: Sequence[Run]) -> dict[str, bool]:
    """Return by method whether all its runs end within 1 % of the least residual."""
    most = FLOOR * least_of(runs)
    arrives = group(
        runs,
        lambda run: run.header.variant,
        lambda run: median(ends[-1].residual_norm for ends in repeats(run)) <= most,
    )
    return {method: all(of_runs) for method, of_runs in arrives.items()}


def repeats(run: Run) -> list[list[PointRecord]]:
    """Return the points of each repeat, at least one."""
    return list(group(run.lines_of(PointRecord), lambda point: point.repeat).values())


def seconds_of(run: Run) -> Summary:
    """Summarize the seconds of a solve; each repeat is a turn."""
    ends = [points[-1] for points in repeats(run)]
    return of_repeats((run, last.repeat, last.seconds) for last in ends)


def least_of(runs: Sequence[Run]) -> float:
    """Return the least ||A x - b|| of all runs."""
    return min(p.residual_norm for run in runs for p in run.lines_of(PointRecord))


def comparable(runs: Sequence[Run]) -> list[list[Run]]:
    """Return each method's runs by device count; averaging only if it is alone."""
    shared = [run for run in runs if run.header.variant not in AVERAGING] or runs
    methods = group(shared, lambda run: run.header.variant).values()
    return [sorted(same, key=lambda run: run.header.num_devices) for same in methods]


def _gain(fewest: Run, most: Run) -> float:
    """Return how many times as fast a solve is on more devices, or 0 if not told."""
    found = compare(seconds_of(fewest), seconds_of(most))
    return found.ratio if found.is_told else 0.0


def _arrive(runs: Sequence[Run]) -> str:
    """Return which methods end within 1 % of the least residual."""
    least, there = least_of(runs), reached(runs)
    if len(there) == 1:
        return f"||A x - b|| ends at {least:.6g}"
    names = [name for name, arrived in there.items() if arrived] or ["none"]
    return (
        f"{sum(there.values())} of {len(there)} methods end within 1 % of the least "
        f"||A x - b||, {least:.6g}: {listed(names)}"
    )


def _apart(runs: Sequence[Run]) -> str:
    """Return how far above the least residual the published method's devices end."""
    published = [run for run in runs if run.header.variant == AVERAGING[1]]
    if not published:
        return ""
    most = max(published, key=lambda run: run.header.num_devices)
    norms = repeats(most)[0][-1].device_residual_norms
    if len(norms) < 2 or max(norms) < FLOOR * min(norms):
        return ""
    return (
        f"as published, averaging ends apart on {labels.count(most.header)}: "
        f"||A x - b|| is {listed(f'{norm:.4g}' for norm in norms)}, the least "
        f"{least_of(runs):.4g}"
    )
