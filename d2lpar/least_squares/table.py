"""Solvers as text: seconds, iterations and errors, and the x that they found."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from d2lpar.figures import labels
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import PointRecord, Run, group
from d2lpar.text import plain_table, plural

AVERAGING = ("averaging", "averaging-as-published")
COLUMNS = ["method", "", "seconds", "quartiles", "n", "iterations", "residual"]
COLUMNS += ["/ least", "distance"]


def repeats(run: Run) -> list[list[PointRecord]]:
    """The points of each repeat, at least one."""
    return list(group(run.of(PointRecord), lambda point: point.repeat).values())


def least_of(runs: Sequence[Run]) -> float:
    """The least ||A x - b|| of all runs."""
    return min(point.residual_norm for run in runs for point in run.of(PointRecord))


def table(runs: Sequence[Run]) -> str:
    """A row per run: seconds of its repeats, and where the first of them ended."""
    rows, least = [], least_of(runs)
    by_method = group(runs, lambda run: run.header.variant).values()
    for run in (run for same in by_method for run in same):
        ends = [points[-1] for points in repeats(run)]
        last = ends[0]
        rows.append([
            run.header.variant,
            labels.count(run.header),
            *summarize([point.seconds for point in ends]).cells(),
            str(last.iteration),
            f"{last.residual_norm:.6g}",
            f"{last.residual_norm / least:.4f}",
            "-" if last.distance is None else f"{last.distance:.1e}",
        ])  # fmt: skip
    return plain_table(COLUMNS, rows, names=2)


def results(runs: Sequence[Run]) -> str:
    """What the least-squares notes write to ``data_parallel_result.txt``, of all runs.

    The table; if a method averages, the error of each device's own x; and the x of
    every run that recorded it.
    """
    header = runs[0].header
    lines = [
        f"{header.chapter}, preset {header.preset}",
        f"least ||A x - b|| of all runs: {least_of(runs):.9g}",
        "",
        table(runs),
    ]
    for run in runs:
        last = repeats(run)[0][-1]
        lists = {
            "error of each device's x": last.device_residual_norms,
            "x": last.x,
            "x begins": None if last.x else last.x_begins,
        }
        name = f"{run.header.variant}, {plural(run.header.num_devices, 'device')}"
        for what, values in lists.items():
            if values and ("error" not in what or run.header.variant in AVERAGING):
                numbers = " ".join(f"{value:.9g}" for value in values)
                lines += ["", f"{name}: {what}", *textwrap.wrap(numbers, 88)]
    return "\n".join([*lines, "", labels.source(runs), ""])
