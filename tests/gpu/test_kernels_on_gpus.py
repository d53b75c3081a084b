"""The CUDA C of every kernel through mx.rtc, and its results: NumPy's, to the bit."""

import numpy
import pytest
from support.kernel_sources import kernel_sources

from d2lpar import get_params
from d2lpar._mxnet import np
from d2lpar.kernels import (
    CudaKernel,
    CudaModule,
    ElementwiseKernel,
    KernelError,
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


@pytest.mark.parametrize("ctype", ["uint8_t", "int8_t", "int32_t", "char"])
def test_types_that_nvrtc_knows_from_headers_only(ctype, gpu):
    double = ElementwiseKernel(
        f"const {ctype} *x, {ctype} *y", "y[i] = 2 * x[i]", "doubled"
    )
    dtype = double.parameters[0].dtype
    x = numpy.arange(60).astype(dtype)
    y = np.zeros(60, dtype=dtype, ctx=gpu)
    double(np.array(x, dtype=dtype, ctx=gpu), y)
    numpy.testing.assert_array_equal(y.asnumpy(), 2 * x)


def test_division_and_square_root_are_rounded_as_numpys(gpu):
    divide = ElementwiseKernel(
        "const float *x, const float *y, float *z",
        "z[i] = sqrtf(x[i]) / y[i]",
        "divide",
    )
    x, y = numpy.abs(draw(1000, "float32")), draw(1001, "float32")[1:]
    z = np.zeros(1000, ctx=gpu)
    divide(np.array(x, ctx=gpu), np.array(y, ctx=gpu), z)
    numpy.testing.assert_array_equal(z.asnumpy(), numpy.sqrt(x) / y)


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


ADD = """
__global__ void add(int nx, int ny, float *res, const float *a, const float *b) {
  int x = threadIdx.x + blockDim.x * blockIdx.x;
  int y = threadIdx.y + blockDim.y * blockIdx.y;
  if (x < nx && y < ny) res[nx * y + x] = a[nx * y + x] + b[nx * y + x];
}
"""


def test_a_grid_of_blocks_stops_at_the_edges(gpu):
    signature = "int nx, int ny, float *res, const float *a, const float *b"
    add = CudaModule(ADD).get_kernel("add", signature)
    ny, nx = 1000, 1003
    n = ny * nx
    a, b = draw(n, "float32"), draw(n + 1, "float32")[1:]
    res = np.zeros(n + 400, ctx=gpu)  # threads out of range would write here
    grid = (-(-nx // 16), -(-ny // 16), 1)
    on_gpu = (np.array(a, ctx=gpu), np.array(b, ctx=gpu))
    add.launch([nx, ny, res, *on_gpu], gpu, grid, (16, 16, 1))
    numpy.testing.assert_array_equal(res.asnumpy()[:n], a + b)
    assert (res.asnumpy()[n:] == 0).all()


def test_a_launch_that_cannot_be_right_is_refused(two_gpus):
    plus_one = ElementwiseKernel("const int *x, int *y", "y[i] = x[i] + 1", "plus_one")
    x, y = (np.zeros(3, dtype="int32", ctx=context) for context in two_gpus)
    with pytest.raises(KernelError, match=r"the array is on gpu\(1\), not on "):
        plus_one(x, y)
    with pytest.raises(KernelError, match="share memory"):
        plus_one(x, x)
    wrong = ElementwiseKernel("int *x", "x[i] = nothing_of_the_kind", "wrong")
    with pytest.raises(KernelError, match="kernel wrong does not compile: .*undefined"):
        wrong(x)
