"""What inference in low precision found: speed, accuracy, agreement and bytes.

A ratio of speeds is given only where the quartiles of both do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from d2lpar.figures import labels
from d2lpar.records.kinds import PrecisionRecord, Run, group
from d2lpar.records.result import Result, Table, sentence
from d2lpar.text import plain_table, times

COLUMNS = (
    "weights", "precision", "test acc", "agreement", "images/s", "quartiles",
    "speedup", "bytes",
)  # fmt: skip


def result(runs: Sequence[Run]) -> Result:
    """A row per precision of each run, and why some could not be measured."""
    runs = [run for run in runs if run.lines_of(PrecisionRecord)]
    if not runs:
        return Result()
    several, rows, refused, answers = len(runs) > 1, [], [], {}
    for run in runs:
        where, measured = labels.count(run.header), _rows(run)
        for cells in cells_of(measured):
            rows.append([where, *cells] if several else cells)
        refused += [f"{where}: {why}" for why in refusals(measured)]
        picture = f"{run.header.device_kind}{run.header.num_devices}-precision"
        answers[picture] = [sentence(f"{where}: {_answer(measured)}")]
    passes = {row.n for run in runs for row in _rows(run) if row.supported}
    note = (
        f"images/s: median of {' or '.join(map(str, sorted(passes))) or 'no'} passes "
        "over the test images; agreement: with the classes in float32; speedup: over "
        "float32"
    )
    columns = ["", *COLUMNS] if several else COLUMNS
    table = Table(columns, rows, names=3 if several else 2)
    return Result(table, note, answers, ["\n".join(refused)] if refused else [])


def _rows(run: Run) -> list[PrecisionRecord]:
    return merged(run.lines_of(PrecisionRecord))


def _answer(rows: Sequence[PrecisionRecord]) -> str:
    """The fastest precision of the trained weights beside float32."""
    float32 = baseline(rows)
    if float32 is None:
        return "float32 was not measured, so there is nothing to compare"
    if not any(row.supported and row is not float32 for row in rows):
        return "only float32 was measured, so there is nothing to compare"
    if float32.n < 2:
        return "too few passes were timed to compare speeds"
    faster = [
        row
        for row in rows
        if row.supported
        and row.weights == "trained"
        and row.images_per_sec_q1 > float32.images_per_sec_q3
    ]
    if not faster:
        return "no precision is faster than float32 beyond the quartiles"
    best = max(faster, key=lambda row: row.images_per_sec)
    ratio = best.images_per_sec / float32.images_per_sec
    return (
        f"{best.precision} is {times(ratio)} times as fast as float32, at a test "
        f"accuracy of {best.test_acc:.3f} (float32: {float32.test_acc:.3f})"
    )


def merged(rows: Iterable[PrecisionRecord]) -> list[PrecisionRecord]:
    """The repeats of each row as one row: the median speed, the widest quartiles.

    Accuracy and bytes are the first repeat's. If a repeat was refused, the row is that
    repeat's.
    """
    rows_of = group(rows, lambda row: (row.weights, row.precision))
    result = []
    for same in rows_of.values():
        refused = [row for row in same if not row.supported]
        pooled = (
            refused[0]
            if refused
            else msgspec.structs.replace(
                same[0],
                images_per_sec=median(row.images_per_sec for row in same),
                images_per_sec_q1=min(row.images_per_sec_q1 for row in same),
                images_per_sec_q3=max(row.images_per_sec_q3 for row in same),
                n=sum(row.n for row in same),
            )
        )
        result.append(pooled)
    return result


def baseline(rows: Iterable[PrecisionRecord]) -> PrecisionRecord | None:
    """The measured row of the trained weights in float32, or None."""
    for row in rows:
        if row.supported and (row.precision, row.weights) == ("float32", "trained"):
            return row
    return None


def cells_of(rows: Sequence[PrecisionRecord]) -> list[list[str]]:
    """The cells of `COLUMNS`, a row per precision."""
    float32, cells = baseline(rows), []
    for row in rows:
        if not row.supported:
            cells.append([row.weights, row.precision, *["-"] * (len(COLUMNS) - 2)])
            continue
        speedup = row.images_per_sec / float32.images_per_sec if float32 else None
        cells.append([
            row.weights,
            row.precision,
            f"{row.test_acc:.4f}",
            f"{row.agreement:.4f}",
            f"{row.images_per_sec:,.0f}",
            f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
            "-" if speedup is None else f"{speedup:.2f}x",
            f"{row.weight_bytes:,}",
        ])  # fmt: skip
    return cells


def refusals(rows: Iterable[PrecisionRecord]) -> list[str]:
    """Why precisions could not be measured, a line for each."""
    return [
        f"{row.weights} {row.precision} not supported: {row.why_not}"
        for row in rows
        if not row.supported
    ]


def table(rows: Iterable[PrecisionRecord]) -> str:
    """A row per precision as text; below, why some were refused."""
    rows = merged(rows)
    text = plain_table(COLUMNS, cells_of(rows), names=2)
    return "\n".join([text, *refusals(rows)]) + "\n"
