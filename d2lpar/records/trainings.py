"""Seconds per epoch and speedups of any training, in cells and in words."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.records import labels, rule
from d2lpar.records.comparison import seconds_per_epoch
from d2lpar.records.kinds import Run, timed_epochs

REPEAT = "--repeats 4"  # turns
SECONDS = ["s/epoch", "range", "n", "speedup"]


def seconds_rows(runs: Sequence[Run]) -> list[list[str]]:
    """Return a row per run: its devices, and the cells of `SECONDS`."""
    base, rows = seconds_per_epoch(runs[0]), []
    for run in runs:
        seconds = seconds_per_epoch(run)
        first = "1" if seconds.n else "-"
        speedup = first if run is runs[0] else rule.compare(base, seconds).cell
        rows.append([labels.configuration(run.header), *seconds.cells(), speedup])
    return rows


def seconds_note(runs: Sequence[Run]) -> str:
    """Return what the columns `SECONDS` of these runs are."""
    all_timed = all(map(timed_epochs, runs))
    untimed = "" if all_timed else f" (-: {rule.NOT_TIMED})"
    return (
        "s/epoch: median of n epochs, without each run's first one, a warm-up"
        f"{untimed}; speedup: over {labels.count(runs[0].header)} ({rule.MARKS})"
    )


def in_short(runs: Sequence[Run]) -> str:
    """Return how fast the last run is beside the first, in few words; "" for one."""
    first, last = runs[0], runs[-1]
    if first is last:
        return ""
    speed = rule.in_short(seconds_per_epoch(last), seconds_per_epoch(first))
    return f"{labels.count(last.header)} are {speed}" if speed else ""


def compared(runs: Sequence[Run]) -> list[str]:
    """Return a phrase per later run: how fast an epoch is beside the first run's."""
    base, where = seconds_per_epoch(runs[0]), labels.count(runs[0].header)
    found = [(labels.count(r.header), seconds_per_epoch(r)) for r in runs[1:]]
    where = f"on {where}"
    return [rule.phrase(f"training on {n}", s, where, base, REPEAT) for n, s in found]
