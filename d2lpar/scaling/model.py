"""When does a second device pay: a study's records, its break-even, and a model.

In a step of N devices on a global batch of B samples Python issues the work of one
device after the other and runs ahead, while the devices compute their shards side by
side and exchange their gradients. The step takes as long as the slower of the two, not
as both together::

    python  = N * issue
    device  = fixed + per_sample * B / N + (N - 1) * exchange
    seconds = max(python, device, N * (issue + device) / cores)

The last term is for CPU contexts, whose computing and Python share `cores`; GPUs have
processors of their own. `issue` and `exchange` are measured; `fixed` and `per_sample`
are fitted to steps on one device. What the model says of more devices is a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy

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
class StepModel:
    """The costs of a step in seconds.

    `issue` is Python's time for the work of one device, `exchange` that of an
    all-reduce over two. `cores` is how many contexts the CPU's cores can serve at
    once; infinite for GPUs.
    """

    issue: float
    fixed: float
    per_sample: float
    exchange: float = 0.0
    cores: float = math.inf

    def seconds(self, num_devices: int, global_batch_size: float) -> float:
        """Seconds of a step."""
        device = self.fixed + self.per_sample * global_batch_size / num_devices
        device += (num_devices - 1) * self.exchange
        shared = num_devices * (self.issue + device) / self.cores
        return max(num_devices * self.issue, device, shared)

    def speedup(self, num_devices: int, global_batch_size: float) -> float:
        """Seconds of a step on one device / seconds on `num_devices`."""
        one = self.seconds(1, global_batch_size)
        return one / self.seconds(num_devices, global_batch_size)

    def break_even(self, num_devices: int) -> float:
        """The batch from which `num_devices` are as fast as one; infinite if never.

        >>> StepModel(issue=4.0, fixed=1.0, per_sample=0.1).break_even(2)
        70.0
        """
        n, per_sample = num_devices, self.per_sample
        device = self.fixed + (n - 1) * self.exchange
        # What N devices take is the longest of three lines, from `start` and rising by
        # `slope` with B; one device takes fixed + per_sample * B where more can pay.
        lines = [
            (n * self.issue, 0.0),
            (device, per_sample / n),
            (n * (self.issue + device) / self.cores, per_sample / self.cores),
        ]
        return max(
            (start - self.fixed) / (per_sample - slope)
            if slope < per_sample
            else math.inf
            for start, slope in lines
        )


def fit_step(
    seconds: Mapping[int, float],
    issue: float,
    exchange: float = 0.0,
    cores: float = math.inf,
) -> StepModel:
    """Fit `fixed` and `per_sample` to seconds on one device by batch size.

    A straight line, through the batches whose time is the device's: those from some
    batch on, chosen so that the model is nearest to all of them, in relative terms.
    Raises :class:`~d2lpar.errors.RecordError` for fewer than two batch sizes.
    """
    if len(seconds) < 2:
        raise RecordError("steps of one batch size: the model needs at least two")
    sizes = sorted(seconds)
    models = [
        StepModel(issue, fixed, per_sample, exchange, cores)
        for fixed, per_sample in (
            _line({b: seconds[b] for b in sizes[k:]}) for k in range(len(sizes) - 1)
        )
    ]
    return min(
        models,
        key=lambda m: sum((m.seconds(1, b) / s - 1) ** 2 for b, s in seconds.items()),
    )


def _line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Intercept and slope, neither negative; small and large times count alike."""
    from scipy.optimize import nnls  # slow to import, and only a fit needs it

    sizes = numpy.array(list(seconds), float)
    times = numpy.array(list(seconds.values()))
    matrix = numpy.stack([numpy.ones_like(sizes), sizes], axis=1) / times[:, None]
    scale = matrix.max(axis=0)  # an intercept and a slope differ by orders of magnitude
    coefficients, _ = nnls(matrix / scale, numpy.ones_like(times))
    fixed, per_sample = coefficients / scale
    return float(fixed), float(per_sample)


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
        """The model of a step, fitted to the steps on one device.

        None without two batch sizes there and Python's time to issue them, and for
        several devices without an all-reduce of as many arrays as training sums.
        """
        one = {batch: s for (n, batch), s in self.steps.items() if n == 1}
        on_one = [r for (n, _), rs in self.records.items() if n == 1 for r in rs]
        issue = [s for record in on_one for s in record.issue_seconds]
        exchange = self._exchange()
        if len(one) < 2 or not issue or (exchange is None and self.counts != [1]):
            return None
        header, cores = self.runs[0].header, math.inf
        if header.device_kind == "cpu":
            cores = header.cores / (header.threads_per_device or 1)
        return fit_step(one, median(issue), exchange or 0.0, cores)

    def _exchange(self) -> float | None:
        """Median seconds of the gradients' all-reduce over two devices, if measured."""
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
            return None
        # Only the gradients are several arrays. The trainer of the committed records
        # summed them one by one; on GPUs BucketTrainer has summed one array since.
        fewest = min(n for n, _, _ in measured)
        arrays, num_bytes = max(size for n, *size in measured if n == fewest)
        if self.name == "from scratch":
            arrays = 1  # flat, see d2lpar.buckets
        return measured[fewest, arrays, num_bytes] / (fewest - 1)

    def errors_of(self, num_devices: int) -> dict[int, float]:
        """The model's seconds over the measured ones, less 1, by global batch."""
        if self.model is None:
            return {}
        return {
            batch: self.model.seconds(n, batch) / measured - 1
            for (n, batch), measured in self.steps.items()
            if n == num_devices
        }

    def bracket(self, num_devices: int) -> dict[int, tuple[float, float]]:
        """The bounds in seconds of a step on `num_devices`, by global batch.

        Chapter 6 derives them: Python and the devices overlap completely, or take turns
        before the all-reduce. Only steps on one device and the all-reduce are used; {}
        where they were not measured.
        """
        bounds, exchange = {}, self._exchange()
        for (n, batch), device in self.steps.items():
            issue = [s for r in self.records[n, batch] for s in r.issue_seconds]
            if n == 1 and issue and exchange is not None:
                python = num_devices * median(issue)
                high = python + device + (num_devices - 1) * exchange
                bounds[num_devices * batch] = max(python, device), high
        return bounds

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
        for line in run.lines_of(kind)
    ]


def all_reduces(runs: Sequence[Run]) -> dict[tuple[int, int, int], dict]:
    """Seconds by (devices, arrays, bytes), then by variant; [] if not supported."""
    seconds: dict[tuple[int, int, int], dict[str, list[float]]] = {}
    for n, record in _with_counts(runs, AllReduceRecord):
        by_variant = seconds.setdefault((n, record.num_arrays, record.num_bytes), {})
        by_variant.setdefault(record.variant, []).extend(record.seconds)
    return seconds
