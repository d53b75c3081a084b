"""Kernels timed beside MXNet's operators, NumPy, and a loop in C: the memory's limit.

Both works move memory and hardly calculate: ``y = 2 * x`` (the PyCUDA notes of seed
000), and the update of SGD. Every device has its own arrays and all work at once, with
the same threads for each way of doing it; an answer that is not NumPy's is an error.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import RunError
from d2lpar.kernels import ElementwiseKernel, fused_sgd, on_cpu
from d2lpar.machine.cores import omp_threads
from d2lpar.parallel import get_params, sgd

STEP, BATCH_SIZE = 0.2, 256

_LOOPS = """\
extern "C" void x2(const float *__restrict__ x, float *__restrict__ y, long n) {
  for (long i = 0; i < n; ++i) y[i] = 2 * x[i];
}
extern "C" void update(const float *__restrict__ g, float *__restrict__ p, long n) {
  const float step = STEP;
  for (long i = 0; i < n; ++i) p[i] -= step * g[i];
}
"""


def times(
    devices: Sequence[mx.Context], n: int, repeats: int = 7
) -> dict[tuple[str, str], list[float]]:
    """Seconds of every (work, way), `repeats` samples each, n float32 a device.

    The ways take turns; each sample comes after a call of its own that does not count,
    so that no way pays for the memory that another one gives back. The loop in C is
    there on CPU contexts only, and NumPy, which has one thread, works on the first
    device's numbers alone. Raises :class:`RunError` when an answer is not NumPy's.
    """
    work = _Work(devices, n)
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in work.calls}
    for key in work.calls:
        work.check(*key)
    for _ in range(repeats):
        for key, call in work.calls.items():
            call()
            npx.waitall()
            start = time.perf_counter()
            call()
            npx.waitall()
            samples[key].append(time.perf_counter() - start)
    for key in work.calls:
        work.check(*key)
    return samples


class _Work:
    """The arrays, and a call for each (work, way)."""

    def __init__(self, devices: Sequence[mx.Context], n: int) -> None:
        self.host = numpy.random.default_rng(0).random(n, dtype="float32")
        self.host_y = numpy.zeros(n, "float32")
        self.xs = [np.array(self.host, ctx=device) for device in devices]
        self.ys = [np.zeros(n, ctx=device) for device in devices]
        self.params = [get_params([self.host], device) for device in devices]
        for (p,), x in zip(self.params, self.xs):
            p.grad[:] = x
        x2 = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")
        each = range(len(devices))
        self.calls: dict[tuple[str, str], Callable[[], object]] = {
            ("x2", "kernel"): lambda: [x2(self.xs[k], self.ys[k]) for k in each],
            ("x2", "MXNet"): lambda: [
                np.multiply(self.xs[k], 2, out=self.ys[k]) for k in each
            ],
            ("x2", "NumPy"): lambda: numpy.multiply(
                self.host, numpy.float32(2), out=self.host_y
            ),
            ("update", "kernel"): lambda: [
                fused_sgd(params, STEP, BATCH_SIZE) for params in self.params
            ],
            ("update", "MXNet"): lambda: [
                sgd(params, STEP, BATCH_SIZE) for params in self.params
            ],
        }
        if devices[0].device_type == "cpu":
            loops, threads = _loops(), omp_threads() or 1
            self._pool = ThreadPoolExecutor(threads * len(devices))
            updates = [(p.grad, p) for (p,) in self.params]
            for name, pairs in (
                ("x2", list(zip(self.xs, self.ys))),
                ("update", updates),
            ):
                parts = [part for pair in pairs for part in _parts(*pair, threads)]
                loop = functools.partial(self._run_loop, getattr(loops, name), parts)
                self.calls[name, "loop in C"] = loop

    def _run_loop(self, loop, parts: list) -> None:
        list(self._pool.map(lambda part: loop(*part), parts))

    def check(self, work: str, way: str) -> None:
        """Do it once, from the start; :class:`RunError` if NumPy has another answer."""
        for y, (p,) in zip(self.ys, self.params):
            y[:] = 0
            p[:] = self.host
        self.host_y[:] = 0
        npx.waitall()
        self.calls[work, way]()
        npx.waitall()
        if way == "NumPy":
            return
        right = 2 * self.host
        if work == "update":
            right = self.host - numpy.float32(STEP / BATCH_SIZE) * self.host
        for array in self.ys if work == "x2" else [p for (p,) in self.params]:
            if not (array.asnumpy() == right).all():
                raise RunError(f"{work} by {way} on {array.ctx} is not NumPy's")


def _parts(source, target, count: int) -> list[tuple]:
    """Addresses and lengths of an even share of two arrays for each thread."""
    starts = [source.size * k // count for k in range(count + 1)]
    first, second = (on_cpu.address(array) for array in (source, target))
    return [
        (
            ctypes.c_void_p(first + 4 * start),
            ctypes.c_void_p(second + 4 * start),
            ctypes.c_long(stop - start),
        )
        for start, stop in zip(starts, starts[1:])
    ]


@functools.cache
def _loops() -> ctypes.CDLL:
    """The loops, by the compiler of the kernels with the same flags."""
    text = _LOOPS.replace("STEP", f"{STEP / BATCH_SIZE!r}")
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        library = Path(folder, "loops.so")
        command = on_cpu.compiler()
        if platform.machine() == "x86_64":
            # On a Zen 4 stores of 512 bits made the loop 12 % slower, not the kernel:
            # a limit should be the best that there is.
            command = [*command, "-mprefer-vector-width=256"]
        on_cpu.compile_cpp(text, "loops", command, library)
        return ctypes.CDLL(str(library))
