"""What scaling studies found: from which batch on more devices pay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from d2lpar.records.comparison import Comparison, compare, in_cell
from d2lpar.records.kinds import PARTS, Run
from d2lpar.records.result import Result, Table, listed, sentence
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.text import as_ratio, number, plural

NAMES = {"concise": "in Gluon", "ddp": "PyTorch DDP", "d2l": "the book's loop (d2l)"}


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
        gains = {n: speedups(study, n) for n in counts[1:]}
        for batch in study.batches:
            row = [study.name, f"{batch:,}"]
            for n in counts:
                known = (n, batch) in study.records
                ms = study.milliseconds(n, batch).cells() if known else ["-", "-"]
                row += ms[:2]
            rows.append(row + [in_cell(of_n.get(batch)) for of_n in gains.values()])
        answers += [
            sentence(f"{name}{_pays(plural(n, 'device'), of_n)}")
            for n, of_n in gains.items()
            if of_n
        ]
    columns = ["", "batch"]
    for n in counts:
        columns += [f"ms on {n}", "range"]
    columns += [f"speedup of {n}" for n in counts[1:]]
    all_ms = [study.milliseconds(*key) for study in found for key in study.records]
    samples = " or ".join(str(n) for n in sorted({ms.n for ms in all_ms}))
    processes = max((len(ms.processes) for ms in all_ms), default=1)
    of_each = f" of {processes} processes" if processes > 1 else ""
    note = (
        f"ms on N: a step on N devices, the median of {samples or 'no'} samples of "
        f"several steps each{of_each}, in turn on all counts"
    )
    table = Table(columns, rows)
    return Result(table, note, {"speedup": answers}, _further(runs, found))


def comparisons(study: Study, n: int) -> dict[int, Comparison]:
    """Return how long a step takes on one device beside `n`, by global batch."""
    return {
        batch: compare(study.milliseconds(1, batch), study.milliseconds(n, batch))
        for batch in study.batches
        if {(1, batch), (n, batch)} <= study.records.keys()
    }


def speedups(study: Study, n: int) -> dict[int, float | None]:
    """Return speedups by global batch; None where it cannot be told."""
    return {
        batch: found.ratio if found.is_told else None
        for batch, found in comparisons(study, n).items()
    }


def pays_from(by_batch: Mapping[int, float | None]) -> int | None:
    """Return the batch from which on more devices pay at every measured one."""
    batches = sorted(by_batch)
    pays = [(by_batch[batch] or 1) > 1 for batch in batches]
    return next((b for k, b in enumerate(batches) if all(pays[k:])), None)


def pays_between(by_batch: Mapping[int, float | None]) -> tuple[int, int] | None:
    """Return up to which batch more devices never pay, and from which always."""
    batches = sorted(by_batch)
    pays = [(by_batch[batch] or 1) > 1 for batch in batches]
    slower = [(by_batch[batch] or 1) < 1 for batch in batches]
    never = [b for k, b in enumerate(batches) if all(slower[: k + 1])]
    always = [b for k, b in enumerate(batches) if all(pays[k:])]
    return (never[-1], always[0]) if never and always else None


def _pays(devices: str, by_batch: Mapping[int, float | None]) -> str:
    """Say where so many devices pay, where they do not, and where it is not known."""
    gains = dict(sorted(by_batch.items()))
    faster = {batch: gain for batch, gain in gains.items() if gain and gain > 1}
    slower = [batch for batch, gain in gains.items() if gain and gain <= 1]
    unknown = [batch for batch, gain in gains.items() if gain is None]
    not_told = f"; at {_images(unknown)} it cannot be told" if unknown else ""
    if not slower and not faster:
        return f"whether {devices} pay cannot be told at {_images(unknown)}"
    if not faster:
        up_to = f"batches of up to {max(gains):,} images"
        where = _images(slower) if unknown else up_to
        return f"{devices} do not pay at {where}{not_told}"
    best = max(faster, key=faster.__getitem__)
    most = f"at most {as_ratio(faster[best])} times as fast, at {best:,}"
    if len(faster) == len(gains):
        where = f"at every measured batch, from {min(faster):,} images on"
        return f"{devices} pay {where}, {most}"
    if between := pays_between(gains):
        where = "between {:,} and {:,} images per batch".format(*between)
        return f"{devices} begin to pay {where}, {most}"
    not_at = f"; not at {_images(slower)}" if slower else ""
    return f"{devices} pay at {_images(faster)}, {most}{not_at}{not_told}"


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
    of_step = ["", "batch", "devices", *PARTS]
    of_sum = ["bytes", "arrays", "devices", *variants]
    absent = "All-reduces, ms (-: not in this build):"
    tables = [
        Table(of_step, parts, title="Parts of a step, ms:"),
        Table(of_sum, reduced, names=0, title=absent),
    ]
    return [table for table in tables if table.rows]
