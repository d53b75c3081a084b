"""Times that can be trusted: synchronised, warmed up, and of results that are right.

MXNet works behind Python's back, as every GPU does: a clock that is read when the calls
have returned, and not when the devices have finished, measures Python. That is the
mistake in the least-squares notes and in the CryptoPunks notebook, so both clocks are
read here, side by side. Only :func:`measure` loads MXNet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from d2lpar.devices import check_contexts, enable_peer_access, label
from d2lpar.errors import D2lparError, SettingError
from d2lpar.machine.cores import omp_threads
from d2lpar.records.summary import Summary, efficiency, speedup, summarize
from d2lpar.records.wording import plural

if TYPE_CHECKING:
    from d2lpar._mxnet import mx

__all__ = [
    "Options", "Summary", "Timing", "TimingError", "efficiency", "measure",
    "measure_host", "ratio", "speedup", "summarize",
]  # fmt: skip


class TimingError(D2lparError, ValueError):
    """A result is wrong, or two times are of different work."""


@dataclass(frozen=True)
class Timing:
    """What :func:`measure` measured: every repetition's seconds, and the result.

    `naive_seconds` are of the same repetitions, the clock read before waiting;
    `warmup_seconds` are of those that do not count, the slow first one among them.
    `threads` are those of each CPU context, None on GPUs. `value` is the result, joined
    to one array whatever the number of devices, right to `rtol`.
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
    def median(self) -> float:
        """Median of the synchronised seconds."""
        return summarize(self.seconds).median

    def __str__(self) -> str:
        both = (self.seconds, self.naive_seconds)
        ms, naive = (summarize([1e3 * x for x in seconds]) for seconds in both)
        where = ", ".join(self.devices)
        return f"{self.name} on {where}: {ms} ms, naive clock {naive} ms"


@dataclass(frozen=True)
class Options:
    """How an operation is timed and its results are checked.

    The first `warmup` repetitions do not count, the next `repeats` do. Outside the
    clock, `join` makes one array of the devices' results (rows below each other;
    ``sum`` adds partial sums), which must differ from `expected`, or else from the
    first repetition's, by at most `rtol` times its largest element; and `before`, ahead
    of every repetition, undoes what an operation does in place. `name` is for messages.
    """

    warmup: int = 2
    repeats: int = 7
    expected: np.ndarray | float | None = None
    rtol: float = 1e-5
    join: Callable[[list[np.ndarray]], np.ndarray] = np.concatenate
    before: Callable[[], object] | None = None
    name: str = "the operation"


def measure(fn: Callable, devices: Sequence[mx.Context], **options) -> Timing:
    """Time ``fn(device)`` on all devices at once; the options are :class:`Options`'s.

    A repetition calls `fn` for every device without waiting in between; its results
    live until the clocks are read, so that all work is done and no freeing is timed.
    Several GPUs get peer access before (:func:`d2lpar.devices.enable_peer_access`).
    The devices are idle before the first and the last reading; the naive clock is read
    in between, when the calls have returned.

    Raises :class:`TimingError` for a result that is wrong or none, and
    :class:`SettingError` for no devices, ``repeats < 1``, ``warmup < 0`` or
    ``rtol < 0``.

    >>> from d2lpar._mxnet import mx, np
    >>> x = {d: np.ones((1000, 3), ctx=d) for d in (mx.cpu(0), mx.cpu(1))}
    >>> timing = measure(lambda device: 2 * x[device], list(x))
    >>> len(timing.seconds), timing.value.shape
    (7, (2000, 3))
    """
    from d2lpar._mxnet import npx

    how = Options(**options)
    check_contexts(devices)
    if not devices:
        raise SettingError(f"timing of {how.name}: the list of devices is empty")
    enable_peer_access(devices)
    threads = omp_threads() if devices[0].device_type == "cpu" else None
    labels = tuple(map(label, devices))
    call = lambda: [fn(device) for device in devices]  # noqa: E731
    return _repeat(call, npx.waitall, labels, threads, how)


def measure_host(fn: Callable, threads: int, **options) -> Timing:
    """Time ``fn()`` of NumPy, or of PyTorch on the CPU, which returns when it is done.

    Otherwise as :func:`measure`; with nothing to wait for, both clocks agree. `threads`
    is recorded, not set: how many the library uses.
    """
    labels = (f"host ({plural(threads, 'thread')})",)
    return _repeat(lambda: [fn()], lambda: None, labels, threads, Options(**options))


def ratio(a: Timing, b: Timing) -> float:
    """How many times as long `a` takes as `b`, by their medians.

    Raises :class:`TimingError` where the two did not compute the same: a ratio of the
    times of different work says nothing.
    """
    rtol = max(a.rtol, b.rtol)
    difference = _difference(a.value, b.value)
    if not difference <= rtol:
        raise TimingError(
            f"{a.name} and {b.name} cannot be compared: their results differ by "
            f"{difference:.2g}, relative, more than {rtol:g}"
        )
    return a.median / b.median


def _repeat(
    call: Callable[[], list],
    wait: Callable[[], object],
    devices: tuple[str, ...],
    threads: int | None,
    how: Options,
) -> Timing:
    whole = all(isinstance(n, int) for n in (how.repeats, how.warmup))
    if not whole or how.repeats < 1 or how.warmup < 0:
        raise SettingError(
            f"timing of {how.name}: repeats {how.repeats}, warmup {how.warmup}: write "
            "1 or more repeats and 0 or more for the warm-up"
        )
    if not how.rtol >= 0:
        raise SettingError(f"timing of {how.name}: rtol {how.rtol}: write 0 or more")
    right = None if how.expected is None else np.asarray(how.expected)
    naive, seconds = [], []
    for repetition in range(1, how.warmup + how.repeats + 1):
        if how.before is not None:
            how.before()
        wait()
        start = time.perf_counter()
        results = call()
        naive.append(time.perf_counter() - start)
        wait()
        seconds.append(time.perf_counter() - start)
        value = _joined(results, how)
        del results  # its memory can serve the next repetition
        right = value if right is None else right
        difference = _difference(value, right)
        if not difference <= how.rtol:  # NaN is wrong too
            raise TimingError(
                f"timing of {how.name}: repetition {repetition} gives a wrong result: "
                f"shape {value.shape}, off by {difference:.2g}, relative; right are "
                f"shape {right.shape} and at most {how.rtol:g}"
            )
    warm = how.warmup
    timed, naive_timed = tuple(seconds[warm:]), tuple(naive[warm:])
    return Timing(
        how.name, timed, naive_timed, tuple(seconds[:warm]), devices, threads,
        how.rtol, value,
    )  # fmt: skip


def _joined(results: list, how: Options) -> np.ndarray:
    try:
        return np.asarray(how.join([_as_numpy(result) for result in results]))
    except (TypeError, ValueError) as error:
        raise TimingError(
            f"timing of {how.name}: its results cannot be joined ({error}): return an "
            "array from each device, or give join="
        ) from None


def _as_numpy(array) -> np.ndarray:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def _difference(value: np.ndarray, right: np.ndarray) -> float:
    """Largest difference relative to the largest element; infinite if shapes differ."""
    if value.shape != right.shape:
        return np.inf
    if value.size == 0:
        return 0.0
    if right.dtype.kind in "bui":  # unsigned numbers wrap around, bools do not subtract
        right = right.astype("float64")
    largest = float(max(right.max(), -right.min()))
    with np.errstate(invalid="ignore"):  # an infinity less itself
        off = float(np.abs(value - right).max())
    return off if off == 0 else off / largest if largest else np.inf
