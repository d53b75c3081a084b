"""Scaling records as numbers and as text: steps, speedups, models, all-reduces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from d2lpar.figures import labels
from d2lpar.records.kinds import (
    PARTS,
    AllReduceRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    group,
)
from d2lpar.records.summary import Summary, summarize
from d2lpar.scaling import model as step_model
from d2lpar.text import number, plain_table

# By implementation the all-reduce that it trains with, by kind of device; and whether
# it sums all gradients as one array, see d2lpar.buckets.
ALL_REDUCE = {
    "from scratch": ({"cpu": "book", "gpu": "book"}, True),
    "concise": ({"cpu": "kvstore local", "gpu": "kvstore device"}, False),
}
TARGET_ACC = 0.75


@dataclass(frozen=True)
class Study:
    """One implementation: its runs, its steps by (devices, batch), and its model.

    A run has steps of its own device count, or of several counts in turn.
    """

    name: str
    """as in "from scratch" """
    variant: str
    """as in names of files"""
    runs: Sequence[Run]

    @cached_property
    def records(self) -> dict[tuple[int, int], list[StepRecord]]:
        """All records of a step, in the order of the runs."""
        steps = _with_counts(self.runs, StepRecord)
        return group(steps, lambda s: (s[0], s[1].global_batch_size), lambda s: s[1])

    @cached_property
    def steps(self) -> dict[tuple[int, int], float]:
        """Median seconds of a step."""
        return {key: self.milliseconds(*key).median / 1e3 for key in self.records}

    @property
    def counts(self) -> list[int]:
        """Measured device counts, ascending."""
        return sorted({n for n, _ in self.records})

    @property
    def batches(self) -> list[int]:
        """Measured global batches, ascending."""
        return sorted({batch for _, batch in self.records})

    @cached_property
    def model(self) -> step_model.StepModel | None:
        """The model of a step.

        None for steps of one shard size, and for several devices without an all-reduce.
        """
        found = all_reduces(self.runs)
        if len({batch / n for n, batch in self.steps}) < 2:
            return None
        if not found or self.name not in ALL_REDUCE:
            return step_model.fit_step(self.steps) if self.counts == [1] else None
        by_kind, is_one_array = ALL_REDUCE[self.name]
        variant = by_kind[self.runs[0].header.device_kind]
        fewest = min(n for n, _, _ in found)
        points = [
            (arrays, num_bytes, median(row[variant]))
            for (n, arrays, num_bytes), row in found.items()
            if n == fewest and row.get(variant)
        ]
        # Only the gradients are several arrays, so theirs is the largest point.
        arrays, num_bytes, _ = max(points)
        return step_model.fit_step(
            self.steps,
            step_model.fit_all_reduce(fewest, points),
            1 if is_one_array else arrays,
            num_bytes,
        )

    @cached_property
    def speedups(self) -> dict[tuple[int, int], float]:
        """Measured speedup over one device at the same batch, by (devices, batch).

        Where one device and more took turns, the median over the pairs of neighbouring
        samples, whose ratio has no drift; else the ratio of the medians.
        """
        ratios = step_model.speedups(self.steps)
        for n, batch in ratios:
            one, many = self._in_turn(1, batch), self._in_turn(n, batch)
            if one and len(one) == len(many):
                ratios[n, batch] = median(a / b for a, b in zip(one, many))
        return ratios

    def _in_turn(self, num_devices: int, global_batch_size: int) -> list[float]:
        """Seconds of the samples that took turns with other device counts."""
        records = self.records[num_devices, global_batch_size]
        return [s for record in records if record.num_devices for s in record.seconds]

    def speedups_of(self, num_devices: int) -> dict[int, float]:
        """Measured speedup over one device by global batch."""
        return {b: s for (n, b), s in self.speedups.items() if n == num_devices}

    def break_even(self, num_devices: int) -> float | None:
        """The measured batch from which more devices pay; None if at none."""
        speedups = self.speedups_of(num_devices)
        return step_model.break_even(speedups) if speedups else None

    def milliseconds(self, num_devices: int, global_batch_size: int) -> Summary:
        """Median and quartiles of a measured step."""
        records = self.records[num_devices, global_batch_size]
        return summarize([1e3 * s for record in records for s in record.seconds])

    @cached_property
    def parts(self) -> dict[tuple[int, int], dict[str, float]]:
        """Median seconds of a step's parts by (devices, batch), where measured."""
        measured = {}
        for key in sorted(self.records, key=lambda key: key[::-1]):
            records = [record for record in self.records[key] if record.parts]
            if records:
                measured[key] = {
                    name: median(r.parts[name] for r in records) for name in PARTS
                }
        return measured

    @cached_property
    def trainings(self) -> dict[tuple[int, int], list[ScaledEpoch]]:
        """Epochs of the first repeat by (devices, global batch), in order."""
        epochs = _with_counts(self.runs, ScaledEpoch)
        first = [(n, epoch) for n, epoch in epochs if epoch.repeat == 0]
        return group(first, lambda e: (e[0], e[1].global_batch_size), lambda e: e[1])


def studies(runs: Sequence[Run]) -> list[Study]:
    """One study per variant, in the order of the runs."""
    by_variant = group(runs, lambda run: run.header.variant)
    return [
        Study(same[0].header.settings.get("implementation", variant), variant, same)
        for variant, same in by_variant.items()
    ]


def _with_counts(runs: Sequence[Run], kind: type) -> list[tuple[int, Any]]:
    """All lines of a kind, each with how many devices it was measured on."""
    return [
        (line.num_devices or run.header.num_devices, line)
        for run in runs
        for line in run.of(kind)
    ]


def all_reduces(runs: Sequence[Run]) -> dict[tuple[int, int, int], dict]:
    """Seconds by (devices, arrays, bytes), then by variant; [] if not supported."""
    seconds: dict[tuple[int, int, int], dict[str, list[float]]] = {}
    for n, record in _with_counts(runs, AllReduceRecord):
        by_variant = seconds.setdefault((n, record.num_arrays, record.num_bytes), {})
        by_variant.setdefault(record.variant, []).extend(record.seconds)
    return seconds


def time_to_accuracy(epochs: Sequence[ScaledEpoch], test_acc: float) -> float | None:
    """Seconds of training until an epoch ends at `test_acc` or more; None if never."""
    seconds = 0.0
    for epoch in epochs:
        seconds += epoch.seconds
        if epoch.test_acc is not None and epoch.test_acc >= test_acc:
            return seconds
    return None


def results(runs: Sequence[Run]) -> str:
    """Every number as text."""
    sections = []
    for study in studies(runs):
        sections += [_steps(study), _model(study), _parts(study), _epochs(study)]
    headers = [run.header for run in runs]
    machine = f"{labels.hardware(headers)}. {labels.stamp(headers)}"
    sections += [_all_reduces(runs), machine]
    return "\n\n".join(filter(None, sections)) + "\n"


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n{plain_table(columns, rows)}" if rows else ""


def _steps(study: Study) -> str:
    weak = step_model.weak_efficiencies(study.steps)
    rows = []
    for n, batch in sorted(study.records, key=lambda key: key[::-1]):
        ms = study.milliseconds(n, batch)
        issues = [s for record in study.records[n, batch] for s in record.issue_seconds]
        speedup, efficiency = study.speedups.get((n, batch)), weak.get((n, batch))
        rows.append([
            f"{batch:,}", str(n),
            number(ms.median), f"{number(ms.q1)}-{number(ms.q3)}, {ms.n}",
            f"{1e3 * batch / ms.median:,.0f}",
            f"{speedup:.2f}" if speedup else "-",
            f"{speedup / n:.0%}" if speedup else "-",
            f"{efficiency:.0%}" if efficiency else "-",
            number(1e3 * median(issues)) if issues else "-",
        ])  # fmt: skip
    columns = ["batch", "devices", "ms", "quartiles, n", "samples/s", "speedup"]
    columns += ["strong", "weak", "Python ms"]
    return _section(
        f"{study.name}: milliseconds per step; speedup over 1 device at the same "
        "global batch; efficiency of strong scaling (same global batch) and weak "
        "scaling (same batch per device)",
        columns,
        rows,
    )


def _model(study: Study) -> str:
    lines = []
    if study.model is not None:
        lines.append(
            f"{study.name}, model of a step: N x {1e3 * study.model.fixed:.3g} ms + "
            f"{1e6 * study.model.per_sample:.4g} us per sample of a device's shard + "
            f"(N - 1) x {1e3 * study.model.all_reduce_seconds(2):.3g} ms of all-reduce"
        )
    for n in study.counts[1:]:
        at = study.break_even(n)
        batch = "none of these batches" if at is None else f"a batch of {number(at)}"
        line = f"{study.name}: {n} devices pay from {batch}"
        if study.model is not None:
            line += f"; by the model from {number(study.model.break_even(n))}"
        lines.append(line)
    return "\n".join(lines)


def _parts(study: Study) -> str:
    rows = [
        [f"{batch:,}", str(n), *(f"{1e3 * parts[name]:.3g}" for name in PARTS)]
        for (n, batch), parts in study.parts.items()
    ]
    title = f"{study.name}: milliseconds of each part of a step, by omission"
    return _section(title, ["batch", "devices", *PARTS], rows)


def _epochs(study: Study) -> str:
    rows = []
    for (n, batch), epochs in study.trainings.items():
        last = epochs[-1]
        seconds = time_to_accuracy(epochs, TARGET_ACC)
        rows.append([
            str(n), f"{batch:,}", f"{batch // n:,}", f"{last.lr:.3g}", str(last.epoch),
            "diverged" if last.why_not else f"{last.test_acc:.4f}",
            "never" if seconds is None else number(seconds),
            number(sum(e.seconds for e in epochs)),
        ])  # fmt: skip
    columns = ["devices", "batch", "per device", "lr", "epochs", "accuracy"]
    columns += [f"seconds to {TARGET_ACC:g}", "seconds"]
    title = f"{study.name}: weak scaling, learning rate scaled with the global batch"
    return _section(title, columns, rows)


def _all_reduces(runs: Sequence[Run]) -> str:
    seconds = all_reduces(runs)
    names = list(dict.fromkeys(name for row in seconds.values() for name in row))
    rows = [
        [str(n), str(arrays), f"{num_bytes:,}"]
        + [number(1e3 * median(row[k])) if row.get(k) else "-" for k in names]
        for (n, arrays, num_bytes), row in seconds.items()
    ]
    records = [record for run in runs for record in run.of(AllReduceRecord)]
    absent = {record.variant: record.why_not for record in records if record.why_not}
    title = "All-reduce: median milliseconds, results checked"
    table = _section(title, ["devices", "arrays", "bytes", *names], rows)
    return "\n".join([table, *(f"{name}: {why}" for name, why in absent.items())])
