"""When does a second device pay: a study's records, its break-even, and a model.

The model of a step of N devices on a global batch of B samples has two fitted
parameters, `fixed` and `per_sample`, and the exchange of the gradients between two
devices, which is measured separately::

    seconds(N, B) = N * fixed + per_sample * B / N + (N - 1) * exchange
    exchange = latency * arrays + bytes / bandwidth

The fixed cost counts N times because one Python process issues the operators of all
devices, one device after the other; with one process per device it counts once. The
exchange counts N - 1 times because the book's all-reduce goes from device to device.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from d2lpar.errors import RecordError
from d2lpar.records.comparison import Summary, summarize
from d2lpar.records.kinds import (
    PARTS,
    AllReduceRecord,
    Run,
    ScaledEpoch,
    StepRecord,
    group,
)


def break_even(speedup_by_batch: Mapping[int, float]) -> float | None:
    """The batch size above which more devices are faster than one.

    Interpolated between two measured batches on a logarithmic scale. The smallest
    batch if all batches are faster (the break-even is there or below); None if the
    largest batch is slower.

    >>> break_even({1: 0.5, 4: 1.5, 16: 1.9})
    2.0
    """
    points = sorted(speedup_by_batch.items(), reverse=True)
    if points[0][1] < 1:
        return None
    for (high, above), (low, below) in zip(points, points[1:]):
        if below < 1:
            return float(low * (high / low) ** ((1 - below) / (above - below)))
    return float(points[-1][0])


@dataclass(frozen=True)
class AllReduceModel:
    """Latency in seconds per array and bandwidth in bytes/s, between two devices."""

    latency: float
    bandwidth: float

    def seconds(self, num_devices: int, num_arrays: int, num_bytes: int) -> float:
        """Seconds of an all-reduce that goes from device to device."""
        exchange = self.latency * num_arrays + num_bytes / self.bandwidth
        return (num_devices - 1) * exchange


def fit_all_reduce(
    num_devices: int, sizes: Sequence[tuple[int, int, float]]
) -> AllReduceModel:
    """Fit latency and bandwidth to (arrays, bytes, seconds) measured on `num_devices`.

    Raises :class:`~d2lpar.errors.RecordError` for fewer than two sizes or one device.
    """
    if len(sizes) < 2 or num_devices < 2:
        raise RecordError(
            f"all-reduce of {len(sizes)} size(s) on {num_devices} device(s): the model "
            "needs at least two sizes and two devices"
        )
    arrays, num_bytes, seconds = (np.array(column, float) for column in zip(*sizes))
    exchange = seconds / (num_devices - 1)
    latency, per_byte = _fit([arrays, num_bytes], exchange, exchange)
    return AllReduceModel(latency, 1 / per_byte if per_byte > 0 else math.inf)


@dataclass(frozen=True)
class StepModel:
    """The costs of a step in seconds; `one_python` issues the work of all devices."""

    fixed: float
    per_sample: float
    exchange: float = 0.0
    one_python: bool = True

    def seconds(self, num_devices: int, global_batch_size: float) -> float:
        """Seconds of a step."""
        fixed = self.fixed * (num_devices if self.one_python else 1)
        work = self.per_sample * global_batch_size / num_devices
        return fixed + work + (num_devices - 1) * self.exchange

    def speedup(self, num_devices: int, global_batch_size: float) -> float:
        """Seconds of a step on one device / seconds on `num_devices`."""
        one = self.seconds(1, global_batch_size)
        return one / self.seconds(num_devices, global_batch_size)

    def break_even(self, num_devices: int) -> float:
        """The batch at which `num_devices` are as fast as one; infinite if never.

        >>> StepModel(fixed=1.0, per_sample=0.1, exchange=2.0).break_even(2)
        60.0
        """
        saved = self.per_sample * (1 - 1 / num_devices)
        added = self.seconds(num_devices, 0) - self.seconds(1, 0)
        return added / saved if saved else math.inf


def fit_step(
    steps: Mapping[tuple, float],
    all_reduce: AllReduceModel | None = None,
    num_arrays: int = 0,
    num_bytes: int = 0,
    *,
    without: Container[int] = (),
    one_python: bool = True,
) -> StepModel:
    """Fit `fixed` and `per_sample` to seconds by (num_devices, global_batch_size).

    `num_arrays` and `num_bytes` count the gradients of one replica, which `all_reduce`
    sums; device counts `without` are left out. Raises
    :class:`~d2lpar.errors.RecordError` for fewer than two shard sizes B / N.
    """
    exchange = all_reduce.seconds(2, num_arrays, num_bytes) if all_reduce else 0.0
    used = [(n, batch / n, s) for (n, batch), s in steps.items() if n not in without]
    if len({shard for _, shard, _ in used}) < 2:
        raise RecordError("steps of one shard size: the model needs at least two")
    counts, shards, seconds = (np.array(column, float) for column in zip(*used))
    python = counts if one_python else np.ones_like(counts)
    without_exchange = seconds - (counts - 1) * exchange
    fixed, per_sample = _fit([python, shards], without_exchange, seconds)
    return StepModel(fixed, per_sample, exchange, one_python)


def _fit(columns: list, target: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Coefficients >= 0 with sum(c * column) near `target`, relative to `seconds`."""
    from scipy.optimize import nnls  # slow to import, and only a fit needs it

    matrix = np.stack(columns, axis=1) / seconds[:, None]
    scale = matrix.max(axis=0)  # arrays and bytes differ by orders of magnitude
    coefficients, _ = nnls(matrix / scale, target / seconds)
    return [float(c) for c in coefficients / scale]


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
                one, many = (
                    [s for r in self.records[key] if r.num_devices for s in r.seconds]
                    for key in ((1, batch), (n, batch))
                )
                speedups[batch] = self.steps[1, batch] / self.steps[n, batch]
                if one and len(one) == len(many):
                    speedups[batch] = median(a / b for a, b in zip(one, many))
        return speedups

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
