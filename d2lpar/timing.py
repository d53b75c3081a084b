"""Times that can be trusted: synchronised, warmed up, and of results that are right.

A clock read before the devices have finished measures Python, so both are read. Only
:func:`measure` loads MXNet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy

from d2lpar.devices import check_contexts, enable_peer_access, label
from d2lpar.errors import D2lparError, SettingError
from d2lpar.machine.host import omp_threads
from d2lpar.records.rule import Summary, summarize
from d2lpar.text import plural

if TYPE_CHECKING:
    from d2lpar._mxnet import mx

__all__ = ["Summary", "Timing", "TimingError", "measure", "measure_host",
           "measure_torch", "summarize"]  # fmt: skip


class TimingError(D2lparError, ValueError):
    """A timed result is wrong."""


@dataclass(frozen=True)
class Timing:
    """Hold the synchronised `seconds` of each repetition, and the result.

    `naive_seconds` are read before waiting; `threads` is the number of threads of each
    CPU context; `value` is one array, checked.
    """

    name: str
    seconds: tuple[float, ...]
    naive_seconds: tuple[float, ...]
    warmup_seconds: tuple[float, ...]
    devices: tuple[str, ...]
    threads: int | None
    value: numpy.ndarray = field(repr=False, compare=False)

    @property
    def median(self) -> float:
        """Return the median of the synchronised seconds."""
        return summarize(self.seconds).median

    def __str__(self) -> str:
        clocks = map(summarize, (self.seconds, self.naive_seconds))
        ms, naive = ("{} ({}, n={}) ms".format(*c.cells(1e3)) for c in clocks)
        return f"{self.name} on {', '.join(self.devices)}: {ms}, naive {naive}"


def measure(fn: Callable, devices: Sequence[mx.Context], **options) -> Timing:
    """Time ``fn(device)`` on all devices at once.

    The first `warmup` repetitions (2) do not count, the next `repeats` (7) do. Outside
    the clock, `before` is called ahead of each, to undo what works in place, and `join`
    makes one array of the devices' results (by default, rows below each other; ``sum``
    adds), which may differ from `expected`, or else from the first repetition's, by
    `rtol` (1e-5) times its largest element. `name` is for messages. Raises
    :class:`TimingError` for a wrong result, TypeError for one that is no array.

    >>> from d2lpar._mxnet import mx, np
    >>> x = {d: np.ones((1000, 3), ctx=d) for d in (mx.cpu(0), mx.cpu(1))}
    >>> timing = measure(lambda device: 2 * x[device], list(x))
    >>> len(timing.seconds), timing.value.shape
    (7, (2000, 3))
    """
    from d2lpar._mxnet import npx

    check_contexts(devices)
    enable_peer_access(devices)
    return _repeat(
        lambda: [fn(device) for device in devices],
        wait=npx.waitall,
        devices=tuple(map(label, devices)),
        threads=omp_threads() if devices[0].device_type == "cpu" else None,
        **options,
    )


def measure_host(fn: Callable, threads: int, **options) -> Timing:
    """Time ``fn()`` on the CPU as :func:`measure`; `threads` is recorded, not set."""
    return _repeat(
        lambda: [fn()],
        wait=lambda: None,
        devices=(f"host ({plural(threads, 'thread')})",),
        threads=threads,
        **options,
    )


def measure_torch(fn: Callable, device: mx.Context, **options) -> Timing:
    """Time ``fn()`` of PyTorch on a GPU; otherwise as :func:`measure`."""
    import torch

    return _repeat(
        lambda: [fn()],
        wait=lambda: torch.cuda.synchronize(device.device_id),
        devices=(label(device),),
        threads=None,
        **options,
    )


def _repeat(
    call: Callable[[], list],
    *,
    wait: Callable[[], object],
    devices: tuple[str, ...],
    threads: int | None,
    warmup: int = 2,
    repeats: int = 7,
    expected: numpy.ndarray | float | None = None,
    rtol: float = 1e-5,
    join: Callable[[list[numpy.ndarray]], numpy.ndarray] = numpy.concatenate,
    before: Callable[[], object] = lambda: None,
    name: str = "the operation",
) -> Timing:
    if repeats < 1 or warmup < 0:
        raise SettingError(f"timing of {name}: repeats {repeats}, warmup {warmup}")
    right = None if expected is None else numpy.asarray(expected)
    naive, seconds = [], []
    for repetition in range(1, warmup + repeats + 1):
        before()
        wait()
        start = time.perf_counter()
        results = call()
        naive.append(time.perf_counter() - start)
        wait()
        seconds.append(time.perf_counter() - start)
        value = _joined(results, join, name)
        del results  # its memory can serve the next repetition
        right = value if right is None else right
        difference = _difference(value, right)
        if not difference <= rtol:  # NaN is wrong too
            raise TimingError(
                f"timing of {name}: repetition {repetition} gives a wrong result: "
                f"shape {value.shape}, off by {difference:.2g}, relative; right are "
                f"shape {right.shape} and at most {rtol:g}"
            )
    return Timing(
        name=name,
        seconds=tuple(seconds[warmup:]),
        naive_seconds=tuple(naive[warmup:]),
        warmup_seconds=tuple(seconds[:warmup]),
        devices=devices,
        threads=threads,
        value=value,
    )


def _joined(results: list, join: Callable, name: str) -> numpy.ndarray:
    """Return the devices' results, of any library, joined in one NumPy array."""
    parts = []
    for result in results:
        array = result.cpu() if hasattr(result, "cpu") else result
        part = array.asnumpy() if hasattr(array, "asnumpy") else numpy.asarray(array)
        if part.dtype == object or (part.ndim == 0 and join is numpy.concatenate):
            raise TypeError(
                f"timing of {name}: the function returns {result!s:.40}, which is not "
                "an array with rows: return one, or a number with join=sum"
            )
        parts.append(part)
    return numpy.asarray(join(parts))


def _difference(value: numpy.ndarray, right: numpy.ndarray) -> float:
    """Return the largest difference over the largest element; inf for other shapes."""
    if value.shape != right.shape:
        return numpy.inf
    if right.dtype.kind in "bui":  # unsigned numbers wrap around, bools do not subtract
        right = right.astype("float64")
    with numpy.errstate(invalid="ignore", divide="ignore"):  # infinities, and all 0
        off = numpy.abs(value - right).max(initial=0)
        return float(off and off / numpy.abs(right).max(initial=0))
