"""`d2lpar compare A B`: two records of trainings side by side, as a table or JSON.

A ratio of two timings means something only if nothing else has changed, so every other
difference of the two headers is listed.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from d2lpar.errors import RecordError
from d2lpar.records import comparison, files
from d2lpar.records.comparison import Summary, summarize
from d2lpar.records.kinds import Header, Run, timed_epochs
from d2lpar.text import number, plain_table, printable

# What is compared, and what differs between any two runs.
COMPARED = {"num_devices", "devices", "device_counts", "command", "date"}


def compare(a: Run, b: Run) -> dict[str, Any]:
    """Return what both runs measured, how fast b is beside a, and what else differs.

    "speedup" is b's samples per second over a's, so that epochs of different data can
    be compared, too; None where it cannot be told. Raises :class:`RecordError` for a
    run without epochs, and for a GAN and another network.
    """
    sides = {"a": _side(a), "b": _side(b)}
    if comparison.is_gan(a) != comparison.is_gan(b):
        raise RecordError(
            f"{a.path} and {b.path}: only one of them is a GAN; compare runs of the "
            "same kind"
        )
    of_a, of_b = _seconds_per_sample(a), _seconds_per_sample(b)
    facts_a, facts_b = _facts(a.header), _facts(b.header)
    differences = {
        name: [facts_a.get(name), facts_b.get(name)]
        for name in {**facts_a, **facts_b}
        if facts_a.get(name) != facts_b.get(name)
    }
    return {
        **sides,
        "speedup": comparison.ratio(of_a, of_b),
        "answer": comparison.phrase("b", of_b, "a", of_a),
        "differences": differences,
    }


def _side(run: Run) -> dict[str, Any]:
    """What one run measured; a GAN has a last Fréchet distance in place of accuracy."""
    seconds = comparison.seconds_per_epoch(run)
    side = {
        "record": str(run.path),
        "num_devices": run.header.num_devices,
        "seconds_per_epoch": asdict(seconds),
        "samples_per_sec": median(e.samples_per_sec for e in timed_epochs(run)),
    }
    if comparison.is_gan(run):
        distance = comparison.final_quality(run)
        return {**side, "frechet": None if math.isnan(distance) else distance}
    return {**side, "test_acc": comparison.final_accuracy(run)}


def _seconds_per_sample(run: Run) -> Summary:
    return summarize([1 / epoch.samples_per_sec for epoch in timed_epochs(run)])


def _facts(header: Header) -> dict[str, Any]:
    """The header's fields, those of its settings and versions among them."""
    facts = msgspec.structs.asdict(header)
    for name in ("settings", "gpu_build"):
        facts |= facts.pop(name)
    facts |= {f"{name} version": v for name, v in facts.pop("versions").items()}
    return {name: value for name, value in facts.items() if name not in COMPARED}


def in_words(found: dict[str, Any]) -> str:
    """Return a comparison as plain text, without a newline at its end."""
    sides = found["a"], found["b"]
    seconds = [Summary(**side["seconds_per_epoch"]) for side in sides]
    last = "frechet" if "frechet" in sides[0] else "test_acc"
    ends = [side[last] for side in sides]
    rows = [
        ("devices", *(str(side["num_devices"]) for side in sides)),
        *zip(("s/epoch", "quartiles", "epochs timed"), *(s.cells() for s in seconds)),
        ("samples/s", *(number(side["samples_per_sec"]) for side in sides)),
        (f"last {last}", *("-" if x is None else f"{x:.4f}" for x in ends)),
    ]
    lines = [f"{k}  {side['record']}" for k, side in zip("ab", sides)]
    lines += ["", plain_table(["", "a", "b"], rows, names=1), "", found["answer"]]
    lines.append("differences:" if found["differences"] else "no other differences")
    for name, (of_a, of_b) in found["differences"].items():
        lines.append(f"  {name}: {of_a} and {of_b}")
    return "\n".join(lines)


def records(a: Path, b: Path, as_json: bool = False) -> None:
    """Print the comparison of two records."""
    found = compare(files.read(a), files.read(b))
    print(json.dumps(found, indent=1) if as_json else printable(in_words(found)))
