"""What trainings of LeNet found: seconds per epoch, speedups, test accuracies.

Of several workers also the bytes sent. A ratio of times is given only where the
quartiles of both do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from d2lpar.figures import labels
from d2lpar.records import comparison
from d2lpar.records.kinds import EpochRecord, Run, group, timed
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.text import number, plural, times

SAME_ACCURACY = 0.01  # less than the difference between two seeds
SECONDS = ["s/epoch", "quartiles", "n", "speedup"]


def result(runs: Sequence[Run]) -> Result:
    """A row per chapter, device count and way to share, over all random seeds.

    Speedups are over each chapter's first row: on the fewest devices, and of workers
    those with ``dist_sync``.
    """
    seeds = {run.header.seed for run in runs}
    runs = _pooled([run for run in runs if run.lines_of(EpochRecord)])
    if not runs:
        return Result()
    chapters = group(runs, lambda run: run.header.chapter)
    several = len(chapters) > 1
    epochs = [epoch for run in runs for epoch in run.lines_of(EpochRecord)]
    sent = any(epoch.wire_bytes is not None for epoch in epochs)
    rows, speeds, accuracies = [], [], []
    for chapter, same in chapters.items():
        name = labels.CHAPTERS.get(chapter, chapter) if several else ""
        of_chapter = f"{name}: " if several else ""
        for run, seconds in zip(same, seconds_rows(same)):
            where, *times = seconds
            row = [f"{name}, {where}" if several else where, *times]
            if sent:
                row.append(_megabytes(run))
            rows.append([*row, _accuracy(run)])
        speeds += [sentence(of_chapter + words) for words in compared(same)]
        ends = [comparison.final_accuracy(run) for run in same]
        alike = len(ends) > 1 and max(ends) - min(ends) <= SAME_ACCURACY
        shown = [f"{end:.3f}" for end in ends]
        what = "test accuracy"
        if alike:
            about = "about the same" if len(set(shown)) > 1 else "the same"
            what = f"{about} test accuracy"
        values = listed(shown)
        words = f"{of_chapter}training ends at {what}: {values}"
        if len(ends) > 1 and not alike and len(seeds) == 1:
            words += ", with one random seed"
        accuracies.append(sentence(words))
    columns = ["", *SECONDS, *(["MB sent/epoch"] if sent else []), "test accuracy"]
    answers = {"seconds": speeds, "accuracy": accuracies}
    if labels.several_ways(runs):
        answers = {"sharing": [*speeds, *accuracies]}
    note = seconds_note(runs[0])
    if any("(" in row[-1] for row in rows):
        note += "; test accuracy: median and range of the trainings"
    return Result(Table(columns, rows), note, answers)


def _pooled(runs: Sequence[Run]) -> list[Run]:
    """One run for all random seeds, in the order of the rows."""

    def place(run: Run) -> tuple:
        header = run.header
        return header.chapter, header.num_devices, header.workers, header.variant

    return [
        replace(same[0], lines=tuple(line for run in same for line in run.lines))
        for _, same in sorted(group(runs, place).items())
    ]


def seconds_rows(runs: Sequence[Run]) -> list[list[str]]:
    """By run where it was, and the cells of `SECONDS`; all runs have epochs."""
    rows = []
    for run in runs:
        seconds = comparison.seconds_per_epoch(run)
        base = comparison.seconds_per_epoch(runs[0])
        speedup = f"{base.median / seconds.median:.2f}"
        rows.append([labels.configuration(run.header), *seconds.cells(), speedup])
    return rows


def seconds_note(first: Run) -> str:
    """Return what the columns `SECONDS` are, of runs of which this is the first."""
    return (
        "s/epoch: median of n epochs, without each run's first one, a warm-up; "
        f"speedup: over {labels.count(first.header)}"
    )


def compared(runs: Sequence[Run]) -> list[str]:
    """How long an epoch of each run takes beside one of the first, in words."""
    return [_compared(run, runs[0]) for run in runs[1:]]


def _compared(run: Run, base: Run) -> str:
    one, other = map(comparison.seconds_per_epoch, (base, run))
    this, first = _group(run), _group(base)
    if not one.can_be_compared(other):
        return f"too few epochs were timed to compare {this} with {first}"
    if one.overlaps(other):
        return f"{this} train about as fast as {first} (the quartiles overlap)"
    if other.median < one.median:
        return (
            f"{this} train {times(one.median / other.median)} times as fast as {first}"
        )
    return f"{this} take {times(other.median / one.median)} times as long as {first}"


def _group(run: Run) -> str:
    """What trained together: "2 contexts", "2 workers (async)"."""
    header = run.header
    if header.workers == 1:
        return labels.count(header)
    return f"{plural(header.workers, 'worker')} ({header.variant or 'sync'})"


def _accuracy(run: Run) -> str:
    ends = list(comparison.accuracy_by_epoch(run).values())[-1]
    middle = f"{median(ends):.3f}"
    return (
        middle if len(ends) == 1 else f"{middle} ({min(ends):.3f} to {max(ends):.3f})"
    )


def _megabytes(run: Run) -> str:
    sent = [e.wire_bytes for e in timed(run.lines_of(EpochRecord)) if e.wire_bytes]
    return number(median(sent) / 1e6) if sent else "-"
