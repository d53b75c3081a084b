"""`d2lpar compare A B`: two records of trainings, and all that differs between them."""

from __future__ import annotations

import math
from statistics import median
from typing import Any

import msgspec

from d2lpar.errors import RecordError
from d2lpar.experiments import differing_settings
from d2lpar.records import comparison, files
from d2lpar.records.comparison import (
    Summary,
    accuracy_by_epoch,
    false_alarms,
    is_gan,
    of_timed_epochs,
    phrase,
    quality_by_epoch,
    seconds_per_epoch,
)
from d2lpar.records.kinds import Header, Run, timed_epochs
from d2lpar.records.result import sentence
from d2lpar.records.trainings import REPEAT
from d2lpar.text import filled, number, plain_table

# What is compared, and what differs between any two runs.
COMPARED = {"num_devices", "devices", "device_counts", "command", "date"}


def compare(a: Run, b: Run) -> str:
    """Return what both runs measured, how fast b is beside a, and what else differs.

    Accuracies are compared after the last epoch that both have. Raises
    :class:`RecordError` for runs of different kinds.
    """
    runs = a, b
    seconds = [seconds_per_epoch(run) for run in runs]
    if is_gan(a) != is_gan(b):
        raise RecordError(
            f"{a.path} and {b.path}: only one of them is a GAN; compare runs of the "
            "same kind"
        )
    rates = [[e.samples_per_sec for e in timed_epochs(run)] for run in runs]
    of_a, of_b = (
        of_timed_epochs([run], lambda e: 1e3 / e.samples_per_sec) for run in runs
    )
    name, by_epoch = "test_acc", accuracy_by_epoch
    if is_gan(a):
        name, by_epoch = "frechet", quality_by_epoch
    ends = [by_epoch(run) for run in runs]
    both = set(ends[0]) & set(ends[1])
    last = max(both, default=0)
    values = [median(of[last]) if both else math.nan for of in ends]
    rows = [
        ("devices", *(str(run.header.num_devices) for run in runs)),
        *zip(("s/epoch", "range", "epochs timed"), *(s.cells() for s in seconds)),
        ("samples/s", *(number(median(of)) if of else "-" for of in rates)),
        (f"{name}, epoch {last}", *(f"{value:.4f}" for value in values)),
    ]
    lines = [f"{name}  {run.path}" for name, run in zip("ab", runs)]
    lines += ["", plain_table(["", "a", "b"], rows, names=1), ""]
    unit = "s per 1,000 samples"
    words = phrase("record b", of_b, "record a", of_a, REPEAT, unit)
    lines.append(filled(sentence(words)))
    in_turn = a.header.turns and files.sweep_of(a) == files.sweep_of(b)
    if comparison.compare(of_a, of_b).is_told and not in_turn:
        lines.append(filled("They did not take turns: was the machine equally free?"))
    facts_a, facts_b = _facts(a.header), _facts(b.header)
    names = {**facts_a, **facts_b}
    differing = [name for name in names if facts_a.get(name) != facts_b.get(name)]
    if not is_gan(a) and both:
        lines.append(filled(_same_accuracy(a, b, last, *values)))
    is_same_work = set(differing) <= {"recipe", "turns", "seed", "seeds"}
    if is_same_work and a.header.num_devices == b.header.num_devices:
        lines.append(filled(_false_alarm(of_a, of_b)))
    lines.append("differences:" if differing else "no other differences")
    for name in differing:
        both_values = f"{facts_a.get(name)} and {facts_b.get(name)}"
        lines += filled(f"{name}: {both_values}", "  ").splitlines()
    return "\n".join(lines)


def _same_accuracy(a: Run, b: Run, epoch: int, mine: float, other: float) -> str:
    """Say whether an accuracy was reproduced, by the spread of seeds beside `b`."""
    after = f"after epoch {epoch}"
    if mine == other:
        return f"The accuracies {after} are equal."
    seeds = seeds_beside(b, epoch) or seeds_beside(a, epoch)
    if len(seeds) < 3:
        return (
            f"The accuracies {after} are {abs(mine - other):.3f} apart. Is that much? "
            "Compare with a record whose folder has three seeds (--seeds 0,1,2)."
        )
    least, most = min(seeds), max(seeds)
    where = "within" if least <= mine <= most and least <= other <= most else "outside"
    return (
        f"The accuracies {after} are {abs(mine - other):.3f} apart, {where} the spread "
        f"of {len(seeds)} seeds ({least:.3f} to {most:.3f})."
    )


def seeds_beside(run: Run, epoch: int) -> list[float]:
    """Return accuracies after an epoch: of the run, and of other seeds beside it."""
    if run.path is None:
        return []
    beside = [
        *run.path.parent.glob("*.jsonl"),
        *run.path.parent.parent.glob("*/*.jsonl"),
    ]
    found: dict[int, float] = {}
    for path in sorted(set(beside)):
        try:
            other = files.read(path)
        except (RecordError, OSError):
            continue
        known = other.header
        if not isinstance(known, Header) or any(
            getattr(known, name) != getattr(run.header, name)
            for name in ("chapter", "num_devices", "device_kind", "dataset")
        ):
            continue
        if not differing_settings([run, other]) and epoch in accuracy_by_epoch(other):
            found.setdefault(known.seed, median(accuracy_by_epoch(other)[epoch]))
    return list(found.values())


def _false_alarm(a: Summary, b: Summary) -> str:
    """Say what rules of thumb find between two runs of the same work."""
    n = min(a.n, b.n)
    thumbs = {
        "the medians differ": a.median != b.median,
        "the quartiles do not overlap": comparison.quartiles_apart(
            a.samples, b.samples
        ),
        "the rule of d2lpar": comparison.compare(a, b).is_told,
    }
    found = "; ".join(f"{name}: {'yes' if it else 'no'}" for name, it in thumbs.items())
    found = found[0].upper() + found[1:]
    if n < 3:
        return f"Both did the same work. A difference is a false alarm. {found}."
    shares = false_alarms(a.samples, n)
    often = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return (
        f"Both did the same work, so a difference is a false alarm. {found}. "
        f"Of two samples of {n} that are drawn from a's, these are told apart: {often}."
    )


def _facts(header: Header) -> dict[str, Any]:
    """Return a header's fields; settings and versions are fields of their own."""
    facts = msgspec.structs.asdict(header)
    for name in ("settings", "gpu_build"):
        facts |= facts.pop(name)
    facts |= {f"{name} version": v for name, v in facts.pop("versions").items()}
    return {name: value for name, value in facts.items() if name not in COMPARED}
