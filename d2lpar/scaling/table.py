"""Scaling records as numbers and as text: steps, speedups, models, all-reduces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from d2lpar.figures import labels
from d2lpar.records.comparison import Summary, summarize
from d2lpar.records.kinds import (
    PARTS,
    AllReduceRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    group,
)
from d2lpar.scaling.model import StepModel, break_even, fit_all_reduce, fit_step
from d2lpar.text import number, plain_table, plural


@dataclass(frozen=True)
class Study:
    """One implementation: its runs, its steps by (devices, batch), and its model.

    A run has steps of its own device count, or of several counts in turn. `name` is for
    readers ("from scratch"), `variant` for names of files.
    """

    name: str
    variant: str
    runs: Sequence[Run]

    @cached_property
    def records(self) -> dict[tuple[int, int], list[StepRecord]]:
        """All records of a step, in the order of the runs."""
        steps = _with_counts(self.runs, StepRecord)
        return group(steps, lambda s: (s[0], s[1].global_batch_size), lambda s: s[1])

    @property
    def counts(self) -> list[int]:
        """Measured device counts, ascending."""
        return sorted({n for n, _ in self.records})

    @property
    def batches(self) -> list[int]:
        """Measured global batches, ascending."""
        return sorted({batch for _, batch in self.records})

    def milliseconds(self, num_devices: int, global_batch_size: int) -> Summary:
        """Median and quartiles of a measured step."""
        records = self.records[num_devices, global_batch_size]
        return summarize([1e3 * s for record in records for s in record.seconds])

    @cached_property
    def steps(self) -> dict[tuple[int, int], float]:
        """Median seconds of a step."""
        return {key: self.milliseconds(*key).median / 1e3 for key in self.records}

    @cached_property
    def model(self) -> StepModel | None:
        """The model of a step.

        None for steps of one shard size, and for several devices without an all-reduce.
        """
        if len({batch / n for n, batch in self.steps}) < 2:
            return None
        # The all-reduce of d2lpar.lenet, and that of Gluon's trainer.
        on_gpus = self.runs[0].header.device_kind == "gpu"
        variant = "kvstore device" if on_gpus else "kvstore local"
        if self.name == "from scratch":
            variant = "book"
        measured = {
            size: median(by_variant[variant])
            for size, by_variant in all_reduces(self.runs).items()
            if by_variant.get(variant)
        }
        if not measured:
            return fit_step(self.steps) if self.counts == [1] else None
        fewest = min(n for n, _, _ in measured)
        points = [(*size, s) for (n, *size), s in measured.items() if n == fewest]
        # Only the gradients are several arrays, so theirs is the largest point.
        arrays, num_bytes, _ = max(points)
        if self.name == "from scratch":
            arrays = 1  # flat, see d2lpar.buckets
        all_reduce = fit_all_reduce(fewest, points)
        return fit_step(self.steps, all_reduce, arrays, num_bytes)

    def speedups_of(self, num_devices: int) -> dict[int, float]:
        """Measured speedup over one device by global batch.

        Where one device and more took turns, the median over the pairs of neighbouring
        samples, whose ratio has no drift; else the ratio of the medians.
        """
        speedups = {}
        for n, batch in self.steps:
            if n == num_devices and (1, batch) in self.steps:
                one, many = self._in_turn(1, batch), self._in_turn(n, batch)
                speedups[batch] = self.steps[1, batch] / self.steps[n, batch]
                if one and len(one) == len(many):
                    speedups[batch] = median(a / b for a, b in zip(one, many))
        return speedups

    def _in_turn(self, num_devices: int, global_batch_size: int) -> list[float]:
        """Seconds of the samples that took turns with other device counts."""
        records = self.records[num_devices, global_batch_size]
        return [s for record in records if record.num_devices for s in record.seconds]

    def break_even(self, num_devices: int) -> float | None:
        """The measured batch from which more devices pay; None if at none."""
        speedups = self.speedups_of(num_devices)
        return break_even(speedups) if speedups else None

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


def results(runs: Sequence[Run]) -> str:
    """Everything that was measured as one table, and the models of a step."""
    rows, models = [], []
    for study in studies(runs):
        for n, batch in sorted(study.records, key=lambda key: key[::-1]):
            ms = study.milliseconds(n, batch)
            speedup = study.speedups_of(n).get(batch)
            spread = f"{number(ms.q1)}-{number(ms.q3)}, n={ms.n}"
            notes = f"speedup {speedup:.2f}" if n > 1 and speedup else ""
            what = f"{study.name}: step, batch {batch:,}"
            rows.append([what, str(n), number(ms.median), spread, notes])
            for name, seconds in study.parts.get((n, batch), {}).items():
                rows.append([f"  {name}", str(n), number(1e3 * seconds), "", ""])
        for (n, batch), epochs in study.trainings.items():
            for e in epochs:
                what = f"{study.name}: epoch {e.epoch}, batch {batch:,}, lr {e.lr:.3g}"
                end = e.why_not or f"test accuracy {e.test_acc:.4f}"
                rows.append([what, str(n), number(1e3 * e.seconds), "", end])
        if study.model:
            models.append(
                f"{study.name}: a step on N devices takes N x "
                f"{1e3 * study.model.fixed:.3g} ms + "
                f"{1e6 * study.model.per_sample:.4g} us per sample of a shard + (N - 1)"
                f" x {1e3 * study.model.exchange:.3g} ms"
            )
    for (n, arrays, num_bytes), by_variant in all_reduces(runs).items():
        for variant, seconds in by_variant.items():
            what = f"all-reduce: {variant}, {plural(arrays, 'array')}, {num_bytes:,} B"
            ms = number(1e3 * median(seconds)) if seconds else "-"
            rows.append([what, str(n), ms, "", "" if seconds else "not in this build"])
    table = plain_table(["", "devices", "ms", "quartiles", ""], rows, names=1)
    headers = [run.header for run in runs]
    machine = f"{labels.hardware(headers)}. {labels.stamp(headers)}"
    return "\n\n".join([table, *models, machine]) + "\n"
