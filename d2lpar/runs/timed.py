"""What records timed, as rows of numbers for pandas or a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records import files
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import (
    BenchmarkHeader,
    EpochRecord,
    PointRecord,
    Run,
    StepRecord,
    TimingRecord,
)
from d2lpar.records.measurements import by_epoch, seconds_per_epoch
from d2lpar.records.rule import Summary, compare, summarize

COUNT = re.compile(r"\d+ (GPU|context|worker)s?")  # of devices, in an arm's name


def as_csv(runs: Sequence[Run]) -> str:
    """Return a row per work and device count of each record, comma-separated.

    The numbers are of turns, each by its median, or else of samples. A work of one
    sweep is compared with that on its fewest devices; the verdict is "faster",
    "slower", "same", "not told" or why it failed. Raises :class:`RecordError` for a
    record without times.
    """
    found = [(run, *row) for run in runs for row in timed_works(run)]
    if not found:
        raise RecordError("no times there")
    base: dict[tuple, tuple[int, Summary]] = {}
    for run, work, devices, seconds in sorted(found, key=lambda row: row[2]):
        base.setdefault((files.sweep_of(run), work), (devices, seconds))
    rows = []
    for run, work, devices, seconds in found:
        fewest, others = base[files.sweep_of(run), work]
        told = compare(others, seconds) if devices != fewest else None
        verdict = told.verdict if told else ""
        if run.lines_of(PointRecord):
            from d2lpar.least_squares.result import FAILED, reached

            same = [x for x in runs if files.sweep_of(x) == files.sweep_of(run)]
            if not reached(same)[run.header.variant]:
                told, verdict = None, FAILED
        turns = tuple(seconds.turns.values())
        values = turns if len(turns) > 1 else seconds.samples
        ends = [*by_epoch(run).values()][-1] if run.lines_of(EpochRecord) else []
        per = "s/step" if run.lines_of(StepRecord) else "s/epoch" if run.epochs else "s"
        benchmark = isinstance(run.header, BenchmarkHeader)
        rows.append({
            "record": run.path,
            "work": work,
            "recipe": "" if benchmark else files.recipe_of(run),
            "devices": devices,
            "unit": f"s for {run.header.work}" if benchmark else per,
            "median": seconds.median if values else None,
            "least": min(values, default=None),
            "most": max(values, default=None),
            "turns": len(turns),
            "samples": seconds.n,
            "verdict": verdict,
            "times_as_fast": told.ratio if told else None,
            "times_as_fast_low": told.low if told else None,
            "times_as_fast_high": told.high if told else None,
            "test_accuracy": median(ends) if ends else None,
            "test_accuracy_least": min(ends, default=None),
            "test_accuracy_most": max(ends, default=None),
        })  # fmt: skip
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().rstrip("\n")


def timed_works(run: Run) -> Iterator[tuple[str, int, Summary]]:
    """Yield (form, number of devices, seconds) of whatever a record timed."""
    if isinstance(run.header, BenchmarkHeader):
        for arm in arm_times(run):
            words = ", ".join(filter(None, (arm.name, arm.work))).split(", ")
            counts = [word for word in words if COUNT.fullmatch(word)]
            row = ", ".join(word for word in words if word not in counts)
            n = int(counts[0].split()[0]) if counts else 1
            yield row or run.header.benchmark, n, arm.summary
    elif run.lines_of(StepRecord):
        from d2lpar.scaling.model import studies
        from d2lpar.scaling.result import name_of

        for study in studies([run]):
            for n, batch in study.records:
                yield f"{name_of(study)}, batch {batch:,}", n, study.seconds(n, batch)
    elif run.lines_of(PointRecord):
        from d2lpar.least_squares.result import seconds_of

        yield run.header.variant, run.header.num_devices, seconds_of(run)
    elif run.lines_of(TimingRecord):
        for line in run.lines_of(TimingRecord):
            name = f"{line.operation}, {line.library}, {line.form}"
            yield name, len(line.devices), summarize(line.seconds)
    elif not run.epochs:
        raise RecordError(f"{run.path}: holds no times of its samples")
    else:
        graphs = run.header.gpu_build.get("cuda_graphs")
        how = {None: "", True: ", CUDA graphs", False: ", no graph"}[graphs]
        yield run.header.chapter + how, run.header.num_devices, seconds_per_epoch(run)
