"""`d2lpar compare A B`: two records of trainings, and all that differs between them."""

from __future__ import annotations

import math
from statistics import median

import msgspec

from d2lpar.errors import RecordError
from d2lpar.experiments import differing
from d2lpar.records import measurements
from d2lpar.records.kinds import Header, Run, timed_epochs
from d2lpar.records.result import sentence
from d2lpar.records.rule import phrase
from d2lpar.text import filled, number, plain_table

# What is compared, and what differs between any two runs.
COMPARED = {"num_devices", "devices", "device_counts", "command", "date"}
TAKE_TURNS = "let both take turns: d2lpar run with --num-devices 1,2 --repeats 4"


def compare(a: Run, b: Run) -> str:
    """Return what both runs measured, how fast b is beside a, and what else differs.

    Accuracies are compared after the last epoch that both have. Raises
    :class:`RecordError` for runs of different kinds.
    """
    runs = a, b
    seconds = list(map(measurements.seconds_per_epoch, runs))
    gan = measurements.is_gan(a)
    if gan != measurements.is_gan(b):
        raise RecordError(
            f"{a.path} and {b.path}: only one of them is a GAN; compare runs of the "
            "same kind"
        )
    rates = [[e.samples_per_sec for e in timed_epochs(run)] for run in runs]
    of_a, of_b = (
        measurements.of_repeats(
            (run, e.repeat, 1e3 / e.samples_per_sec) for e in timed_epochs(run)
        )
        for run in runs
    )
    name = "frechet" if gan else "test_acc"
    ends = [measurements.by_epoch(run, name) for run in runs]
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
    unit, when = "s per 1,000 samples", "in these runs"
    words = phrase("record b", of_b, "record a", of_a, TAKE_TURNS, unit, when)
    lines.append(filled(sentence(words)))
    facts = [_facts(run.header) for run in runs]
    names = differing(facts, COMPARED)
    lines.append("differences:" if names else "no other differences")
    for name in names:
        both_values = " and ".join(of.get(name, "None") for of in facts)
        lines.append(filled(f"{name}: {both_values}", "  "))
    return "\n".join(lines)


def _facts(header: Header) -> dict[str, str]:
    """Return a header's fields; settings and versions are fields of their own."""
    facts = msgspec.structs.asdict(header)
    for name in ("settings", "gpu_build"):
        facts |= facts.pop(name)
    facts |= {f"{name} version": v for name, v in facts.pop("versions").items()}
    return {name: str(value) for name, value in facts.items()}  # off is not unknown
