"""What trainings of LeNet found: seconds per epoch, speedups, test accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import median

import msgspec

from d2lpar.records import measurements
from d2lpar.records.kinds import EpochRecord, Line, Run, group, timed_epochs
from d2lpar.records.measurements import SECONDS, seconds_note, seconds_rows, speeds
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.text import number

SAME_ACCURACY = 0.01  # less than the difference between two seeds
GUESSING = 0.1  # the accuracy of guessing one of ten classes


def is_guessing(accuracy: float) -> bool:
    """Return whether a network has not begun to learn."""
    return accuracy <= GUESSING + 0.02


def result(runs: Sequence[Run]) -> Result:
    """Return a row per device count and way to share of one chapter, over all seeds."""
    seeds = {run.header.seed for run in runs}
    one_seed = len(seeds) == 1 and not runs[0].header.settings.get("seeds")
    runs = pooled(runs)
    columns, rows = ["", *SECONDS], seconds_rows(runs)
    sent = list(map(_megabytes, runs))
    if any(megabytes != "-" for megabytes in sent):
        columns.append("MB sent/epoch")
        rows = [[*cells, megabytes] for cells, megabytes in zip(rows, sent)]
    columns.append("test accuracy")
    accuracies = list(map(_accuracy, runs))
    rows = [[*cells, accuracy] for cells, accuracy in zip(rows, accuracies)]
    last = max(epoch.epoch for run in runs for epoch in run.epochs)
    what = f"after epoch {last}"
    if any("(" in accuracy for accuracy in accuracies):
        what += ", median and range of the trainings"
    scale = runs[0].header.settings.get("scale")
    start = f", weights start from N(0, {scale:g})" if scale else ""
    note = f"{seconds_note(runs)}; test accuracy: {what}{start}; 0.100 is guessing"
    ends = [measurements.at_the_end(run) for run in runs]
    guesses = [" (guessing)" * is_guessing(end) for end in ends]
    marked = listed(map("".join, zip(accuracies, guesses)))
    short = f"accuracy {marked} after epoch {last}"
    short = "; ".join(filter(None, (short, measurements.speed_in_short(runs))))
    each = [f"{end:.3f}" for end in ends]
    alike = len(ends) > 1 and max(ends) - min(ends) <= SAME_ACCURACY
    what = "about the same test accuracy" if alike else "test accuracy"
    words = f"training ends at {what}: {listed(map(''.join, zip(each, guesses)))}"
    if is_guessing(max(ends)):
        words = (
            f"training has not begun to learn: it ends at {listed(each)}; take more "
            "epochs, or a smaller batch"
        )
    elif len(ends) > 1 and not alike and one_seed:
        words += ", with one random seed"
    seconds = list(map(sentence, speeds(runs)))
    answers = {"seconds": seconds, "accuracy": [sentence(words)]}
    return Result(Table(columns, rows), note, answers, short=short)


def pooled(runs: Sequence[Run]) -> list[Run]:
    """Return one run for all random seeds, each a repeat, in the order of the rows."""
    place = attrgetter("num_devices", "workers", "variant")
    joined = []
    for _, same in sorted(group(runs, lambda run: place(run.header)).items()):
        lines: list[Line] = []
        for run in same:
            first = 1 + max((line.repeat for line in lines), default=-1)
            lines += [
                msgspec.structs.replace(line, repeat=first + line.repeat)
                for line in run.lines
            ]
        header = same[0].header
        if len(same) > 1:  # of several sweeps
            header = msgspec.structs.replace(header, turns=[])
        joined.append(replace(same[0], header=header, lines=tuple(lines)))
    return joined


def _accuracy(run: Run) -> str:
    ends = list(measurements.by_epoch(run).values())[-1]
    spread = f" ({min(ends):.3f} to {max(ends):.3f})" if len(ends) > 1 else ""
    if len(ends) > 1 and min(ends) == max(ends):
        spread = f" ({len(ends)} times the same)"  # one seed, repeated
    return f"{median(ends):.3f}{spread}"


def _megabytes(run: Run) -> str:
    epochs = timed_epochs(run) or run.lines_of(EpochRecord)  # bytes need no warm-up
    sent = [e.wire_bytes for e in epochs if e.wire_bytes]
    return number(median(sent) / 1e6) if sent else "-"
