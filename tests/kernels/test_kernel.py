"""Kernels on CPU contexts against NumPy, and what is refused before anything runs."""

import ctypes
import re
from pathlib import Path

import numpy
import pytest

from d2lpar import get_params, sgd
from d2lpar._mxnet import mx, np, npx
from d2lpar.devices import cpus
from d2lpar.errors import SettingError
from d2lpar.kernels import (
    CudaModule,
    ElementwiseKernel,
    KernelError,
    fused_sgd,
    on_cpu,
)

CPUS = cpus(3)
SIZES = (0, 1, 17, 255, 256, 257, 10**5 + 3)  # around the edges of blocks
CTYPES = {"long long": "int64", "float": "float32"}
INT10 = {"shape": 10, "dtype": "int32"}

WHO = """
__global__ void who(int *ran, int *where)
{
  unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  unsigned one = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned id = one + blockDim.x * blockDim.y * blockDim.z * block;
  ran[id] += 1;
  where[id] = threadIdx.z * 10000 + threadIdx.y * 100 + threadIdx.x;
}
"""


@pytest.fixture
def plus_one():
    return ElementwiseKernel("const int *x, int *y", "y[i] = x[i] + 1", "plus_one")


def random_numbers(rng, n, dtype):
    """Integers of the whole range, so that products overflow; normal floats."""
    if dtype.startswith("int"):
        limits = numpy.iinfo(dtype)
        return rng.integers(limits.min, limits.max, size=n, dtype=dtype, endpoint=True)
    return rng.normal(size=n).astype(dtype)


# Results


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("ctype", CTYPES)
def test_an_elementwise_kernel_is_numpys_to_the_bit(ctype, num_devices, contexts):
    chosen = contexts(num_devices)
    dtype, rng = CTYPES[ctype], numpy.random.default_rng(0)
    axpy = ElementwiseKernel(
        f"{ctype} a, const {ctype} *x, {ctype} *y", "y[i] = a * x[i] - y[i];", "axpy"
    )
    for n in SIZES:
        a = int(rng.integers(-9, 9))
        hosts = [[random_numbers(rng, n, dtype) for _ in "xy"] for _ in chosen]
        arrays = [
            [np.array(host, dtype=dtype, ctx=ctx) for host in pair]
            for pair, ctx in zip(hosts, chosen)
        ]
        for x, y in arrays:  # all contexts at once
            axpy(a, x, y)
        for (x, y), (host_x, host_y) in zip(arrays, hosts):
            expected = numpy.dtype(dtype).type(a) * host_x - host_y
            numpy.testing.assert_array_equal(y.asnumpy(), expected)
            numpy.testing.assert_array_equal(x.asnumpy(), host_x)


@pytest.mark.parametrize("threads", ["1", "100"])
def test_every_thread_of_every_block_runs_once(monkeypatch, threads, contexts):
    (device,), shape = contexts(1), 5 * 3 * 2 * 7 * 4 * 3
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(on_cpu, "MIN_CUDA_THREADS", 1)
    who = CudaModule(WHO).get_kernel("who", "int *ran, int *where")
    grid_dims, block_dims = (5, 3, 2), (7, 4, 3)
    ran, where = (np.zeros(shape, dtype="int32", ctx=device) for _ in range(2))
    who.launch([ran, where], device, grid_dims, block_dims)
    assert (ran.asnumpy() == 1).all()
    z, y, x = numpy.mgrid[:3, :4, :7]
    block = (z * 10000 + y * 100 + x).ravel()
    assert (where.asnumpy() == numpy.tile(block, 30)).all()


def test_device_functions_comments_extern_c_and_cudas_functions():
    module = CudaModule("""
    // __shared__ in a comment is nothing that is used
    #define TWICE(v) (2 * (v))
    __device__ __forceinline__ float half_of(float v) { return v / 2; }
    extern "C" __global__ void scaled(const float *x, float *y, float a) {
      int i = threadIdx.x;
      y[i] = a * half_of(TWICE(x[i])) + max(x[i], 4.0f) + min(i, 2);
    }""")
    kernel = module.get_kernel("scaled", "const float *, float *, float")
    x, y = np.ones(4), np.zeros(4)
    kernel.launch([x, y, 2.5], mx.cpu(), (1, 1, 1), (4, 1, 1))
    assert y.asnumpy().tolist() == [6.5, 7.5, 8.5, 8.5]


@pytest.mark.parametrize("path", ["d2lpar/arrays/operations.py", "chapters/kernels.py"])
def test_no_source_needs_a_header(path):
    """NVRTC has no headers: no type that ends in _t, no __half, no size_t."""
    text = Path(__file__).parents[2].joinpath(path).read_text(encoding="utf-8")
    sources = re.findall(r'CudaModule\("""(.+?)"""\)', text, re.DOTALL)
    assert "__global__" in sources[0]
    assert not re.findall(r"\b\w+_t\b|\b__half\b|#\s*include", "".join(sources))


# A launch is an operation of the engine


def test_a_launch_is_ordered_like_an_operator(plus_one):
    """Inputs are computed before it, and what reads its output later waits for it."""
    double = ElementwiseKernel("int *x", "x[i] *= 2", "doubled")
    x = np.ones(100_000, dtype="int32", ctx=mx.cpu(1))
    y = np.zeros(100_000, dtype="int32", ctx=mx.cpu(1))
    value = 1
    for _ in range(10):
        x += 3
        before = x * 1  # a read that is pending when the kernel is to write
        double(x)
        plus_one(x, y)
        x = y - 7
        assert before.asnumpy()[[0, -1]].tolist() == [value + 3] * 2
        value = 2 * (value + 3) + 1 - 7
        value = (value + 2**31) % 2**32 - 2**31
    assert (x.asnumpy() == value).all()


HOLD = """
__global__ void hold(int *seen, const int *x, long long flag)
{
  for (int ms = 0; ms < 20000 && !*(volatile int *)flag; ++ms)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // C++, on CPUs only
  seen[0] = x[0] + *(volatile int *)flag;
}
"""


@pytest.fixture
def hold():
    """A launch on cpu(1) that lasts until it is released, and its release.

    Not on cpu(0), whose thread does MXNet's waiting for arrays that are not computed.
    """
    kernel = CudaModule(HOLD).get_kernel("hold", "int *seen, const int *x, long long f")
    kernel.compiled(mx.cpu())
    flag = ctypes.c_int(0)

    def launch(seen, x):
        args = [seen, x, ctypes.addressof(flag)]
        kernel.launch(args, CPUS[1], (1, 1, 1), (1, 1, 1))

    yield launch, lambda: setattr(flag, "value", 1)
    npx.waitall()  # the flag must outlive the launch


def test_a_launch_waits_neither_for_its_arrays_nor_for_another_device(hold, plus_one):
    launch, release = hold
    seen, later = (np.zeros(1, dtype="int32", ctx=CPUS[1]) for _ in range(2))
    launch(seen, np.full(1, 5, dtype="int32", ctx=CPUS[1]))
    launch(later, 2 * seen)  # which is not computed yet
    x, y = (np.zeros(1, dtype="int32", ctx=CPUS[2]) for _ in range(2))
    plus_one(x, y)
    assert y.item() == 1  # while cpu(1) is held
    release()
    # Each would be one less if it had not been released, and had come to its end.
    assert (seen.item(), later.item()) == (6, 13)


def test_an_array_lives_until_its_launch_has_run(hold):
    launch, release = hold
    seen = np.zeros(1, dtype="int32", ctx=CPUS[1])
    launch(seen, np.full(1, 3, dtype="int32", ctx=CPUS[1]))
    others = [np.full(1, 9, dtype="int32") for _ in range(100)]  # would take its memory
    release()
    assert seen.item() == 4 and len(others) == 100


def test_an_array_in_onednns_own_layout_is_put_in_order_first():
    copied = ElementwiseKernel("const float *x, float *y", "y[i] = x[i]", "copied")
    X, W = np.random.uniform(size=(2, 16, 9, 9)), np.random.uniform(size=(32, 16, 3, 3))
    features = npx.convolution(X, W, kernel=(3, 3), num_filter=32, no_bias=True)
    y = np.zeros(features.shape)
    copied(features, y)
    again = npx.convolution(X, W, kernel=(3, 3), num_filter=32, no_bias=True)
    numpy.testing.assert_array_equal(y.asnumpy(), again.asnumpy())


def test_views_legacy_arrays_and_scalars_are_arrays_too(plus_one):
    x, y = np.arange(12, dtype="int32").reshape(3, 4), np.zeros((3, 4), dtype="int32")
    plus_one(x[1], y[2])
    assert y.asnumpy().tolist() == [[0] * 4, [0] * 4, [5, 6, 7, 8]]
    legacy, one = mx.nd.zeros(1, dtype="int32"), np.array(41, dtype="int32")
    plus_one(one, legacy)
    assert legacy.asnumpy().tolist() == [42]


# What would corrupt memory is refused


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (lambda x: [x], "takes 2 arguments"),
        (lambda x: [x, np.zeros(10)], r"int \*y: .*float32, not int32"),
        (lambda x: [x, np.zeros(9, dtype="int32")], r"sizes: \(10,\), \(9,\)"),
        (lambda x: [x, x.copyto(mx.cpu(1))], r"on cpu\(1\), not on cpu\(0\)"),
        (lambda x: [x, x.asnumpy()], "got ndarray"),
        (lambda x: [x[:5], x[5:]], "share memory"),
    ],
)
def test_arguments_that_do_not_fit(plus_one, args, names):
    x = np.zeros(**INT10)
    with pytest.raises(KernelError, match=names):
        plus_one(*args(x))
    assert (x.asnumpy() == 0).all()


def test_numbers_that_a_type_cannot_hold():
    for ctype, value, says in (
        ("int", 2**31, "int32 holds, got 2147483648"),
        ("int", 1.5, "int32 holds, got 1.5"),
        ("int", numpy.nan, "int32 holds, got nan"),
        ("unsigned char", -1, "uint8 holds, got -1"),
        ("float", "3", "a number, got str"),
        ("float", np.ones(1), "a number, got ndarray"),
    ):
        fill = ElementwiseKernel(f"{ctype} a, float *y", "y[i] = a", "fill")
        with pytest.raises(KernelError, match=f"argument {ctype} a: expected .*{says}"):
            fill(value, np.zeros(3))


def test_dims_that_are_not_three_numbers():
    kernel = CudaModule(WHO).get_kernel("who", "int *ran, int *where")
    x, one = [np.zeros(**INT10), np.zeros(**INT10)], (1, 1, 1)
    for pair in (((1, 1), one), ((1, 1, 0), one), (one, (1, 1)), (one, (1, 0, 1))):
        with pytest.raises(KernelError, match="write three numbers"):
            kernel.launch(x, mx.cpu(), *pair)


def test_what_only_a_gpu_has_is_named():
    source = "__device__ float t[3]; __global__ void k(float *y) { y[0] = t[0]; }"
    kernel = CudaModule(source).get_kernel("k", "float *y")
    with pytest.raises(KernelError, match="kernel k: __device__ float t.*: a variable"):
        kernel.launch([np.zeros(3)], mx.cpu(), (1, 1, 1), (1, 1, 1))


def test_a_signature_that_is_not_the_sources_does_not_compile():
    kernel = CudaModule(WHO).get_kernel("who", "const int *ran, int *where")
    with pytest.raises(KernelError, match="kernel who does not compile: .*error"):
        kernel.compiled(mx.cpu())
    with pytest.raises(KernelError, match=r"unsigned \*x.* with a type of float, "):
        ElementwiseKernel("unsigned *x", "x[i] = 1")  # a type that no array has


def test_a_compile_error_is_one_line_that_names_the_line_of_the_source():
    source = "__global__ void k(float *y)\n{\n  y[0] = none;\n}\n"
    kernel = CudaModule(source).get_kernel("k", "float *y")
    with pytest.raises(KernelError, match=r"k\.cu:3:.*error.*none") as caught:
        kernel.launch([np.zeros(1)], mx.cpu(), (1, 1, 1), (1, 1, 1))
    assert "\n" not in str(caught.value)
    assert not list(on_cpu.cache_folder().glob("k-*"))  # nor anything half-written
    assert not list(on_cpu.cache_folder().glob(".*"))


# The fused update


def test_the_fused_update_is_numpys_and_sgds(contexts):
    (device,), rng = contexts(1), numpy.random.default_rng(0)
    for lr, batch_size, shape in ((0.2, 256, (40, 33)), (3.7, 999, (3, 0, 2))):
        host, grad = rng.normal(size=(2, *shape)).astype("float32")
        ends = []
        for update in (sgd, fused_sgd):
            params = get_params([np.array(host)], device)
            params[0].grad[:] = np.array(grad, ctx=device)
            update(params, lr, batch_size)
            ends.append(params[0].asnumpy())
        expected = host - numpy.float32(lr / batch_size) * grad
        numpy.testing.assert_array_equal(ends[1], expected)
        numpy.testing.assert_array_equal(*ends)
    (half,) = get_params([np.zeros(3, dtype="float16")], mx.cpu())
    with pytest.raises(KernelError, match="the array is float16, not float32"):
        fused_sgd([half], 0.1, 1)


def test_the_fused_update_of_tied_weights_is_one_step():
    tied = numpy.ones(3, "float32")
    params = get_params([tied, tied], mx.cpu(0))
    params[0].grad[:] = 1
    with pytest.raises(SettingError, match="lr nan"):
        fused_sgd(params, numpy.nan, 2)
    fused_sgd(params, 0.5, 2)
    assert params[0].asnumpy().tolist() == [0.75] * 3
