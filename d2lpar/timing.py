"""Numbers that can be trusted: medians of many samples, their spread, and ratios.

:func:`measure` times devices honestly. MXNet works behind Python's back, as every GPU
does: a clock that is read when the calls have returned, and not when the devices have
finished, measures Python (seeds 000 and 003). Both clocks are read here, side by side.
MXNet is loaded with the first measurement of a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from d2lpar.errors import D2lparError, SettingError
from d2lpar.records.summary import Summary, summarize

if TYPE_CHECKING:
    from d2lpar._mxnet import mx


class TimingError(D2lparError, ValueError):
    """A result is not what it must be, or two times are not of the same work."""


@dataclass(frozen=True)
class Timing:
    """What :func:`measure` found: every sample, in seconds, and what was computed.

    `naive_seconds` are of the same repetitions, the clock read before waiting;
    `warmup_seconds` of those that do not count, the slow first one among them.
    `threads` is the number a CPU context works with, None on GPUs. `value` is the
    result, one array whatever the number of devices, right to `rtol`.
    """

    name: str
    seconds: tuple[float, ...]
    naive_seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    devices: tuple[str, ...]
    threads: int | None
    rtol: float
    value: np.ndarray = field(repr=False, compare=False)

    @property
    def n(self) -> int:
        """How many repetitions count."""
        return len(self.seconds)

    @property
    def summary(self) -> Summary:
        """Median and quartiles of the synchronised seconds."""
        return summarize(self.seconds)

    @property
    def naive(self) -> Summary:
        """Median and quartiles of the seconds until the calls returned."""
        return summarize(self.naive_seconds)

    @property
    def median(self) -> float:
        """Median of the synchronised seconds."""
        return self.summary.median

    @property
    def iqr(self) -> float:
        """Interquartile range of the synchronised seconds."""
        return self.summary.q3 - self.summary.q1

    def __str__(self) -> str:
        ms = summarize([1e3 * seconds for seconds in self.seconds])
        naive = summarize([1e3 * seconds for seconds in self.naive_seconds])
        return (
            f"{self.name} on {', '.join(self.devices)}: {ms} ms, naive clock {naive} ms"
        )


def measure(
    fn: Callable,
    devices: Sequence[mx.Context],
    *,
    warmup: int = 2,
    repeats: int = 7,
    expected: np.ndarray | float | None = None,
    rtol: float = 1e-5,
    join: Callable[[list[np.ndarray]], np.ndarray] = np.concatenate,
    before: Callable[[], object] | None = None,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time ``fn(device)`` on all devices at once, checking the results all the while.

    A repetition calls `fn` for every device, without waiting in between, and keeps the
    arrays it returns alive until the clocks are read: nothing is computed for nobody,
    and freeing memory is not timed. All devices have finished before the first reading
    of the clock and before the last; the naive clock is read in between, when the calls
    have returned. `warmup` repetitions do not count, `repeats` do.

    Outside the clock each repetition is checked: the devices' results as NumPy arrays,
    made one by `join` (rows below each other; ``sum`` adds partial sums), must differ
    from `expected` by no more than `rtol` times its largest element. Without `expected`
    the first repetition stands for it. `before` is called ahead of every repetition,
    outside the clock too: it undoes what an operation has done in place.

    Raises :class:`TimingError` for a wrong result and :class:`SettingError` for no
    devices, ``repeats < 1`` or ``warmup < 0``.

    >>> from d2lpar._mxnet import mx, np
    >>> x = {d: np.ones((1000, 3), ctx=d) for d in (mx.cpu(0), mx.cpu(1))}
    >>> timing = measure(lambda device: 2 * x[device], list(x))
    >>> timing.n, timing.value.shape
    (7, (2000, 3))
    """
    from d2lpar import devices as _devices
    from d2lpar._mxnet import npx
    from d2lpar.machine import cores

    name = name or getattr(fn, "__name__", "the operation")
    if not devices:
        raise SettingError(f"timing of {name}: the list of devices is empty")
    seconds, naive, value = _samples(
        lambda: [fn(device) for device in devices],
        npx.waitall, warmup, repeats, expected, rtol, join, before, name, clock,
    )  # fmt: skip
    labels = tuple(_devices.label(device) for device in devices)
    threads = cores.omp_threads() if devices[0].device_type == "cpu" else None
    return Timing(
        name, seconds[warmup:], naive[warmup:], seconds[:warmup],
        labels, threads, rtol, value,
    )  # fmt: skip


def measure_host(
    fn: Callable,
    threads: int,
    *,
    warmup: int = 2,
    repeats: int = 7,
    expected: np.ndarray | float | None = None,
    rtol: float = 1e-5,
    join: Callable[[list[np.ndarray]], np.ndarray] = np.concatenate,
    before: Callable[[], object] | None = None,
    name: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time ``fn()`` of NumPy, or of PyTorch on the CPU: when it returns, it is done.

    All else is as in :func:`measure`; there is nothing to wait for, so that both clocks
    agree. `threads` is what the library may use, for the record: nothing is set here.
    """
    name = name or getattr(fn, "__name__", "the operation")
    seconds, naive, value = _samples(
        lambda: [fn()], lambda: None, warmup, repeats, expected, rtol, join, before,
        name, clock,
    )  # fmt: skip
    label = f"host ({threads} thread{'s' if threads != 1 else ''})"
    return Timing(
        name, seconds[warmup:], naive[warmup:], seconds[:warmup],
        (label,), threads, rtol, value,
    )  # fmt: skip


def ratio(a: Timing, b: Timing) -> float:
    """How many times as long `a` takes as `b`, median by median.

    Raises :class:`TimingError` where the two did not compute the same: their times are
    then of different work, and their ratio says nothing.
    """
    rtol = max(a.rtol, b.rtol)
    difference = _difference(a.value, b.value)
    if not difference <= rtol:
        raise TimingError(
            f"{a.name} and {b.name} cannot be compared: their results differ by "
            f"{difference:.2g}, relative, more than {rtol:g}"
        )
    return a.median / b.median


def _samples(
    calls: Callable[[], list],
    wait: Callable[[], object],
    warmup: int,
    repeats: int,
    expected,
    rtol: float,
    join: Callable,
    before: Callable[[], object] | None,
    name: str,
    clock: Callable[[], float],
) -> tuple[tuple[float, ...], tuple[float, ...], np.ndarray]:
    """Seconds and naive seconds, warm-up first, and the checked result."""
    if repeats < 1 or warmup < 0:
        raise SettingError(
            f"timing of {name}: repeats {repeats}, warmup {warmup}: write 1 or more "
            "repeats and 0 or more for the warm-up"
        )
    seconds, naive = [], []
    value = None if expected is None else np.asarray(expected)
    for repeat in range(warmup + repeats):
        if before is not None:
            before()
        wait()
        start = clock()
        results = calls()
        returned = clock()
        wait()
        finished = clock()
        naive.append(returned - start)
        seconds.append(finished - start)
        found = np.asarray(join([_as_numpy(result) for result in results]))
        del results  # before the next repetition: its memory can be used again
        value = found if value is None else value
        difference = _difference(found, value)
        if not difference <= rtol:  # NaN is wrong too
            raise TimingError(
                f"timing of {name}: repetition {repeat + 1} gives a wrong result: "
                f"shape {found.shape}, off by {difference:.2g}, relative; right are "
                f"shape {value.shape} and at most {rtol:g}"
            )
    return tuple(seconds), tuple(naive), found


def _as_numpy(array) -> np.ndarray:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def _difference(found: np.ndarray, right: np.ndarray) -> float:
    """Largest difference in parts of the largest element; infinite if shapes differ."""
    if found.shape != right.shape:
        return np.inf
    if found.size == 0:
        return 0.0
    if right.dtype.kind in "bui":  # whole numbers wrap around, truths have no "less"
        right = right.astype("float64")
    largest = float(max(right.max(), -right.min()))
    with np.errstate(invalid="ignore"):  # an infinity less itself
        off = float(np.abs(found - right).max())
    return off if off == 0 else off / largest if largest else np.inf
