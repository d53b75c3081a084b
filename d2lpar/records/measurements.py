"""What trainings measured: seconds, accuracy, a GAN's faces; as numbers and in words.

Which of two is faster is decided elsewhere, by :mod:`d2lpar.records.rule`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records import files, kinds, labels, rule
from d2lpar.records.kinds import FrameRecord, Run, group, timed_epochs
from d2lpar.records.rule import Summary, in_turns

REPEAT = "--repeats 4"  # turns
SECONDS = ["s/epoch", "range", "n", "speedup"]  # the cells of `seconds_rows`


# Seconds


def seconds_per_epoch(*runs: Run) -> Summary:
    """Return training seconds per epoch, without warm-ups: n is 0 for none.

    Each repeat is a process, in turn with those of the other runs of its sweep. Raises
    :class:`RecordError` for a run without epochs.
    """
    for run in runs:
        if not run.epochs:
            raise RecordError(f"{run.path}: holds no epochs; see d2lpar report")
    return of_repeats(
        (run, e.repeat, e.seconds) for run in runs for e in timed_epochs(run)
    )


def of_repeats(measured: Iterable[tuple[Run, int, float]]) -> Summary:
    """Summarize values of runs and their repeats, of which each is a turn."""
    by_process = group(
        measured, lambda x: (sitting_of(x[0]), id(x[0]), x[1]), lambda x: x[2]
    )
    found = in_turns(by_process)
    turns = {
        (sitting, repeat): seconds
        for (sitting, _, repeat), seconds in found.turns.items()
        if sitting
    }
    return replace(found, turns=turns)


def sitting_of(run: Run) -> Hashable:
    """Return what runs share that took turns, or None: they are in one folder.

    A sweep replaces all of its records at once, unless they are kept under a date.
    """
    turns, path = run.header.turns, run.path
    in_force = path is not None and path.name.count(".") == 1
    return (*files.sweep_of(run), *turns) if turns and in_force else None


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
    untimed = "" if all(map(timed_epochs, runs)) else f" (-: {rule.NOT_TIMED})"
    return (
        "s/epoch: median of processes' medians, of n epochs without warm-ups"
        f"{untimed}; speedup: over {labels.count(runs[0].header)} ({rule.MARKS})"
    )


def speed_in_short(runs: Sequence[Run]) -> str:
    """Return how fast the last run is beside the first, in few words; "" for one."""
    first, last = runs[0], runs[-1]
    speed = rule.in_short(seconds_per_epoch(last), seconds_per_epoch(first))
    return f"{labels.count(last.header)} are {speed}" if speed and len(runs) > 1 else ""


def speeds(runs: Sequence[Run]) -> list[str]:
    """Return a phrase per later run: how fast an epoch is beside the first run's."""
    where, *others = (f"on {labels.count(run.header)}" for run in runs)
    base, *seconds = map(seconds_per_epoch, runs)
    return [
        rule.phrase(f"training {name}", mine, where, base, REPEAT)
        for name, mine in zip(others, seconds)
    ]


# Accuracy, and the quality of a GAN's faces


def by_epoch(run: Run, measure: str = "test_acc") -> dict[int, list[float]]:
    """Return a measure by ascending epoch, one value per repeat.

    It is a field of the epochs, or of a GAN's frames: "frechet" or "coverage".
    """
    kind = FrameRecord if is_gan(run) else kinds.EpochRecord
    lines = sorted(run.lines_of(kind), key=lambda line: line.epoch)
    return group(lines, lambda line: line.epoch, lambda line: getattr(line, measure))


def at_the_end(run: Run, measure: str = "test_acc") -> float:
    """Return the repeats' median of a measure after the last epoch."""
    return median(list(by_epoch(run, measure).values())[-1])


def references(run: Run) -> dict[str, dict[str, float]]:
    """Return the quality of the sets that a GAN's faces are compared with, by name."""
    return run.lines_of(FrameRecord)[0].references


def is_gan(run: Run) -> bool:
    """Return whether the run trained a GAN, which has no test accuracy."""
    return bool(run.lines_of(kinds.GanEpochRecord))
