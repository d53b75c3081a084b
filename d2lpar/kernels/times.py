"""Kernels timed beside MXNet's operators, NumPy, and a loop in C: the memory's limit.

Both operations move memory and hardly calculate: ``y = 2 * x`` (the least-squares notes
on PyCUDA), and the update of SGD. Every device has its own arrays and all work at once,
with as many threads, NumPy with one; an answer that differs from NumPy's is an
error.
"""

from __future__ import annotations

import ctypes
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import RunError
from d2lpar.kernels import ElementwiseKernel, fused_sgd, on_cpu
from d2lpar.machine.host import omp_threads
from d2lpar.parallel import get_params, sgd, shares
from d2lpar.records.comparison import summarize

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

    The libraries take turns, and all compute as many numbers, NumPy with its one
    thread. An untimed call precedes each sample, so that none pays for the memory that
    another gives back. The loop in C exists on CPU contexts only. Raises
    :class:`RunError` when an answer is not NumPy's.
    """
    host = numpy.random.default_rng(0).random(n, dtype="float32")
    host_ys, two = [numpy.zeros(n, "float32") for _ in devices], numpy.float32(2)
    pairs = [(np.array(host, ctx=d), np.zeros(n, ctx=d)) for d in devices]
    replicas = [get_params([host], device) for device in devices]
    for (p,), (x, _) in zip(replicas, pairs):
        p.grad[:] = x
    x2 = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")
    calls: dict[tuple[str, str], Callable[[], object]] = {
        ("x2", "kernel"): lambda: [x2(x, y) for x, y in pairs],
        ("x2", "MXNet"): lambda: [np.multiply(x, 2, out=y) for x, y in pairs],
        ("x2", "NumPy"): lambda: [numpy.multiply(host, two, out=y) for y in host_ys],
        ("update", "kernel"): lambda: [
            fused_sgd(params, LR, BATCH_SIZE) for params in replicas
        ],
        ("update", "MXNet"): lambda: [
            sgd(params, LR, BATCH_SIZE) for params in replicas
        ],
    }
    if devices[0].device_type == "cpu":
        gradients = [(p.grad, p) for (p,) in replicas]
        calls |= _loops_in_c({"x2": pairs, "update": gradients})
    for (operation, library), call in calls.items():
        for (_, y), (p,) in zip(pairs, replicas):
            y[:] = 0
            p[:] = host
        npx.waitall()
        call()
        npx.waitall()
        outputs, expected = [y for _, y in pairs], 2 * host
        if operation == "update":
            outputs = [p for (p,) in replicas]
            expected = host - numpy.float32(LR / BATCH_SIZE) * host
        for array, device in zip(host_ys if library == "NumPy" else outputs, devices):
            found = array if library == "NumPy" else array.asnumpy()
            if not (found == expected).all():
                raise RunError(
                    f"{operation} by {library} on {device} differs from NumPy"
                )
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


def _loops_in_c(
    arrays: dict[str, list[tuple]],
) -> dict[tuple[str, str], Callable[[], object]]:
    """The loops, compiled as the kernels are; `arrays` has what each reads, writes.

    They have as many threads as all contexts together; each works on an even share.
    """
    command = on_cpu.compiler()
    if platform.machine() == "x86_64":
        # On a Zen 4, 512-bit stores made the loop 12 % slower, not the kernel: a limit
        # should be the best possible.
        command = [*command, "-mprefer-vector-width=256"]
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as folder:
        library = Path(folder, "loops.so")
        text = _LOOPS.replace("STEP", f"{LR / BATCH_SIZE!r}")
        on_cpu.compile_cpp(text, "loops", command, library)
        loops = ctypes.CDLL(str(library))
    threads = omp_threads() or 1
    pool = ThreadPoolExecutor(threads * len(arrays["x2"]))

    def call(loop: Callable, pairs: list[tuple]) -> Callable[[], object]:
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

    return {
        (operation, "loop in C"): call(getattr(loops, operation), pairs)
        for operation, pairs in arrays.items()
    }
