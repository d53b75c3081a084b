"""Kernels timed beside MXNet's operators, NumPy, and a loop in C: the memory's limit.

Both operations move memory and hardly calculate: ``y = 2 * x`` (the least-squares notes
on PyCUDA), and the update of SGD. Every device has its own arrays and all work at once,
with as many threads whatever the library; an answer that differs from NumPy's is an
error.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import RunError
from d2lpar.kernels import ElementwiseKernel, fused_sgd, on_cpu
from d2lpar.machine.host import omp_threads
from d2lpar.parallel import get_params, sgd, shares
from d2lpar.records.summary import summarize

LR, BATCH_SIZE = 0.2, 256

_LOOPS = """\
extern "C" void x2(const float *__restrict__ x, float *__restrict__ y, long n) {
  for (long i = 0; i < n; ++i) y[i] = 2 * x[i];
}
extern "C" void update(const float *__restrict__ g, float *__restrict__ p, long n) {
  const float step = STEP;
  for (long i = 0; i < n; ++i) p[i] -= step * g[i];
}
"""


def report(devices: Sequence[mx.Context], n: int) -> Iterator[str]:
    """A line for each operation and library: milliseconds for n float32 per device."""
    for (operation, library), seconds in times(devices, n).items():
        milliseconds = summarize([1e3 * s for s in seconds])
        where = f"{operation} of {n:,} on {len(devices)} device(s)"
        yield f"{where}, {library}: {milliseconds} ms"


def times(
    devices: Sequence[mx.Context], n: int, repeats: int = 7
) -> dict[tuple[str, str], list[float]]:
    """Seconds by operation and library: `repeats` samples, n float32 per device.

    The libraries take turns. An untimed call precedes each sample, so that none pays
    for the memory that another gives back. The loop in C exists on CPU contexts only;
    NumPy, which has one thread, works on the first device's numbers alone. Raises
    :class:`RunError` when an answer is not NumPy's.
    """
    arrays = _Arrays(devices, n)
    calls = arrays.calls()
    if devices[0].device_type == "cpu":
        calls |= arrays.loops_in_c()
    for (operation, library), call in calls.items():
        arrays.check(operation, library, call)
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(repeats):
        for key, call in calls.items():
            call()
            npx.waitall()
            start = time.perf_counter()
            call()
            npx.waitall()
            samples[key].append(time.perf_counter() - start)
    return samples


class _Arrays:
    """x, y, and a parameter with its gradient on every device; x and y on the host."""

    def __init__(self, devices: Sequence[mx.Context], n: int) -> None:
        self.host = numpy.random.default_rng(0).random(n, dtype="float32")
        self.host_y = numpy.zeros(n, "float32")
        self.xs = [np.array(self.host, ctx=device) for device in devices]
        self.ys = [np.zeros(n, ctx=device) for device in devices]
        self.replicas = [get_params([self.host], device) for device in devices]
        for (p,), x in zip(self.replicas, self.xs):
            p.grad[:] = x

    def calls(self) -> dict[tuple[str, str], Callable[[], object]]:
        """The ways to compute on every device, by operation and library."""
        x2 = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")
        pairs, two = list(zip(self.xs, self.ys)), numpy.float32(2)
        replicas = self.replicas
        return {
            ("x2", "kernel"): lambda: [x2(x, y) for x, y in pairs],
            ("x2", "MXNet"): lambda: [np.multiply(x, 2, out=y) for x, y in pairs],
            ("x2", "NumPy"): lambda: numpy.multiply(self.host, two, out=self.host_y),
            ("update", "kernel"): lambda: [
                fused_sgd(params, LR, BATCH_SIZE) for params in replicas
            ],
            ("update", "MXNet"): lambda: [
                sgd(params, LR, BATCH_SIZE) for params in replicas
            ],
        }

    def loops_in_c(self) -> dict[tuple[str, str], Callable[[], object]]:
        """The loops in C, on as many threads as all contexts have together."""
        loops, threads = _loops(), omp_threads() or 1
        pool = ThreadPoolExecutor(threads * len(self.xs))

        def call(loop: Callable, pairs: Iterable[tuple]) -> Callable[[], object]:
            """Each thread gets the addresses and the length of an even share."""
            parts = [
                (
                    ctypes.c_void_p(on_cpu.address(source) + 4 * share.start),
                    ctypes.c_void_p(on_cpu.address(target) + 4 * share.start),
                    ctypes.c_long(share.stop - share.start),
                )
                for source, target in pairs
                for share in shares(source.size, threads)
            ]
            return lambda: list(pool.map(lambda part: loop(*part), parts))

        gradients = [(p.grad, p) for (p,) in self.replicas]
        return {
            ("x2", "loop in C"): call(loops.x2, zip(self.xs, self.ys)),
            ("update", "loop in C"): call(loops.update, gradients),
        }

    def check(self, operation: str, library: str, call: Callable[[], object]) -> None:
        """Call once, from the start; :class:`RunError` if NumPy's answer differs."""
        for y, (p,) in zip(self.ys, self.replicas):
            y[:] = 0
            p[:] = self.host
        npx.waitall()
        call()
        npx.waitall()
        outputs, expected = self.ys, 2 * self.host
        if operation == "update":
            outputs = [p for (p,) in self.replicas]
            expected = self.host - numpy.float32(LR / BATCH_SIZE) * self.host
        for array in outputs:
            if library != "NumPy" and not (array.asnumpy() == expected).all():
                raise RunError(
                    f"{operation} by {library} on {array.ctx} differs from NumPy"
                )


@functools.cache
def _loops() -> ctypes.CDLL:
    """The loops, compiled as the kernels are."""
    text = _LOOPS.replace("STEP", f"{LR / BATCH_SIZE!r}")
    command = on_cpu.compiler()
    if platform.machine() == "x86_64":
        # On a Zen 4, 512-bit stores made the loop 12 % slower, not the kernel: a limit
        # should be the best possible.
        command = [*command, "-mprefer-vector-width=256"]
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        library = Path(folder, "loops.so")
        on_cpu.compile_cpp(text, "loops", command, library)
        return ctypes.CDLL(str(library))
