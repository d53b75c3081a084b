"""What inference in low precision found: speed, accuracy, agreement and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from textwrap import fill

import msgspec

from d2lpar.records import labels
from d2lpar.records.comparison import Summary, in_cell, phrase, ratio
from d2lpar.records.kinds import PrecisionRecord, Run, group
from d2lpar.records.result import Result, Table, sentence

COLUMNS = (
    "weights", "precision", "test acc", "agreement", "images/s", "quartiles",
    "speedup", "bytes",
)  # fmt: skip


def result(runs: Sequence[Run]) -> Result:
    """Return a row per precision of each run, and why some could not be measured."""
    runs = [run for run in runs if run.lines_of(PrecisionRecord)]
    if not runs:
        return Result()
    several, cells, refused, answers = len(runs) > 1, [], [], {}
    passes = set()
    for run in runs:
        where, rows = labels.count(run.header), merged(run.lines_of(PrecisionRecord))
        cells += [[where, *row] if several else row for row in cells_of(rows)]
        passes |= {str(row.n) for row in rows if row.supported}
        refused += [f"{where}: {why}" for why in refusals(rows)]
        picture = f"{run.header.device_kind}{run.header.num_devices}-precision"
        answers[picture] = [sentence(f"{where}: {_answer(rows)}")]
    note = (
        f"images/s: median of {' or '.join(sorted(passes, key=int)) or 'no'} passes "
        "over the test images; agreement: with the classes in float32; speedup: over "
        "float32"
    )
    columns = ["", *COLUMNS] if several else COLUMNS
    table = Table(columns, cells, names=3 if several else 2)
    return Result(table, note, answers, ["\n".join(refused)] if refused else [])


def _answer(rows: Sequence[PrecisionRecord]) -> str:
    """Compare the fastest precision of the trained weights with float32."""
    float32 = baseline(rows)
    trained = [row for row in rows if row.supported and row.weights == "trained"]
    others = [row for row in trained if row is not float32]
    if float32 is None or not others:
        return "there is nothing to compare: float32 or the other precisions are absent"
    best = max(others, key=lambda row: row.images_per_sec)
    speed = phrase(best.precision, seconds(best), "float32", seconds(float32))
    accuracies = f"{best.test_acc:.3f} (float32: {float32.test_acc:.3f})"
    return f"{speed}, at a test accuracy of {accuracies}"


def seconds(row: PrecisionRecord) -> Summary:
    """Return the seconds per image of a row, which has quartiles for a range."""
    q1, q3 = row.images_per_sec_q1, row.images_per_sec_q3
    values = 1 / row.images_per_sec, 1 / q3, 1 / q1
    return Summary(*values, row.n, (1 / q3, 1 / q1), values[:1])


def merged(rows: Iterable[PrecisionRecord]) -> list[PrecisionRecord]:
    """Return the repeats of a row as one: the median speed, the widest quartiles."""
    return [
        msgspec.structs.replace(
            min(same, key=lambda row: row.supported),
            images_per_sec=median(row.images_per_sec for row in same),
            images_per_sec_q1=min(row.images_per_sec_q1 for row in same),
            images_per_sec_q3=max(row.images_per_sec_q3 for row in same),
            n=sum(row.n for row in same),
        )
        for same in group(rows, lambda row: (row.weights, row.precision)).values()
    ]


def baseline(rows: Iterable[PrecisionRecord]) -> PrecisionRecord | None:
    """Return the measured row of the trained weights in float32, or None."""
    for row in rows:
        if row.supported and (row.precision, row.weights) == ("float32", "trained"):
            return row
    return None


def speedup(row: PrecisionRecord, float32: PrecisionRecord | None) -> float | None:
    """Return how many times as fast a row is as `float32`, or None."""
    return ratio(seconds(float32), seconds(row)) if float32 else None


def cells_of(rows: Sequence[PrecisionRecord]) -> list[list[str]]:
    """Return the cells of `COLUMNS`, a row per precision."""
    float32, cells = baseline(rows), []
    for row in rows:
        numbers = ["-"] * (len(COLUMNS) - 2)
        if row.supported:
            numbers = [
                f"{row.test_acc:.4f}",
                f"{row.agreement:.4f}",
                f"{row.images_per_sec:,.0f}",
                f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
                in_cell(speedup(row, float32)),
                f"{row.weight_bytes:,}",
            ]
        cells.append([row.weights, row.precision, *numbers])
    return cells


def refusals(rows: Iterable[PrecisionRecord]) -> list[str]:
    """Return why precisions could not be measured, a line for each."""
    refused = [row for row in rows if not row.supported]
    return [f"{r.weights} {r.precision} not supported: {r.why_not}" for r in refused]


def table(rows: Iterable[PrecisionRecord]) -> str:
    """Return a row per precision as text; below, why some were refused."""
    rows = merged(rows)
    text = Table(COLUMNS, cells_of(rows), names=2).in_lines()
    return "\n".join([text, *(fill(why, 80) for why in refusals(rows))])
