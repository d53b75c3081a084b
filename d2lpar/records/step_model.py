"""When a second device pays: speedup, efficiency, break-even, and a model of a step.

Arithmetic and the lines of a record, without MXNet: :mod:`d2lpar.studies.scaling` measures,
:mod:`d2lpar.figures.scaling` draws. The model of a step of N devices on a global batch
of B samples has two parameters that are fitted, and the all-reduce, which is measured
by itself::

    seconds(N, B) = N * fixed + per_sample * B / N + all_reduce(N)
    all_reduce(N) = (N - 1) * (latency * arrays + bytes / bandwidth)

N times the fixed cost because one Python issues the operators of every device, one
after the other (where each device has a process of its own, it is paid once); N - 1
because so does the book's all-reduce add up, and hand out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from d2lpar.errors import RecordError
from d2lpar.records.kinds import ScaledEpoch

# Seconds of a step by (num_devices, global_batch_size).
Steps = Mapping[tuple, float]


def speedups(steps: Steps) -> dict[tuple, float]:
    """Strong scaling: step(1, B) / step(N, B), where both were measured.

    >>> speedups({(1, 64): 3.0, (2, 64): 2.0, (2, 8): 1.0})
    {(1, 64): 1.0, (2, 64): 1.5}
    """
    return {
        (n, batch): steps[1, batch] / seconds
        for (n, batch), seconds in steps.items()
        if (1, batch) in steps
    }


def weak_efficiencies(steps: Steps) -> dict[tuple, float]:
    """Weak scaling: step(1, b) / step(N, N b) by (N, b), b samples on each device.

    1 where N devices do N times the work in the time that one needs for its own.

    >>> weak_efficiencies({(1, 8): 3.0, (2, 16): 4.0})
    {(1, 8): 1.0, (2, 8): 0.75}
    """
    return {
        (n, batch // n): steps[1, batch // n] / seconds
        for (n, batch), seconds in steps.items()
        if batch % n == 0 and (1, batch // n) in steps
    }


def break_even(speedup_by_batch: Mapping[int, float]) -> float | None:
    """The batch from which on more devices are faster, between two measured ones.

    Interpolated on a logarithmic scale. The smallest batch where all are faster: the
    break-even is there or below. None where the largest one is slower.

    >>> break_even({1: 0.5, 4: 1.5, 16: 1.9})
    2.0
    >>> break_even({1: 0.5, 4: 0.8}) is None
    True
    """
    batches = sorted(speedup_by_batch)
    slower = [batch for batch in batches if speedup_by_batch[batch] < 1]
    if not slower:
        return float(batches[0])
    low = slower[-1]
    if low == batches[-1]:
        return None
    high = batches[batches.index(low) + 1]
    share = (1 - speedup_by_batch[low]) / (
        speedup_by_batch[high] - speedup_by_batch[low]
    )
    return float(low * (high / low) ** share)


@dataclass(frozen=True)
class AllReduceModel:
    """Seconds of latency for each array, and bytes per second, between two devices."""

    latency: float
    bandwidth: float

    def seconds(self, num_devices: int, num_arrays: int, num_bytes: int) -> float:
        """What the book's all-reduce takes, one device after the other."""
        once = self.latency * num_arrays + num_bytes / self.bandwidth
        return (num_devices - 1) * once


def fit_all_reduce(
    num_devices: int, sizes: Sequence[tuple[int, int, float]]
) -> AllReduceModel:
    """Fit latency and bandwidth to (arrays, bytes, seconds), all on `num_devices`.

    Least squares of the relative error, neither below 0. Raises
    :class:`~d2lpar.errors.RecordError` for fewer than two sizes, or one device.
    """
    if len(sizes) < 2 or num_devices < 2:
        raise RecordError(
            f"all-reduce of {len(sizes)} size(s) on {num_devices} device(s): a model "
            "takes two sizes and two devices"
        )
    arrays, num_bytes, seconds = (np.array(c, float) for c in zip(*sizes))
    once = seconds / (num_devices - 1)
    latency, per_byte = _relative_fit([arrays, num_bytes], once)
    return AllReduceModel(latency, 1 / per_byte if per_byte > 0 else math.inf)


@dataclass(frozen=True)
class StepModel:
    """The two fitted parameters, in seconds, and the all-reduce of a step's gradients.

    `num_arrays` and `num_bytes` are the gradients' of one replica. `one_python`: one
    process issues the work of all devices.
    """

    fixed: float
    per_sample: float
    all_reduce: AllReduceModel | None = None
    num_arrays: int = 0
    num_bytes: int = 0
    one_python: bool = True

    def all_reduce_seconds(self, num_devices: int) -> float:
        """What the gradients' all-reduce takes; 0 on one device."""
        if self.all_reduce is None or num_devices == 1:
            return 0.0
        return self.all_reduce.seconds(num_devices, self.num_arrays, self.num_bytes)

    def seconds(self, num_devices: int, global_batch_size: int) -> float:
        """What a step takes."""
        work = self.per_sample * global_batch_size / num_devices
        return self._overhead(num_devices) + work

    def _overhead(self, num_devices: int) -> float:
        """What does not go by the batch."""
        fixed = self.fixed * (num_devices if self.one_python else 1)
        return fixed + self.all_reduce_seconds(num_devices)

    def speedup(self, num_devices: int, global_batch_size: int) -> float:
        """How many times as fast as one device."""
        alone = self.seconds(1, global_batch_size)
        return alone / self.seconds(num_devices, global_batch_size)

    def break_even(self, num_devices: int) -> float:
        """The batch at which `num_devices` are as fast as one.

        >>> StepModel(1.0, 0.1, AllReduceModel(2.0, math.inf), 1).break_even(2)
        60.0
        """
        saved = self.per_sample * (1 - 1 / num_devices)
        more = self._overhead(num_devices) - self._overhead(1)
        return more / saved if saved else math.inf


def fit_step(
    steps: Steps,
    all_reduce: AllReduceModel | None = None,
    num_arrays: int = 0,
    num_bytes: int = 0,
    without: Iterable[int] = (),
    one_python: bool = True,
) -> StepModel:
    """Fit `fixed` and `per_sample` to measured steps, but for device counts `without`.

    Least squares of the relative error, neither below 0, so that small batches count as
    much as large ones. Raises :class:`~d2lpar.errors.RecordError` for fewer than two
    different shards B / N.
    """
    nothing = StepModel(0, 0, all_reduce, num_arrays, num_bytes, one_python)
    without = set(without)
    used = {key: seconds for key, seconds in steps.items() if key[0] not in without}
    shards = [batch / n for n, batch in used]
    if len(set(shards)) < 2:
        raise RecordError(
            f"steps of {len(set(shards))} size(s) of a shard: a model takes two"
        )
    seconds = np.array(list(used.values()))
    communication = [nothing.all_reduce_seconds(n) for n, _ in used]
    times = [float(n) if one_python else 1.0 for n, _ in used]
    fixed, per_sample = _relative_fit(
        [np.array(times), np.array(shards)], seconds, seconds - communication
    )
    return replace(nothing, fixed=fixed, per_sample=per_sample)


def _relative_fit(columns: Sequence, seconds: np.ndarray, part=None) -> list[float]:
    """Coefficients >= 0 of the columns that make up `part` of the seconds (None: all).

    The error that is least is relative to `seconds`.
    """
    from scipy.optimize import nnls  # here: who only reads records need not wait for it

    matrix = np.stack(columns, axis=1) / seconds[:, None]
    scale = matrix.max(axis=0)  # bytes beside arrays: bring both to one
    target = (seconds if part is None else part) / seconds
    coefficients, _ = nnls(matrix / scale, target)
    return [float(c) for c in coefficients / scale]


def errors(model: StepModel, steps: Steps, num_devices: int) -> dict[int, float]:
    """By batch, how far the model is off, in parts of what was measured.

    >>> errors(StepModel(1.0, 1.0), {(1, 1): 4.0, (2, 4): 3.0}, num_devices=1)
    {1: -0.5}
    """
    return {
        batch: model.seconds(n, batch) / seconds - 1
        for (n, batch), seconds in steps.items()
        if n == num_devices
    }


def time_to(epochs: Sequence[ScaledEpoch], test_acc: float) -> float | None:
    """Seconds of training until an epoch ends at `test_acc` or more; None: never."""
    seconds = 0.0
    for epoch in epochs:
        seconds += epoch.seconds
        if epoch.test_acc is not None and epoch.test_acc >= test_acc:
            return seconds
    return None
