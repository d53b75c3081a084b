"""Two runs side by side: how much faster, how accurate, and in what else they differ.

A ratio of two timings means something only if nothing else has changed, so every
:class:`Comparison` lists what else differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records import wording
from d2lpar.records.kinds import (
    FrameRecord,
    GanEpochRecord,
    Header,
    Run,
    Sample,
    group,
    timed_epochs,
)
from d2lpar.records.summary import Summary, summarize
from d2lpar.records.tables import plain_table
from d2lpar.records.wording import number

# Header fields whose difference is reported, in this order. The devices (which are what
# is compared), the date and the command are not among them.
_NAMES = {
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


@dataclass(frozen=True)
class Side:
    """What one of the two runs measured.

    `seconds` are those of a training epoch, without warm-up; `samples_per_sec` is the
    median throughput. `test_acc`, in [0, 1], is that of the last epoch, the median of
    the repeats; a GAN has None, and in its place `quality`, its last distance to real
    faces, unless it recorded no frames. `label` tells this run from the other one.
    """

    label: str
    path: str | None
    num_devices: int
    seconds: Summary
    samples_per_sec: float
    test_acc: float | None
    quality: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Run `b` against run `a`.

    `speedup` is how many times faster b is than a; `spread` is its range when both
    times vary between their quartiles. `efficiency` is that of the run with more
    devices, or None for equal numbers of devices and for CPUs against GPUs.
    """

    a: Side
    b: Side
    speedup: float
    spread: tuple[float, float]
    efficiency: float | None
    differences: list[str]


@dataclass(frozen=True)
class Scaling:
    """A device count of a sweep against the smallest one; `ideal` is their ratio."""

    num_devices: int
    ideal: float
    speedup: float
    spread: tuple[float, float]

    @property
    def efficiency(self) -> float:
        return self.speedup / self.ideal

    @property
    def efficiency_spread(self) -> tuple[float, float]:
        low, high = self.spread
        return low / self.ideal, high / self.ideal


def scaling(runs: Sequence[Run]) -> list[Scaling]:
    """Speedups over the smallest device count, by ascending count, on the same data."""
    first, *others = sorted(runs, key=lambda run: run.header.num_devices)
    smallest, base = first.header.num_devices, seconds_per_epoch(first)
    points = [Scaling(smallest, 1.0, 1.0, (1.0, 1.0))]
    for run in others:
        n = run.header.num_devices
        points.append(Scaling(n, n / smallest, *_speedup(base, seconds_per_epoch(run))))
    return points


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
            f"{wording.where(a)} and {wording.where(b)}: only one of them is a GAN; "
            "compare runs of the same kind"
        )
    differences = _differences(a.header, b.header)
    label_a, label_b = _labels(a, b, differences)
    side_a, side_b = _side(a, label_a), _side(b, label_b)
    work = 1.0  # samples in an epoch of b / samples in an epoch of a
    if a.header.dataset_sha256 != b.header.dataset_sha256:
        sizes = [s.seconds.median * s.samples_per_sec for s in (side_a, side_b)]
        work = sizes[1] / sizes[0]
    speedup, (low, high) = _speedup(side_a.seconds, side_b.seconds)
    devices = b.header.num_devices / a.header.num_devices
    efficiency = None
    if devices != 1 and a.header.device_kind == b.header.device_kind:
        efficiency = (work * speedup / devices) ** (1 if devices > 1 else -1)
    return Comparison(
        a=side_a,
        b=side_b,
        speedup=work * speedup,
        spread=(work * low, work * high),
        efficiency=efficiency,
        differences=[f"{name}: {va} and {vb}" for name, va, vb in differences],
    )


def seconds_per_epoch(run: Run) -> Summary:
    """Training seconds per epoch of all repeats, without each one's warm-up epoch."""
    check(run)
    return summarize([e.seconds for e in timed_epochs(run)])


def accuracy_by_epoch(run: Run) -> dict[int, list[float]]:
    """Test accuracies in [0, 1] by ascending epoch, one per repeat."""
    check(run)
    epochs = sorted(run.epochs, key=lambda e: e.epoch)
    return group(epochs, lambda e: e.epoch, lambda e: e.test_acc)


def quality_by_epoch(run: Run) -> dict[int, list[float]]:
    """A GAN's distances to real faces by the epoch of the frame, one per repeat."""
    frames = sorted(run.of(FrameRecord), key=lambda f: f.epoch)
    return group(frames, lambda f: f.epoch, lambda f: f.quality)


def is_gan(run: Run) -> bool:
    """Whether the run trained a GAN, which has no test accuracy."""
    return bool(run.of(GanEpochRecord))


def final_accuracy(run: Run) -> float:
    """Test accuracy after the last epoch, in [0, 1]: the median of the repeats."""
    return median(list(accuracy_by_epoch(run).values())[-1])


def final_quality(run: Run) -> float:
    """A GAN's last distance to real faces, median of the repeats; NaN for no frames."""
    by_epoch = list(quality_by_epoch(run).values())
    return median(by_epoch[-1]) if by_epoch else math.nan


def check(run: Run) -> None:
    """Raise :class:`RecordError` for a run without epochs, or with impossible times."""
    if not run.epochs:
        raise RecordError(f"{wording.where(run)}: holds no epochs; run it again")
    for e in run.epochs:
        if not (math.isfinite(e.seconds) and e.seconds > 0):
            raise RecordError(
                f"{wording.where(run)}: epoch {e.epoch} took {e.seconds} seconds; "
                "only times above 0 can be compared"
            )


def _speedup(base: Summary, other: Summary) -> tuple[float, tuple[float, float]]:
    """Of the medians; lowest and highest while both times stay within quartiles."""
    spread = base.q1 / other.q3, base.q3 / other.q1
    return base.median / other.median, spread


def _side(run: Run, label: str) -> Side:
    return Side(
        label=label,
        path=str(run.path) if run.path else None,
        num_devices=run.header.num_devices,
        seconds=seconds_per_epoch(run),
        samples_per_sec=median(e.samples_per_sec for e in timed_epochs(run)),
        test_acc=None if is_gan(run) else final_accuracy(run),
        quality=final_quality(run) if run.of(FrameRecord) else None,
    )


def _differences(a: Header, b: Header) -> list[tuple[str, str, str]]:
    """(name, value of a, value of b) of what differs apart from what is compared."""
    fields_a, fields_b = vars(a), vars(b)
    names = dict(_NAMES)
    if a.device_kind != b.device_kind:
        del names["threads_per_device"]
    pairs = [(text, fields_a[key], fields_b[key]) for key, text in names.items()]
    if a.device_kind == b.device_kind == "gpu":
        models = (" + ".join(wording.gpu_models(header)) or None for header in (a, b))
        pairs.append(("GPUs", *models))
    for ending, of_a, of_b in (
        ("", a.settings, b.settings),
        (" version", a.versions, b.versions),
        *([("", a.gpu_build, b.gpu_build)] if a.gpu_build and b.gpu_build else []),
        ("", a.extra, b.extra),
    ):
        pairs += [
            (f"{key}{ending}", *(of.get(key, "not recorded") for of in (of_a, of_b)))
            for key in {**of_a, **of_b}
            if key not in _COMPARED
        ]
    if a.num_devices != b.num_devices:  # else a change of the code is compared
        pairs.append(("code", wording.commit(a), wording.commit(b)))
    return [(name, _show(va), _show(vb)) for name, va, vb in pairs if va != vb]


def _show(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text  # a SHA-256


def _labels(a: Run, b: Run, differences: list[tuple[str, str, str]]) -> Sequence[str]:
    """What tells the two runs apart, most telling first, in a few words each."""
    runs = (a, b)
    if a.header.num_devices != b.header.num_devices:
        return [wording.devices(run.header) for run in runs]
    # A hash means nothing to a reader, and a label holds no more than three things.
    shown = [item for item in differences if item[0] != "data set hash"][:3]
    candidates = (
        [", ".join(f"{item[0]} {item[k]}" for item in shown) for k in (1, 2)],
        [wording.commit(run.header) for run in runs],
        [run.path.name if run.path else "" for run in runs],
        [wording.where(run) for run in runs],
        ["first", "second"],
    )
    return next(names for names in candidates if names[0] != names[1] and all(names))


def comparison_table(c: Comparison) -> str:
    """The comparison as plain text for a terminal, without a newline at its end."""
    sides = (c.a, c.b)
    lines = []
    for letter, side in zip("ab", sides):
        path = f"  [{side.path}]" if side.path and side.path != side.label else ""
        lines.append(f"{letter}  {side.label}{path}")
    quartiles = (f"{number(s.seconds.q1)}-{number(s.seconds.q3)}" for s in sides)
    rows = [
        ("devices", *(str(s.num_devices) for s in sides)),
        ("sec/epoch, median", *(number(s.seconds.median) for s in sides)),
        ("sec/epoch, quartiles", *quartiles),
        ("epochs timed", *(str(s.seconds.n) for s in sides)),
        ("samples/s, median", *(number(s.samples_per_sec) for s in sides)),
        (
            "final distance",
            *("-" if s.quality is None else f"{s.quality:.4f}" for s in sides),
        )
        if c.a.test_acc is None
        else ("final test accuracy", *(f"{s.test_acc:.4f}" for s in sides)),
    ]
    low, high = c.spread
    lines += ["", plain_table(["", "a", "b"], rows, names=1), ""]
    lines.append(f"speedup of b over a  {c.speedup:.2f} ({low:.2f}-{high:.2f})")
    if c.efficiency is not None:
        lines.append(f"parallel efficiency  {c.efficiency:.0%}")
    lines.append("differences:" if c.differences else "no other differences")
    return "\n".join([*lines, *(f"  {difference}" for difference in c.differences)])


def comparison_rows(c: Comparison) -> list[dict]:
    """The comparison as two flat rows, a's and b's, for CSV.

    What concerns both runs (speedup, efficiency, differences) is in b's row.
    """
    of_a = replace(c, speedup=1.0, spread=(1.0, 1.0), efficiency=None, differences=[])
    rows = []
    for letter, side, of in (("a", c.a, of_a), ("b", c.b, c)):
        row = {"run": letter, **asdict(side)}
        seconds = row.pop("seconds")
        row["sec_per_epoch"] = seconds["median"]
        row["sec_per_epoch_q1"], row["sec_per_epoch_q3"] = seconds["q1"], seconds["q3"]
        row["n"] = seconds["n"]
        row["speedup"], (row["speedup_low"], row["speedup_high"]) = (
            of.speedup,
            of.spread,
        )
        row["parallel_efficiency"] = of.efficiency
        rows.append({**row, "differences": "; ".join(of.differences)})
    return rows


def busy_percent(sample: Sample, run: Run) -> float | None:
    """How busy the run's cores or GPUs were, 0 to 100; None where no GPU reports it."""
    if run.header.device_kind == "cpu":
        return sample.cpu_percent / run.header.cores
    by_gpu = dict(zip(sample.gpus, sample.gpu_percent))
    known = [by_gpu[gpu] for gpu in run.header.devices if by_gpu.get(gpu) is not None]
    return sum(known) / len(known) if known else None
