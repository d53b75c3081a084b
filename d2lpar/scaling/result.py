"""What scaling studies found: from which batch on more devices pay, and why.

Steps by global batch; further their parts, trainings and all-reduces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from d2lpar.figures import labels
from d2lpar.records.comparison import Summary, summarize
from d2lpar.records.kinds import PARTS, Run
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.text import number, plural, times

NAMES = {"concise": "in Gluon", "ddp": "PyTorch DDP", "d2l": "the book's loop (d2l)"}


def name_of(study: Study) -> str:
    """What readers call a study's implementation."""
    return NAMES.get(study.name, study.name)


def result(runs: Sequence[Run]) -> Result:
    """Milliseconds of a step by global batch and device count, and the speedups.

    Further: parts of a step, trainings, all-reduces.
    """
    found = studies(runs)
    word = labels.device_word(runs[0].header)
    rows, counts = [], sorted({n for study in found for n in study.counts})
    for study in found:
        for batch in study.batches:
            row = [study.name, f"{batch:,}"]
            for n in counts:
                known = (n, batch) in study.records
                ms = study.milliseconds(n, batch).cells() if known else ["-", "-"]
                row += ms[:2]
            gains = [study.speedups_of(n).get(batch) for n in counts[1:]]
            rows.append([*row, *(f"{gain:.2f}" if gain else "-" for gain in gains)])
    columns = ["", "batch"]
    for n in counts:
        columns += [f"ms on {n}", "quartiles"]
    columns += [f"speedup of {n}" for n in counts[1:]]
    samples = {study.milliseconds(*key).n for study in found for key in study.records}
    of_each = " or ".join(map(str, sorted(samples)))
    note = (
        f"ms on N: a step on N {word}s, the median of {of_each or 'no'} samples of "
        "several steps each; speedup: of neighbouring samples"
    )
    answers = {"speedup": _answers(found, word)}
    return Result(Table(columns, rows), note, answers, _further(runs, found))


def speedups(study: Study, n: int) -> dict[int, list[float]]:
    """Speedups of n devices over one by global batch, one per pair of samples.

    Of samples that were measured in turn, or of one run each in the same order.
    """
    return {
        batch: [
            one / many
            for a, b in zip(study.records[1, batch], study.records[n, batch])
            for one, many in zip(a.seconds, b.seconds)
        ]
        for batch in study.batches
        if (1, batch) in study.records and (n, batch) in study.records
    }


def _answers(found: Sequence[Study], word: str) -> list[str]:
    """From which batch on each count of devices pays, over all studies and in each."""
    overall, details = [], []
    for n in sorted({n for study in found for n in study.counts[1:]}):
        devices, begins = plural(n, word), []
        for study in found:
            if pairs := speedups(study, n):
                by_batch = {b: summarize(values) for b, values in pairs.items()}
                if any(speedup.n < 2 for speedup in by_batch.values()):
                    continue  # a single sample has no spread
                name = f"{name_of(study)}: " if len(found) > 1 else ""
                details.append(sentence(f"{name}{devices} {_pays(by_batch)}"))
                begins.append(pays_between(by_batch))
        known = [begin for begin in begins if begin]
        if len(begins) > 1 and len(known) == len(begins):
            never, always = min(b for b, _ in known), max(b for _, b in known)
            overall.append(
                f"{devices} begin to pay between {never:,} and {always:,} images per "
                "batch."
            )
    return overall + details


def pays_between(by_batch: Mapping[int, Summary]) -> tuple[int, int] | None:
    """The batch up to which more devices never pay, and that from which they always do.

    They pay where the quartiles of the speedup lie above 1. None unless both are among
    the measured batches.
    """
    pays = {batch: speedup.q1 > 1 for batch, speedup in sorted(by_batch.items())}
    never = [b for b in pays if not any(pays[c] for c in pays if c <= b)]
    always = [b for b in pays if all(pays[c] for c in pays if c >= b)]
    return (never[-1], always[0]) if never and always else None


def _pays(by_batch: Mapping[int, Summary]) -> str:
    """Where more devices pay, and by how much at most."""
    faster = {b: s.median for b, s in sorted(by_batch.items()) if s.q1 > 1}
    if not faster:
        return f"do not pay at batches of up to {max(by_batch):,} images"
    best, ratio = max(faster.items(), key=lambda pair: pair[1])
    most = f"at most {times(ratio)} times as fast, at {best:,}"
    if len(faster) == len(by_batch):
        return f"pay at every measured batch, from {min(faster):,} images on, {most}"
    if between := pays_between(by_batch):
        never, always = between
        return f"begin to pay between {never:,} and {always:,} images per batch, {most}"
    batches = listed(f"{batch:,}" for batch in faster)
    return f"pay at no measured batch but {batches} images, {most}"


def _further(runs: Sequence[Run], found: Sequence[Study]) -> list[Table]:
    """Tables of parts, trainings and all-reduces, where measured."""
    parts, trainings, all_reduce = [], [], []
    for study in found:
        for (n, batch), seconds in study.parts.items():
            cells = [number(1e3 * seconds[part]) for part in PARTS]
            parts.append([study.name, f"{batch:,}", str(n), *cells])
        for (n, batch), epochs in study.trainings.items():
            for e in epochs:
                end = e.why_not or f"{e.test_acc:.4f}"
                cells = [str(e.epoch), f"{e.lr:.3g}", number(e.seconds), end]
                trainings.append([study.name, f"{batch:,}", str(n), *cells])
    measured = all_reduces(runs)
    variants = list(dict.fromkeys(name for row in measured.values() for name in row))
    for (n, arrays, num_bytes), row in measured.items():
        samples = (row.get(variant) for variant in variants)
        ms = [number(1e3 * median(s)) if s else "-" for s in samples]
        all_reduce.append([f"{num_bytes:,}", str(arrays), str(n), *ms])
    columns = ["", "batch", "devices"]
    after = ["epoch", "lr", "seconds", "test accuracy"]
    sizes = ["bytes", "arrays", "devices"]
    tables = [
        Table([*columns, *PARTS], parts, title="Parts of a step, ms:"),
        Table([*columns, *after], trainings, title="Trainings:"),
        Table(
            [*sizes, *variants],
            all_reduce,
            names=0,
            title="All-reduces, ms (-: not in this build):",
        ),
    ]
    return [table for table in tables if table.rows]
