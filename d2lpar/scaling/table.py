"""Scaling studies as text: steps, their parts and model, accuracies, all-reduces."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from statistics import median

from d2lpar.figures import labels
from d2lpar.records.kinds import PARTS, Run
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.text import number, plain_table, plural


def steps(found: Sequence[Study]) -> str:
    """Milliseconds of a step by global batch and device count, and the speedups."""
    rows = []
    counts = sorted({n for study in found for n in study.counts})
    for study in found:
        for batch in study.batches:
            row = [study.name, f"{batch:,}"]
            for n in counts:
                known = (n, batch) in study.records
                ms = study.milliseconds(n, batch).cells() if known else ["-", "-"]
                row += ms[:2]
            speedups = [study.speedups_of(n).get(batch) for n in counts[1:]]
            rows.append([*row, *(f"{x:.2f}" if x else "-" for x in speedups)])
    columns = ["", "batch"]
    for n in counts:
        columns += [f"ms on {n}", "quartiles"]
    columns += [f"speedup of {n}" for n in counts[1:]]
    return plain_table(columns, rows, names=1)


def results(runs: Sequence[Run]) -> str:
    """Everything that was measured as tables, and the models of a step."""
    found = studies(runs)
    parts, trainings, all_reduce = [], [], []
    for study in found:
        for (n, batch), ms in study.parts.items():
            cells = [number(1e3 * ms[part]) for part in PARTS]
            parts.append([study.name, f"{batch:,}", str(n), *cells])
        for (n, batch), epochs in study.trainings.items():
            for e in epochs:
                end = e.why_not or f"{e.test_acc:.4f}"
                cells = [str(e.epoch), f"{e.lr:.3g}", number(e.seconds), end]
                trainings.append([study.name, f"{batch:,}", str(n), *cells])
    measured = all_reduces(runs)
    variants = list(dict.fromkeys(name for row in measured.values() for name in row))
    for (n, arrays, num_bytes), row in measured.items():
        times = (row.get(variant) for variant in variants)
        ms = [number(1e3 * median(seconds)) if seconds else "-" for seconds in times]
        all_reduce.append([f"{num_bytes:,}", str(arrays), str(n), *ms])
    tables = (
        ("Parts of a step, ms:", ["", "batch", "devices", *PARTS], parts),
        (
            "Trainings:",
            ["", "batch", "devices", "epoch", "lr", "seconds", "test accuracy"],
            trainings,
        ),
        (
            "All-reduces, ms (-: not in this build):",
            ["bytes", "arrays", "devices", *variants],
            all_reduce,
        ),
    )
    sections = []
    n = {study.milliseconds(*key).n for study in found for key in study.records}
    if n:
        samples = " to ".join(dict.fromkeys((str(min(n)), str(max(n)))))
        sections.append(f"Steps, medians of {samples} samples:\n\n{steps(found)}")
    for title, columns, rows in tables:
        if rows:
            sections.append(f"{title}\n\n{plain_table(columns, rows)}")
    sections += [in_words(study) for study in found if study.model]
    return "\n\n".join([*sections, labels.source(runs)]) + "\n"


def in_words(study: Study) -> str:
    """The model of a study with its numbers, and by how much it misses the steps."""
    text = f"{study.name}: a step on N devices takes {formula(study)}."
    for n in study.counts:
        how = "predicted" if n > 1 else "fitted"
        where = f"{plural(n, labels.device_word(study.runs[0].header))} ({how})"
        errors = [100 * abs(error) for error in study.errors_of(n).values()]
        missed = f"{median(errors):.0f} % (median), {max(errors):.0f} % at most"
        text += f" It misses {where} by {missed}."
    return textwrap.fill(text, 88)


def formula(study: Study) -> str:
    """The model of a study with its numbers, for N devices and B samples."""
    model = study.model
    assert model is not None
    device = (
        f"{number(1e3 * model.fixed)} ms + {number(1e6 * model.per_sample)} us x B / N"
    )
    if study.counts != [1]:
        device += f" + (N - 1) x {number(1e3 * model.exchange)} ms"
    issue = f"{number(1e3 * model.issue)} ms"
    if math.isinf(model.cores):
        return f"the longer of N x {issue} (Python) and {device} (a device)"
    return (
        f"the longest of N x {issue} (Python), d = {device} (a device) and N x "
        f"({issue} + d) / {model.cores:g} (the cores)"
    )
