"""`d2lpar compare A B`: two records side by side, as a table or JSON and a picture.

A ratio of two timings means something only if nothing else has changed, so every
:class:`~d2lpar.records.comparison.Comparison` lists what else differs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

import click

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.lenet import figure as lenet_figure
from d2lpar.records import comparison, files
from d2lpar.records.comparison import Comparison, Side, check, is_gan
from d2lpar.records.kinds import FrameRecord, Header, Run, timed_epochs
from d2lpar.text import number, plain_table, printable

log = logging.getLogger("d2lpar")

# Header fields whose difference is reported, in this order. The devices (which are what
# is compared), the date and the command are not among them.
HEADER_FIELDS = {
    "chapter": "chapter",
    "preset": "preset",
    "device_kind": "device kind",
    "threads_per_device": "threads per device",
    "cpu_model": "CPU",
    "cores": "cores",
    "dataset": "data set",
    "dataset_sha256": "data set hash",
    "synthetic": "synthetic data",
    "seed": "seed",
}
_COMPARED = {"num_devices", "devices"}  # also under `settings`


def compare(a: Run, b: Run) -> Comparison:
    """Compare two runs; the speedup is b's over a's.

    On the same data it is the ratio of the seconds per epoch. Epochs over different
    data are different amounts of work; there it is the ratio of the samples per second.
    Raises :class:`RecordError` for a run without epochs, and for a GAN and another.
    """
    for run in (a, b):
        check(run)
    if is_gan(a) != is_gan(b):
        raise RecordError(
            f"{labels.where(a)} and {labels.where(b)}: only one of them is a GAN; "
            "compare runs of the same kind"
        )
    differences = _differences(a.header, b.header)
    sides = [
        _side(run, label) for run, label in zip((a, b), _labels(a, b, differences))
    ]
    speedup, (low, high) = comparison.speedup(sides[0].seconds, sides[1].seconds)
    work = 1.0  # samples in an epoch of b / samples in an epoch of a
    if a.header.dataset_sha256 != b.header.dataset_sha256:
        samples = [side.seconds.median * side.samples_per_sec for side in sides]
        work = samples[1] / samples[0]
    devices = b.header.num_devices / a.header.num_devices
    efficiency = None
    if devices != 1 and a.header.device_kind == b.header.device_kind:
        efficiency = (work * speedup / devices) ** (1 if devices > 1 else -1)
    return Comparison(
        a=sides[0],
        b=sides[1],
        speedup=work * speedup,
        spread=(work * low, work * high),
        efficiency=efficiency,
        differences=[f"{name}: {of_a} and {of_b}" for name, of_a, of_b in differences],
    )


def _side(run: Run, label: str) -> Side:
    return Side(
        label=label,
        path=str(run.path) if run.path else None,
        num_devices=run.header.num_devices,
        seconds=comparison.seconds_per_epoch(run),
        samples_per_sec=median(e.samples_per_sec for e in timed_epochs(run)),
        test_acc=None if is_gan(run) else comparison.final_accuracy(run),
        quality=comparison.final_quality(run) if run.lines_of(FrameRecord) else None,
    )


def _differences(a: Header, b: Header) -> list[tuple[str, str, str]]:
    """(name, value of a, value of b) of what differs apart from what is compared."""
    of_a, of_b = _facts(a, b), _facts(b, a)
    values = [
        (name, of_a.get(name, "not recorded"), of_b.get(name, "not recorded"))
        for name in {**of_a, **of_b}
    ]
    return [(name, _show(va), _show(vb)) for name, va, vb in values if va != vb]


def _facts(header: Header, other: Header) -> dict[str, object]:
    """What of a header is compared with the other's, by the names that are printed."""
    facts = {name: getattr(header, field) for field, name in HEADER_FIELDS.items()}
    if header.device_kind == other.device_kind:
        facts["GPUs"] = " + ".join(labels.gpu_models(header)) or None
    else:
        del facts["threads per device"]
    facts |= {k: value for k, value in header.settings.items() if k not in _COMPARED}
    facts |= {f"{name} version": value for name, value in header.versions.items()}
    if header.gpu_build and other.gpu_build:
        facts |= header.gpu_build
    if header.num_devices != other.num_devices:  # else a change of the code is compared
        facts["code"] = labels.commit(header)
    return facts


def _show(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = printable(str(value))  # it goes into the picture, too
    return text[:12] if len(text) == 64 and text.isalnum() else text  # a SHA-256


def _labels(a: Run, b: Run, differences: list[tuple[str, str, str]]) -> Sequence[str]:
    """What tells the two runs apart, most telling first, in a few words each."""
    runs = (a, b)
    if a.header.num_devices != b.header.num_devices:
        return [labels.devices(run.header) for run in runs]
    # A hash means nothing to a reader, and a label holds no more than three things.
    shown = [item for item in differences if item[0] != "data set hash"][:3]
    candidates = (
        [", ".join(f"{item[0]} {item[k]}" for item in shown) for k in (1, 2)],
        [labels.commit(run.header) for run in runs],
        [run.path.name if run.path else "" for run in runs],
        [labels.where(run) for run in runs],
    )
    return next((two for two in candidates if two[0] != two[1]), ("first", "second"))


def comparison_table(c: Comparison) -> str:
    """The comparison as plain text for a terminal, without a newline at its end."""
    sides = (c.a, c.b)
    quartiles = (f"{number(s.seconds.q1)}-{number(s.seconds.q3)}" for s in sides)
    rows = [
        ("devices", *(str(s.num_devices) for s in sides)),
        ("sec/epoch, median", *(number(s.seconds.median) for s in sides)),
        ("sec/epoch, quartiles", *quartiles),
        ("epochs timed", *(str(s.seconds.n) for s in sides)),
        ("samples/s, median", *(number(s.samples_per_sec) for s in sides)),
    ]
    if c.a.test_acc is None:
        ends = ("-" if s.quality is None else f"{s.quality:.4f}" for s in sides)
        rows.append(("final distance", *ends))
    else:
        rows.append(("final test accuracy", *(f"{s.test_acc:.4f}" for s in sides)))
    low, high = c.spread
    lines = [f"{k}  {side.label}  [{side.path}]" for k, side in zip("ab", sides)]
    lines += ["", plain_table(["", "a", "b"], rows, names=1), ""]
    lines.append(f"speedup of b over a  {c.speedup:.2f} ({low:.2f}-{high:.2f})")
    if c.efficiency is not None:
        lines.append(f"parallel efficiency  {c.efficiency:.0%}")
    lines.append("differences:" if c.differences else "no other differences")
    return "\n".join([*lines, *(f"  {difference}" for difference in c.differences)])


def records(a: Path, b: Path, as_json: bool = False, out: str | None = None) -> None:
    """Print the comparison of two records; draw it, with `as_json` only into `out`."""
    runs = files.read(a), files.read(b)
    compared, drawn = compare(*runs), []
    if out or not as_json:  # drawn first: if that fails, nothing is printed
        folder = Path(out) if out else b.parent
        with page.plain_style():
            picture = lenet_figure.compared(*runs, compared)
            pictures = {f"compare-{a.stem}-{b.stem}": picture}
            drawn = page.save(pictures, folder)
    if as_json:
        click.echo(json.dumps(asdict(compared), indent=1))
        for difference in compared.differences:  # the table names them, too
            log.warning("the runs differ also in %s", difference)
    else:
        click.echo(printable(comparison_table(compared)))
    for path in drawn:  # JSON is alone on standard output
        click.echo(printable(f"figure: {path}"), err=as_json)
