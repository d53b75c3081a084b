"""What a GAN's trainings found: seconds per epoch, and how good the last faces are."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from d2lpar.records import measurements
from d2lpar.records.kinds import FrameRecord, Run
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.text import number

MEASURES = {"frechet": "Fréchet", "coverage": "coverage"}


def result(runs: Sequence[Run]) -> Result:
    """Return a row per device count, and per set that the faces are compared with."""
    rows = []
    for run, seconds in zip(runs, measurements.seconds_rows(runs)):
        steps = max(frame.num_steps for frame in run.lines_of(FrameRecord))
        ends = [measurements.at_the_end(run, measure) for measure in MEASURES]
        rows.append([*seconds, f"{steps:,}", *map(number, ends)])
    known = measurements.references(runs[-1])
    kind = "drawn" if runs[-1].header.synthetic else "real"
    for name, values in known.items():
        cells = [number(values[measure]) for measure in MEASURES]
        empty = ["-"] * (len(measurements.SECONDS) + 1)
        rows.append([name.replace("real", kind), *empty, *cells])
    columns = ["", *measurements.SECONDS, "steps", *MEASURES.values()]
    answers = {
        "film": [],  # the faces themselves
        "strip": [],
        "seconds": list(map(sentence, measurements.speeds(runs))),
        "quality": list(map(sentence, _qualities(runs, known, kind))),
    }
    note = (
        f"{measurements.seconds_note(runs)}; Fréchet: distance of the features of "
        f"generated and {kind} faces, 0 if alike; coverage: share of {kind} faces with "
        "a generated one among their nearest neighbours"
    )
    steps = rows[0][len(measurements.SECONDS) + 1]
    short = f"after {steps} steps {_distance(runs, known, kind)}"
    short = "; ".join(filter(None, (short, measurements.speed_in_short(runs))))
    return Result(Table(columns, rows), note, answers, short=short)


def _percent(share: float) -> str:
    digits = 0 if share == 0 or share >= 0.01 else 1
    return f"{100 * share:.{digits}f} %"


def _distance(
    runs: Sequence[Run], known: dict[str, dict[str, float]], kind: str
) -> str:
    """Say whether the last faces of all runs are nearer to the data than noise is."""
    ends = [measurements.at_the_end(run, "frechet") for run in runs]
    noise = known["noise"]["frechet"]
    where = f"nearer to {kind} faces than noise is"
    if max(ends) >= noise:
        where = f"still about as far from {kind} faces as noise is"
    if min(ends) >= noise:
        where = f"still farther from {kind} faces than noise is"
    return f"the generated faces are {where}"


def _qualities(
    runs: Sequence[Run], known: dict[str, dict[str, float]], kind: str
) -> list[str]:
    """Say what became of the Fréchet distance, and how many faces are covered."""
    ends = [measurements.at_the_end(run, "frechet") for run in runs]
    others, noise = known["other real faces"], known["noise"]
    begin = median(next(iter(measurements.by_epoch(runs[0], "frechet").values())))
    shares = [measurements.at_the_end(run, "coverage") for run in runs]
    end, covered = listed(map(number, ends)), listed(map(_percent, shares))
    return [
        f"at the end {_distance(runs, known, kind)}",
        f"their Fréchet distance is {end}, {number(begin)} at first; of noise it is "
        f"{number(noise['frechet'])}, of other {kind} faces "
        f"{number(others['frechet'])}",
        f"of the {kind} faces, {covered} have a generated one among their nearest "
        f"neighbours (coverage; other {kind} faces: {_percent(others['coverage'])})",
    ]
