"""What inference in low precision found: speed, accuracy, agreement and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from d2lpar.records import files, labels
from d2lpar.records.kinds import PrecisionRecord, Run, group
from d2lpar.records.result import Result, Table, sentence
from d2lpar.records.rule import MARKS, Summary, compare, phrase, summarize

COLUMNS = (
    "weights", "precision", "test acc", "agreement", "images/s", "quartiles",
    "speedup", "bytes",
)  # fmt: skip


def result(runs: Sequence[Run]) -> Result:
    """Return a row per precision of each run, and why some could not be measured."""
    cells, refused, answers, passes = [], [], {}, set()
    for run in runs:
        where, lines = labels.count(run.header), run.lines_of(PrecisionRecord)
        rows = merged(lines)
        float32 = baseline(rows)
        for row in rows:
            cells.append([where, row.weights, row.precision, *["-"] * 6])
            if not row.supported:
                what = f"{row.weights} {row.precision}"
                refused.append(f"{where}: {what} not supported: {row.why_not}")
                continue
            passes.add(row.n)
            speedup = "1" if row is float32 else "-"
            if float32 and row is not float32:
                speedup = compare(seconds(lines, float32), seconds(lines, row)).cell
            cells[-1][3:] = [
                f"{row.test_acc:.4f}",
                f"{row.agreement:.4f}",
                f"{row.images_per_sec:,.0f}",
                f"{row.images_per_sec_q1:,.0f}-{row.images_per_sec_q3:,.0f}",
                speedup,
                f"{row.weight_bytes:,}",
            ]
        picture = f"{files.run_name(run.header)}-precision"
        answers[picture] = [sentence(f"{where}: {_answer(lines, rows)}")]
    note = (
        f"images/s: median of {' or '.join(map(str, sorted(passes))) or 'no'} passes "
        "over the test images; agreement: with the classes in float32; speedup: over "
        f"float32 ({MARKS})"
    )
    columns, names = ["", *COLUMNS], 3
    if len(runs) == 1:  # which the answer names
        columns, names, cells = columns[1:], 2, [row[1:] for row in cells]
    table = Table(columns, cells, names=names)
    return Result(table, note, answers, ["\n".join(refused)] if refused else [])


def _answer(lines: Sequence[PrecisionRecord], rows: Sequence[PrecisionRecord]) -> str:
    """Compare the fastest precision of the trained weights with float32."""
    float32 = baseline(rows)
    trained = [row for row in rows if row.supported and row.weights == "trained"]
    others = [row for row in trained if row is not float32]
    if float32 is None or not others:
        return "there is nothing to compare: float32 or the other precisions are absent"
    best = max(others, key=lambda row: row.images_per_sec)
    time, base = seconds(lines, best), seconds(lines, float32)
    speed = phrase(best.precision, time, "float32", base, "--repeats 4", "s per image")
    accuracies = f"{best.test_acc:.3f} (float32: {float32.test_acc:.3f})"
    return f"{speed}, at a test accuracy of {accuracies}"


def seconds(lines: Iterable[PrecisionRecord], row: PrecisionRecord) -> Summary:
    """Return the seconds per image of a row: medians and quartiles of each repeat.

    Each repeat is a turn: all precisions are measured in it, one after the other.
    """
    name = row.weights, row.precision
    same = [x for x in lines if x.supported and (x.weights, x.precision) == name]
    rates = [(x.images_per_sec_q3, x.images_per_sec, x.images_per_sec_q1) for x in same]
    samples = [1 / rate for of_repeat in rates for rate in of_repeat]
    return summarize(samples, {x.repeat: 1 / x.images_per_sec for x in same})


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
    wanted = "float32", "trained", True
    found = (r for r in rows if (r.precision, r.weights, r.supported) == wanted)
    return next(found, None)
