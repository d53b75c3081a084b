"""Scaling records to numbers and to a table as text: maps, models, predictions.

What :mod:`d2lpar.figures.scaling` draws is computed here, with the arithmetic of
:mod:`d2lpar.records.step_model`. Never imports MXNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from d2lpar.records import summary, wording
from d2lpar.records.kinds import (
    PARTS,
    AllReduceRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    group,
)
from d2lpar.records.step_model import (
    AllReduceModel,
    StepModel,
    break_even,
    errors,
    fit_all_reduce,
    fit_step,
    speedups,
    time_to,
    weak_efficiencies,
)
from d2lpar.records.wording import number

# The all-reduce that each implementation trains with.
ALL_REDUCE = {"scratch": "book", "concise": "kvstore local"}
# Peers' rows have other costs: a process a device, or a data loader in the way.
NO_MODEL, A_PROCESS_EACH = ("d2l",), ("ddp",)
PREDICTED = (2, 4, 8, 16)  # device counts to predict where they were not measured
TARGET_ACC = 0.75


@dataclass(frozen=True)
class Study:
    """One implementation: its runs, its steps by (devices, batch), and its model."""

    name: str
    runs: tuple[Run, ...]
    steps: dict[tuple, float]
    model: StepModel | None
    held_out: StepModel | None  # fitted without the largest device count

    @property
    def counts(self) -> list[int]:
        """Measured device counts, ascending."""
        return sorted({n for n, _ in self.steps})

    @property
    def batches(self) -> list[int]:
        """Measured global batches, ascending."""
        return sorted({batch for _, batch in self.steps})

    @property
    def predicted(self) -> list[int]:
        """Device counts that the model can speak of and that were not measured."""
        if self.model is None or self.model.all_reduce is None:
            return []
        return [n for n in PREDICTED if n not in self.counts]

    def speedups_of(self, num_devices: int) -> dict[int, float]:
        """Measured speedup over one device by global batch."""
        found = speedups(self.steps)
        return {batch: s for (n, batch), s in found.items() if n == num_devices}


def studies(runs: Sequence[Run]) -> list[Study]:
    """One a variant, in the order of the runs."""
    return [_study(*item) for item in group(runs, lambda r: r.header.variant).items()]


def _study(name: str, runs: Sequence[Run]) -> Study:
    samples: dict[tuple, list[float]] = {}
    for run in runs:
        for record in run.of(StepRecord):
            key = (run.header.num_devices, record.global_batch_size)
            samples.setdefault(key, []).extend(record.seconds)
    steps = {key: median(seconds) for key, seconds in samples.items()}
    reduce_, arrays, num_bytes = _all_reduce(name, runs)
    counts = {n for n, _ in steps}
    model = held_out = None
    of = {"one_python": name not in A_PROCESS_EACH}
    if len({batch / n for n, batch in steps}) > 1 and name not in NO_MODEL:
        model = fit_step(steps, reduce_, arrays, num_bytes, **of)
        rest = {batch for n, batch in steps if n != max(counts)}
        if len(counts) > 1 and len(rest) > 1:
            held_out = fit_step(steps, reduce_, arrays, num_bytes, {max(counts)}, **of)
    return Study(name, tuple(runs), steps, model, held_out)


def _all_reduce(name: str, runs: Sequence[Run]) -> tuple:
    """The model of its all-reduce, and how many arrays and bytes a replica has.

    From the fewest devices that were measured: what more devices take is predicted.
    """
    variant = ALL_REDUCE.get(name)
    with_it = [run for run in runs if run.of(AllReduceRecord)]
    if not with_it:
        return None, 0, 0
    run = min(with_it, key=lambda run: run.header.num_devices)
    sizes: dict[tuple, list[float]] = {}
    for record in run.of(AllReduceRecord):
        if record.variant == variant and record.seconds:
            key = (record.num_arrays, record.num_bytes)
            sizes.setdefault(key, []).extend(record.seconds)
    points = [(*key, median(seconds)) for key, seconds in sizes.items()]
    model: AllReduceModel = fit_all_reduce(run.header.num_devices, points)
    arrays, num_bytes = max(sizes)  # the gradients are the one of several arrays
    return model, arrays, num_bytes


def results(runs: Sequence[Run]) -> str:
    """Every number as text."""
    parts = []
    for study in studies(runs):
        parts += [_steps_table(study), _model_table(study), _parts_table(study)]
        parts += [_epochs_table(study)]
    parts += [_all_reduce_table(runs), wording.provenance(runs)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _steps_table(study: Study) -> str:
    lines = [
        f"{study.name}: milliseconds a step (quartiles, n), samples/s; strong scaling: "
        "speedup over 1 device at the same global batch, efficiency; weak scaling: "
        "efficiency over 1 device with the same batch per device",
        f"{'batch':>7}{'devices':>9}{'ms':>10}{'quartiles, n':>24}{'samples/s':>12}"
        f"{'speedup':>9}{'strong':>8}{'weak':>7}{'Python ms':>11}",
    ]
    strong, weak = speedups(study.steps), weak_efficiencies(study.steps)
    for batch in study.batches:
        for n in study.counts:
            if (n, batch) not in study.steps:
                continue
            found = [
                record
                for run in study.runs
                for record in run.of(StepRecord)
                if (run.header.num_devices, record.global_batch_size) == (n, batch)
            ]
            s = summary.summarize([1e3 * x for r in found for x in r.seconds])
            issues = [1e3 * x for r in found for x in r.issue_seconds]
            python = number(median(issues)) if issues else "-"
            speedup = strong.get((n, batch))
            per_device = weak.get((n, batch // n)) if batch % n == 0 else None
            lines.append(
                f"{batch:>7,}{n:>9}{number(s.median):>10}"
                f"{f'{number(s.q1)}-{number(s.q3)}, {s.n}':>24}"
                f"{1e3 * batch / s.median:>12,.0f}"
                f"{f'{speedup:.2f}' if speedup else '-':>9}"
                f"{f'{speedup / n:.0%}' if speedup else '-':>8}"
                f"{f'{per_device:.0%}' if per_device else '-':>7}{python:>11}"
            )
    return "\n".join(lines)


def _model_table(study: Study) -> str:
    model = study.model
    if model is None:
        return ""
    lines = [
        f"{study.name}, model of a step: {'N x ' if model.one_python else ''}"
        f"{1e3 * model.fixed:.3g} ms + "
        f"{1e6 * model.per_sample:.4g} us a sample of a device's shard"
    ]
    if model.all_reduce is not None:
        lines[0] += (
            f" + (N - 1) x {1e3 * model.all_reduce_seconds(2):.3g} ms of all-reduce "
            f"({model.num_arrays} arrays, {model.num_bytes:,} bytes)"
        )
    for n in study.counts[1:]:
        found = break_even(study.speedups_of(n)) if study.speedups_of(n) else None
        least = study.batches[0] if found == study.batches[0] else None
        measured = (
            "none of these batches"
            if found is None
            else f"a batch of {number(found)}" + " or less" * (least is not None)
        )
        told = f"; by the model from {number(model.break_even(n))}"
        lines.append(
            f"  {n} devices pay from {measured} on"
            f"{told if model.all_reduce is not None else ''}"
        )
    for n in study.predicted:
        best = model.speedup(n, study.batches[-1])
        lines.append(
            f"  {n} devices, PREDICTED: pay from a batch of "
            f"{number(model.break_even(n))} on; {best:.2f} times as fast as 1 at "
            f"{study.batches[-1]:,}"
        )
    if study.held_out is not None:
        n = study.counts[-1]
        off = errors(study.held_out, study.steps, n)
        worst = max(off, key=lambda batch: abs(off[batch]))
        lines.append(
            f"  held out: fitted without the steps of {n} devices, it predicts them "
            f"to {median(abs(e) for e in off.values()):.1%} (median over the batches), "
            f"{abs(off[worst]):.1%} at worst (at {worst:,})"
        )
    return "\n".join(lines)


def _parts_table(study: Study) -> str:
    rows = parts(study)
    if not rows:
        return ""
    lines = [
        f"{study.name}: where a step's milliseconds go, by omission; without waiting "
        "for Python; with a wait before the all-reduce",
        f"{'batch':>7}{'devices':>9}"
        + "".join(f"{name:>16}" for name in PARTS)
        + f"{'no Python':>12}{'no overlap':>12}",
    ]
    for (n, batch), (by_name, no_python, no_overlap) in rows.items():
        cells = "".join(f"{1e3 * by_name[name]:>16.3g}" for name in PARTS)
        lines.append(
            f"{batch:>7,}{n:>9}{cells}{1e3 * no_python:>12.3g}{1e3 * no_overlap:>12.3g}"
        )
    return "\n".join(lines)


def parts(study: Study) -> dict[tuple, tuple]:
    """By (devices, batch): medians of each part, without Python, without overlap."""
    found: dict[tuple, list] = {}
    for run in study.runs:
        for record in run.of(StepRecord):
            if record.parts:
                key = (run.header.num_devices, record.global_batch_size)
                found.setdefault(key, []).append(record)
    return {
        key: (
            {name: median(r.parts[name] for r in same) for name in PARTS},
            median(s for r in same for s in r.without_python),
            median(s for r in same for s in r.without_overlap),
        )
        for key, same in sorted(found.items(), key=lambda item: item[0][::-1])
    }


def trainings(study: Study) -> dict[tuple, list]:
    """Epochs of the first repeat by (devices, global batch), in order."""
    return {
        (run.header.num_devices, batch): epochs
        for run in study.runs
        for batch, epochs in group(
            [e for e in run.of(ScaledEpoch) if e.repeat == 0],
            lambda e: e.global_batch_size,
        ).items()
    }


def _epochs_table(study: Study) -> str:
    lines = [
        f"{study.name}: weak scaling, learning rate scaled with the global batch and "
        "warmed up",
        f"{'devices':>7}{'batch':>9}{'per device':>12}{'lr':>7}{'epochs':>8}"
        f"{'accuracy':>10}{f'seconds to {TARGET_ACC:g}':>18}{'seconds':>9}",
    ]
    for (n, batch), epochs in trainings(study).items():
        last = epochs[-1]
        reached = time_to(epochs, TARGET_ACC)
        acc = last.why_not and "diverged" or f"{last.test_acc:.4f}"
        lines.append(
            f"{n:>7}{batch:>9,}{batch // n:>12,}{last.lr:>7.3g}{last.epoch:>8}"
            f"{acc:>10}{'never' if reached is None else number(reached):>18}"
            f"{number(sum(e.seconds for e in epochs)):>9}"
        )
    return "\n".join(lines) if len(lines) > 2 else ""


def all_reduces(runs: Sequence[Run]) -> dict[tuple, dict[str, list[float]]]:
    """Seconds by (devices, arrays, bytes), then by variant; [] where there is none."""
    found: dict[tuple, dict[str, list[float]]] = {}
    for run in runs:
        for record in run.of(AllReduceRecord):
            key = (run.header.num_devices, record.num_arrays, record.num_bytes)
            by_variant = found.setdefault(key, {})
            by_variant.setdefault(record.variant, []).extend(record.seconds)
    return found


def _all_reduce_table(runs: Sequence[Run]) -> str:
    found = all_reduces(runs)
    if not found:
        return ""
    names = list(dict.fromkeys(name for row in found.values() for name in row))
    lines = [
        "All-reduce: median milliseconds, results checked",
        f"{'devices':>7}{'arrays':>8}{'bytes':>13}"
        + "".join(f"{name:>16}" for name in names),
    ]
    for (n, arrays, num_bytes), row in found.items():
        cells = [
            f"{number(1e3 * median(row[name])) if row.get(name) else '-':>16}"
            for name in names
        ]
        lines.append(f"{n:>7}{arrays:>8}{num_bytes:>13,}{''.join(cells)}")
    missing = {
        record.variant: record.why_not
        for run in runs
        for record in run.of(AllReduceRecord)
        if record.why_not
    }
    lines += [f"{name}: {why}" for name, why in missing.items()]
    return "\n".join(lines)
