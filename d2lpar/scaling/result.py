"""What scaling studies found: from which batch on more devices pay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from d2lpar.records.kinds import PARTS, Run, group
from d2lpar.records.measurements import REPEAT
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.records.rule import FEWEST, MARKS, Comparison, compare_all
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.text import as_ratio, number, plural

NAMES = {"concise": "in Gluon", "ddp": "PyTorch DDP"}


def name_of(study: Study) -> str:
    """Return what readers call a study's implementation."""
    return NAMES.get(study.name, study.name)


def result(runs: Sequence[Run]) -> Result:
    """Return milliseconds of a step by batch and device count, speedups, and parts."""
    found = studies(runs)
    counts = sorted({n for study in found for n in study.counts})
    rows, answers = [], []
    for study in found:
        name = f"{name_of(study)}: " if len(found) > 1 else ""
        gains = {n: comparisons(study, n) for n in counts[1:]}
        for batch in study.batches:
            row = [study.name, f"{batch:,}"]
            for n in counts:
                known = (n, batch) in study.records
                ms = study.seconds(n, batch).cells(1e3) if known else ["-", "-"]
                row += ms[:2]
            cells = [
                of_n[batch].cell if batch in of_n else "-" for of_n in gains.values()
            ]
            rows.append(row + cells)
        answers += [
            sentence(f"{name}{_pays(plural(n, 'device'), of_n)}")
            for n, of_n in gains.items()
            if of_n
        ]
    columns = ["", "batch"]
    for n in counts:
        columns += [f"ms on {n}", "range"]
    columns += [f"speedup of {n}" for n in counts[1:]]
    steps = [study.seconds(*key) for study in found for key in study.records]
    samples = " or ".join(str(n) for n in sorted({step.n for step in steps}))
    turns = " or ".join(str(n) for n in sorted({len(step.turns) for step in steps}))
    note = (
        f"ms on N: a step on N devices, the median of {samples or 'no'} samples of "
        f"several steps each in {turns or 'no'} turns ({MARKS})"
    )
    table = Table(columns, rows)
    short = "; ".join(
        f"{plural(n, 'device')}{f' ({name_of(study)})' * (len(found) > 1)}: "
        + _in_short(comparisons(study, n))
        for study in found
        for n in counts[1:]
    )
    return Result(table, note, {"speedup": answers}, _further(runs, found), short)


def comparisons(study: Study, n: int) -> dict[int, Comparison]:
    """Return how long a step takes on one device beside `n`, by global batch.

    One allowance is made for all batches of the study.
    """
    batches = [b for b in study.batches if {(1, b), (n, b)} <= study.records.keys()]
    pairs = [(study.seconds(1, batch), study.seconds(n, batch)) for batch in batches]
    return dict(zip(batches, compare_all(pairs)))


def pays_from(found: Mapping[int, Comparison]) -> int | None:
    """Return the batch from which on more devices are faster at every measured one."""
    batches = sorted(found)
    pays = [_says(found[batch]) == "faster" for batch in batches]
    return next((b for k, b in enumerate(batches) if all(pays[k:])), None)


def _says(found: Comparison) -> str:
    """Return what the rule says of more devices, in words."""
    return "the same within 15 %" if found.verdict == "same" else found.verdict


def _pays(devices: str, found: Mapping[int, Comparison]) -> str:
    """Say where so many devices pay, where they do not, and where it is not told."""
    batches = group(found, lambda batch: _says(found[batch]))
    pay = batches.pop("faster", [])
    best = max(pay or found, key=lambda batch: found[batch].ratio)
    c = found[best]
    most = f"at most {as_ratio(c.ratio)} times as fast, at {best:,}"
    if all(c.turns < FEWEST for c in found.values()):
        general = f"whether it is so in general: {REPEAT}"
        return f"in this run {devices} were {most} images; {general}"
    others = [f"{says} at {_images(at)}" for says, at in sorted(batches.items())[::-1]]
    if not pay:
        return f"{devices}: {'; '.join(others)}"
    on = pays_from(found) == min(pay)
    at = f"from {min(pay):,} images on" if on else f"at {_images(pay)}"
    ends = f"({as_ratio(c.low)} to {as_ratio(c.high)})"
    return "; ".join([f"{devices} pay {at}, {most} {ends}", *others])


def _in_short(found: Mapping[int, Comparison]) -> str:
    """Return the ratio at the least, a middle and the largest batch, with its range."""
    batches, words = sorted(found), []
    for batch in dict.fromkeys((batches[0], batches[len(batches) // 2], batches[-1])):
        c = found[batch]
        says = "times as fast" if c.is_told else f"({_says(c)})"
        words.append(f"{c.ratio:.2f} {says} at {batch:,} ({c.low:.2f} to {c.high:.2f})")
    return "; ".join(words)


def _images(batches: Iterable[int]) -> str:
    """Return sizes of batches as text: "8, 16 and 32 images"."""
    return f"{listed(f'{batch:,}' for batch in batches)} images"


def _further(runs: Sequence[Run], found: Sequence[Study]) -> list[Table]:
    """Return tables of a step's parts and of all-reduces, where measured."""
    parts, reduced = [], []
    for study in found:
        for (n, batch), seconds in study.parts.items():
            cells = [number(1e3 * seconds[part]) for part in PARTS]
            parts.append([study.name, f"{batch:,}", str(n), *cells])
    measured = all_reduces(runs)
    variants = list(dict.fromkeys(name for row in measured.values() for name in row))
    for (n, arrays, num_bytes), row in measured.items():
        of_each = (row.get(variant) for variant in variants)
        ms = [number(1e3 * s.median) if s and s.n else "-" for s in of_each]
        reduced.append([f"{num_bytes:,}", str(arrays), str(n), *ms])
    of_sum = ["bytes", "arrays", "devices", *variants]
    absent = "All-reduces, ms (-: not in this build):"
    tables = [
        Table(["", "batch", "devices", *PARTS], parts, title="Parts of a step, ms:"),
        Table(of_sum, reduced, names=0, title=absent),
    ]
    return [table for table in tables if table.rows]
