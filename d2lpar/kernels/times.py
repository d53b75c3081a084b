"""A kernel timed beside MXNet's operators and NumPy, as ``d2lpar run kernels`` does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx, np
from d2lpar.kernels import ElementwiseKernel, fused_sgd
from d2lpar.parallel import get_params, sgd
from d2lpar.records.comparison import summarize

LR, BATCH_SIZE = 0.2, 256


def report(devices: Sequence[mx.Context], n: int) -> Iterator[str]:
    """Yield a line per operation and library: milliseconds for n float32 per device."""
    host = numpy.random.default_rng(0).random(n, dtype="float32")
    x = {d: np.array(host, ctx=d) for d in devices}
    y = {d: np.zeros(n, ctx=d) for d in devices}
    params = {d: get_params([host], d) for d in devices}
    for d in devices:
        params[d][0].grad[:] = x[d]
    out, step = numpy.zeros_like(host), numpy.float32(LR / BATCH_SIZE)
    kernel = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")

    def double(d) -> np.ndarray:
        kernel(x[d], y[d])
        return y[d]

    def update(d, step) -> np.ndarray:
        step(params[d], LR, BATCH_SIZE)
        return params[d][0]

    def reset() -> None:
        for d in devices:
            y[d][:] = 0
            params[d][0][:] = host

    calls = [
        ("x2", "kernel", double),
        ("x2", "MXNet", lambda d: np.multiply(x[d], 2, out=y[d])),
        ("update", "kernel", lambda d: update(d, fused_sgd)),
        ("update", "MXNet", lambda d: update(d, sgd)),
    ]
    expected = {"x2": 2 * host, "update": host - step * host}
    for operation, library, call in calls:
        right = numpy.tile(expected[operation], len(devices))
        how = {"name": f"{operation} by {library}", "expected": right, "rtol": 0}
        timed = timing.measure(call, devices, before=reset, **how)
        where = f"{operation} of {n:,} on {len(devices)} device(s)"
        yield f"{where}, {library}: {_milliseconds(timed)}"
    timed = timing.measure_host(lambda: numpy.multiply(host, 2, out=out), 1)
    yield f"x2 of {n:,}, NumPy: {_milliseconds(timed)}"


def _milliseconds(timed: timing.Timing) -> str:
    return f"{summarize([1e3 * seconds for seconds in timed.seconds])} ms"
