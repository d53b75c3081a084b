"""The CUDA C of every kernel through mx.rtc, and its results: NumPy's, to the bit."""

import numpy
import pytest
from support.kernel_sources import kernel_sources

from d2lpar import get_params
from d2lpar._mxnet import np
from d2lpar.kernels import (
    CudaKernel,
    ElementwiseKernel,
    fused_sgd,
)

pytestmark = pytest.mark.gpu

SOURCES = kernel_sources()
SIZES = (1, 257, 10**6 + 3)
CTYPES = {"int": "int32", "int64_t": "int64", "float": "float32", "double": "float64"}


@pytest.mark.parametrize(
    "kernel", SOURCES, ids=[f"{kernel.where}:{kernel.name}" for kernel in SOURCES]
)
def test_every_kernel_of_the_package_compiles(kernel, gpu):
    """One that does not raises KernelError."""
    CudaKernel(kernel.source, kernel.name, kernel.signature).compiled(gpu)


def draw(n, dtype):
    rng = numpy.random.default_rng(n)
    if dtype.startswith("int"):  # of the whole range, so that products overflow
        limits = numpy.iinfo(dtype)
        return rng.integers(limits.min, limits.max, size=n, dtype=dtype)
    return rng.normal(size=n).astype(dtype)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ctype", CTYPES)
def test_an_elementwise_kernel_is_numpys(ctype, n, gpus):
    """Also on all GPUs at once, with no waiting in between."""
    dtype = CTYPES[ctype]
    axpy = ElementwiseKernel(
        f"{ctype} a, const {ctype} *x, {ctype} *y", "y[i] = a * x[i] + y[i]", "axpy"
    )
    x, y = draw(n, dtype), draw(n, dtype)[::-1].copy()
    pairs = [
        [np.array(host, dtype=dtype, ctx=context) for host in (x, y)]
        for context in gpus
    ]
    for pair in pairs:
        axpy(3, *pair)
    for on_x, on_y in pairs:
        numpy.testing.assert_array_equal(on_y.asnumpy(), x.dtype.type(3) * x + y)
        numpy.testing.assert_array_equal(on_x.asnumpy(), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_fused_update(dtype, gpu):
    hosts = [draw(n, dtype) for n in (1, 300, 10**5)]
    params = get_params(hosts, gpu)
    for p, host in zip(params, hosts):
        p.grad[:] = np.array(host[::-1].copy(), dtype=dtype, ctx=gpu)
    fused_sgd(params, 0.2, 256)
    step = numpy.dtype(dtype).type(0.2 / 256)
    for p, host in zip(params, hosts):
        numpy.testing.assert_array_equal(p.asnumpy(), host - step * host[::-1])
