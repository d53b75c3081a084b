"""Scaling records as numbers and as text: speedups, models, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, NamedTuple

from d2lpar.records import step_model, wording
from d2lpar.records.kinds import (
    PARTS,
    AllReduceRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    group,
)
from d2lpar.records.step_model import AllReduceModel, StepModel
from d2lpar.records.summary import Summary, summarize
from d2lpar.records.tables import plain_table
from d2lpar.records.wording import number

# The all-reduce that each implementation trains with, by kind of device.
ALL_REDUCE = {
    ("scratch", "cpu"): "book",
    ("scratch", "gpu"): "book",
    ("concise", "cpu"): "kvstore local",
    ("concise", "gpu"): "kvstore device",
}
BUCKETED = ("scratch",)  # all gradients in one array, see d2lpar.buckets
NO_MODEL = ("d2l",)  # its data loader costs more than the step
ONE_PROCESS_PER_DEVICE = ("ddp",)
MOST_MISSED = 0.25  # relative error with which a model may still predict
PREDICTED = (2, 4, 8, 16)  # device counts to predict where they were not measured
TARGET_ACC = 0.75


@dataclass(frozen=True)
class Study:
    """One implementation: its runs, its steps by (devices, batch), and its model.

    A run has steps of its own device count, or of several counts in turn.
    """

    name: str
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
    def model(self) -> StepModel | None:
        """The model of all steps; None for too few, or where it does not apply."""
        return self._fit(self.steps)

    @cached_property
    def held_out(self) -> StepModel | None:
        """The model of the steps without those of the largest device count."""
        most = self.counts[-1]
        return self._fit({key: s for key, s in self.steps.items() if key[0] != most})

    @property
    def missed_by(self) -> float:
        """The median relative error of `held_out` at the largest device count."""
        assert self.held_out is not None
        found = step_model.relative_errors(self.held_out, self.steps, self.counts[-1])
        return median(map(abs, found.values()))

    def _fit(self, steps: dict[tuple[int, int], float]) -> StepModel | None:
        if self.name in NO_MODEL or len({batch / n for n, batch in steps}) < 2:
            return None
        one_python = self.name not in ONE_PROCESS_PER_DEVICE
        return step_model.fit_step(steps, *_all_reduce(self), one_python=one_python)

    @property
    def predicted(self) -> list[int]:
        """Device counts that were not measured and that the model can predict.

        None where it misses what was measured beyond what it was fitted to.
        """
        if self.model is None or self.model.all_reduce is None:
            return []
        if self.held_out is not None and self.missed_by > MOST_MISSED:
            return []
        return [n for n in PREDICTED if n not in self.counts]

    @cached_property
    def speedups(self) -> dict[tuple[int, int], float]:
        """Measured speedup over one device at the same batch, by (devices, batch).

        Where one device and more took turns, the median over the pairs of neighbouring
        samples, whose ratio has no drift; else the ratio of the medians.
        """
        found = step_model.speedups(self.steps)
        for n, batch in found:
            one, many = self._in_turn(1, batch), self._in_turn(n, batch)
            if one and len(one) == len(many):
                found[n, batch] = median(a / b for a, b in zip(one, many))
        return found

    def _in_turn(self, num_devices: int, global_batch_size: int) -> list[float]:
        """Seconds of the samples that took turns with other device counts."""
        records = self.records[num_devices, global_batch_size]
        return [s for record in records if record.num_devices for s in record.seconds]

    def speedups_of(self, num_devices: int) -> dict[int, float]:
        """Measured speedup over one device by global batch."""
        return {b: s for (n, b), s in self.speedups.items() if n == num_devices}

    def milliseconds(self, num_devices: int, global_batch_size: int) -> Summary:
        """Median and quartiles of a measured step."""
        records = self.records[num_devices, global_batch_size]
        return summarize([1e3 * s for record in records for s in record.seconds])


def studies(runs: Sequence[Run]) -> list[Study]:
    """One study per variant, in the order of the runs."""
    by_variant = group(runs, lambda run: run.header.variant)
    return [Study(name, same) for name, same in by_variant.items()]


def _with_counts(runs: Sequence[Run], kind: type) -> list[tuple[int, Any]]:
    """All lines of a kind, each with how many devices it was measured on."""
    return [
        (line.num_devices or run.header.num_devices, line)
        for run in runs
        for line in run.of(kind)
    ]


def _all_reduce(study: Study) -> tuple[AllReduceModel | None, int, int]:
    """The all-reduce's model, and the arrays and bytes of one replica's gradients.

    Fitted to the smallest device count that was measured; larger ones are predicted.
    """
    found = all_reduces(study.runs)
    if not found:
        return None, 0, 0
    fewest = min(n for n, _, _ in found)
    variant = ALL_REDUCE.get((study.name, study.runs[0].header.device_kind))
    points = [
        (arrays, num_bytes, median(row[variant]))
        for (n, arrays, num_bytes), row in found.items()
        if n == fewest and row.get(variant)
    ]
    # Only the gradients are several arrays, so theirs is the largest point.
    model = step_model.fit_all_reduce(fewest, points)
    arrays, num_bytes, _ = max(points)
    return model, 1 if study.name in BUCKETED else arrays, num_bytes


class StepParts(NamedTuple):
    """Median seconds of a step: by part, and of the whole step in two other forms."""

    by_name: dict[str, float]
    without_python: float
    without_overlap: float


def parts(study: Study) -> dict[tuple[int, int], StepParts]:
    """The parts of a step by (devices, batch), where they were measured."""
    found = {}
    for key in sorted(study.records, key=lambda key: key[::-1]):
        records = [record for record in study.records[key] if record.parts]
        if records:
            found[key] = StepParts(
                {name: median(r.parts[name] for r in records) for name in PARTS},
                median(s for r in records for s in r.without_python),
                median(s for r in records for s in r.without_overlap),
            )
    return found


def trainings(study: Study) -> dict[tuple[int, int], list[ScaledEpoch]]:
    """Epochs of the first repeat by (devices, global batch), in order."""
    all_epochs = _with_counts(study.runs, ScaledEpoch)
    first = [(n, e) for n, e in all_epochs if e.repeat == 0]
    return group(first, lambda e: (e[0], e[1].global_batch_size), lambda e: e[1])


def all_reduces(runs: Sequence[Run]) -> dict[tuple[int, int, int], dict]:
    """Seconds by (devices, arrays, bytes), then by variant; [] if not supported."""
    seconds: dict[tuple[int, int, int], dict[str, list[float]]] = {}
    for n, record in _with_counts(runs, AllReduceRecord):
        by_variant = seconds.setdefault((n, record.num_arrays, record.num_bytes), {})
        by_variant.setdefault(record.variant, []).extend(record.seconds)
    return seconds


def results(runs: Sequence[Run]) -> str:
    """Every number as text."""
    sections = []
    for study in studies(runs):
        sections += [_steps_table(study), _model_text(study)]
        sections += [_parts_table(study), _epochs_table(study)]
    sections += [_all_reduce_table(runs), wording.provenance(runs)]
    return "\n\n".join(filter(None, sections)) + "\n"


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"{title}\n{plain_table(columns, rows)}" if rows else ""


def _steps_table(study: Study) -> str:
    strong = study.speedups
    weak = step_model.weak_efficiencies(study.steps)
    columns = ["batch", "devices", "ms", "quartiles, n", "samples/s", "speedup"]
    columns += ["strong", "weak", "Python ms"]
    rows = []
    for n, batch in sorted(study.records, key=lambda key: key[::-1]):
        ms = study.milliseconds(n, batch)
        issues = [s for record in study.records[n, batch] for s in record.issue_seconds]
        speedup = strong.get((n, batch))
        efficiency = weak.get((n, batch / n))
        rows.append([
            f"{batch:,}", str(n),
            number(ms.median), f"{number(ms.q1)}-{number(ms.q3)}, {ms.n}",
            f"{1e3 * batch / ms.median:,.0f}",
            f"{speedup:.2f}" if speedup else "-",
            f"{speedup / n:.0%}" if speedup else "-",
            f"{efficiency:.0%}" if efficiency else "-",
            number(1e3 * median(issues)) if issues else "-",
        ])  # fmt: skip
    return _section(
        f"{study.name}: milliseconds per step (quartiles, n), samples/s; strong "
        "scaling: speedup over 1 device at the same global batch (the median over "
        "pairs of samples where both took turns), efficiency; weak scaling: efficiency "
        "over 1 device with the same batch per device",
        columns,
        rows,
    )


def _model_text(study: Study) -> str:
    model, largest = study.model, study.batches[-1]
    if model is None:
        return ""
    formula = (
        f"{study.name}, model of a step: {'N x ' if model.one_python else ''}"
        f"{1e3 * model.fixed:.3g} ms + "
        f"{1e6 * model.per_sample:.4g} us per sample of a device's shard"
    )
    if model.all_reduce is not None:
        formula += (
            f" + (N - 1) x {1e3 * model.all_reduce_seconds(2):.3g} ms of all-reduce "
            f"({model.num_arrays} arrays, {model.num_bytes:,} bytes)"
        )
    lines = [formula, *(_break_even(study, n) for n in study.counts[1:])]
    lines += [
        f"{n} devices, PREDICTED: pay from a batch of {number(model.break_even(n))}; "
        f"{model.speedup(n, largest):.2f} times as fast as 1 at {largest:,}"
        for n in study.predicted
    ]
    if study.held_out is not None:
        n = study.counts[-1]
        by_batch = step_model.relative_errors(study.held_out, study.steps, n)
        worst = max(by_batch, key=lambda batch: abs(by_batch[batch]))
        lines.append(
            f"held out: fitted without the steps of {n} devices, it predicts them to "
            f"{median(map(abs, by_batch.values())):.1%} (median over the batches), "
            f"{abs(by_batch[worst]):.1%} at worst (at {worst:,})"
        )
    return "\n  ".join(lines)


def _break_even(study: Study, n: int) -> str:
    measured = study.speedups_of(n)
    text = f"{n} devices pay at none of these batches"
    if measured and (batch := step_model.break_even(measured)) is not None:
        less = " or less" * (batch == study.batches[0])
        text = f"{n} devices pay from a batch of {number(batch)}{less}"
    if study.model.all_reduce is not None:
        text += f"; by the model from {number(study.model.break_even(n))}"
    return text


def _parts_table(study: Study) -> str:
    rows = [
        [f"{batch:,}", str(n), *(f"{1e3 * p.by_name[name]:.3g}" for name in PARTS),
         f"{1e3 * p.without_python:.3g}", f"{1e3 * p.without_overlap:.3g}"]
        for (n, batch), p in parts(study).items()
    ]  # fmt: skip
    return _section(
        f"{study.name}: milliseconds of each part of a step, by omission; the step "
        "without waiting for Python; the step with a wait before the all-reduce",
        ["batch", "devices", *PARTS, "no Python", "no overlap"],
        rows,
    )


def _epochs_table(study: Study) -> str:
    columns = ["devices", "batch", "per device", "lr", "epochs", "accuracy"]
    columns += [f"seconds to {TARGET_ACC:g}", "seconds"]
    rows = []
    for (n, batch), epochs in trainings(study).items():
        last = epochs[-1]
        seconds = step_model.time_to_accuracy(epochs, TARGET_ACC)
        rows.append([
            str(n), f"{batch:,}", f"{batch // n:,}", f"{last.lr:.3g}", str(last.epoch),
            "diverged" if last.why_not else f"{last.test_acc:.4f}",
            "never" if seconds is None else number(seconds),
            number(sum(e.seconds for e in epochs)),
        ])  # fmt: skip
    return _section(
        f"{study.name}: weak scaling, learning rate scaled with the global batch and "
        "warmed up",
        columns,
        rows,
    )


def _all_reduce_table(runs: Sequence[Run]) -> str:
    seconds = all_reduces(runs)
    names = list(dict.fromkeys(name for row in seconds.values() for name in row))
    rows = [
        [str(n), str(arrays), f"{num_bytes:,}"]
        + [number(1e3 * median(row[k])) if row.get(k) else "-" for k in names]
        for (n, arrays, num_bytes), row in seconds.items()
    ]
    title = "All-reduce: median milliseconds, results checked"
    table = _section(title, ["devices", "arrays", "bytes", *names], rows)
    records = [record for run in runs for record in run.of(AllReduceRecord)]
    refused = {record.variant: record.why_not for record in records if record.why_not}
    return "\n".join([table, *(f"{name}: {why}" for name, why in refused.items())])
