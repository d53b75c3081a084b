"""Kernels on CPU contexts against NumPy, and what is refused before anything runs."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from d2lpar import get_params, init_lenet, sgd, train_batch
from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import D2lparError
from d2lpar.kernels import (
    CudaModule,
    ElementwiseKernel,
    KernelError,
    fused_sgd,
    on_cpu,
)
from d2lpar.kernels.kernel import storage
from d2lpar.kernels.source import parse_signature

try:
    on_cpu.compiler()
except KernelError as error:
    pytest.skip(str(error), allow_module_level=True)

CPUS = [mx.cpu(k) for k in range(3)]
SIZES = (0, 1, 15, 16, 17, 255, 256, 257, 10**6 + 3)  # around the edges of blocks
CTYPES = {"int": "int32", "int64_t": "int64", "float": "float32", "double": "float64"}

ADD_TWO_ARRAY_2D = """
__global__ void add_two_array_2d(int nx, int ny, float *res, float *arr1, float *arr2){
  int x = threadIdx.x + blockDim.x * blockIdx.x;
  int y = threadIdx.y + blockDim.y * blockIdx.y;
  int ij = nx * y + x;
  if (x < nx && y < ny){
      res[ij] = arr1[ij] + arr2[ij];
  }
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


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(SIZES),
    st.sampled_from(sorted(CTYPES)),
    st.sampled_from((1, 3)),
    st.integers(-9, 9),
    st.integers(0, 99),
)
def test_an_elementwise_kernel_is_numpys_to_the_bit(n, ctype, num_devices, a, seed):
    dtype, rng = CTYPES[ctype], numpy.random.default_rng(seed)
    axpy = ElementwiseKernel(
        f"{ctype} a, const {ctype} *x, {ctype} *y", "y[i] = a * x[i] - y[i]", "axpy"
    )
    hosts = [[random_numbers(rng, n, dtype) for _ in "xy"] for _ in range(num_devices)]
    arrays = [
        [np.array(host, dtype=dtype, ctx=ctx) for host in pair]
        for pair, ctx in zip(hosts, CPUS)
    ]
    for x, y in arrays:  # all contexts at once
        axpy(a, x, y)
    for (x, y), (host_x, host_y) in zip(arrays, hosts):
        right = numpy.dtype(dtype).type(a) * host_x - host_y
        numpy.testing.assert_array_equal(y.asnumpy(), right)
        numpy.testing.assert_array_equal(x.asnumpy(), host_x)


SUBNORMAL = float(numpy.finfo("float32").tiny / 8)
special = st.floats(width=32) | st.sampled_from([0.0, -0.0, SUBNORMAL, float("inf")])


@settings(deadline=None)
@given(hnp.arrays("float32", (2, 19), elements=special))
def test_zeros_infinities_nan_and_subnormals_are_numpys(host):
    divide = ElementwiseKernel(
        "const float *x, const float *y, float *z",
        "z[i] = sqrtf(x[i]) / y[i]",
        "divide",
    )
    x, y = (np.array(row, ctx=mx.cpu(1)) for row in host)
    z = np.ones(19, ctx=mx.cpu(1))
    divide(x, y, z)
    with numpy.errstate(all="ignore"):
        right = numpy.sqrt(host[0]) / host[1]
    numpy.testing.assert_array_equal(z.asnumpy(), right)
    zero = right == 0
    assert (numpy.signbit(z.asnumpy()) == numpy.signbit(right))[zero].all()


def test_plus_one_of_the_posts_printed_zeros_because_its_arguments_are_swapped():
    plus_one = ElementwiseKernel("int *x, int *y", "y[i] = x[i] + 1", "plus_one")
    x, y = np.arange(10, dtype="int32"), np.zeros(10, dtype="int32")
    plus_one(y, x)
    assert y.asnumpy().tolist() == [0] * 10  # the posts' Out[8]
    assert x.asnumpy().tolist() == [1] * 10
    x = np.arange(10, dtype="int32")
    plus_one(x, y)
    assert y.asnumpy().tolist() == list(range(1, 11))


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 99))
def test_add_two_array_2d_of_the_posts_stops_threads_out_of_range(nx, ny, seed):
    add = CudaModule(ADD_TWO_ARRAY_2D).get_kernel(
        "add_two_array_2d", "int nx, int ny, float *res, float *arr1, float *arr2"
    )
    host = numpy.random.default_rng(seed).random((2, ny, nx), dtype="float32")
    arr1, arr2 = (np.array(h) for h in host)
    grid_dims = (-(-nx // 16), -(-ny // 16), 1)
    beyond = nx * grid_dims[1] * 16 + 16  # as far as a thread out of range would write
    res = np.zeros(beyond)
    args = [numpy.int32(nx), numpy.int32(ny), res, arr1, arr2]
    add.launch(args, mx.cpu(), grid_dims, (16, 16, 1))
    found = res.asnumpy()
    numpy.testing.assert_array_equal(found[: nx * ny], (host[0] + host[1]).ravel())
    assert (found[nx * ny :] == 0).all()


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


@pytest.mark.parametrize("threads", ["1", "3"])
def test_every_thread_of_every_block_runs_once(monkeypatch, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(on_cpu, "WORTH_A_THREAD", 1)
    who = CudaModule(WHO).get_kernel("who", "int *ran, int *where")
    grid_dims, block_dims = (5, 3, 2), (7, 4, 3)
    n = 5 * 3 * 2 * 7 * 4 * 3
    ran, where = (np.zeros(n, dtype="int32") for _ in range(2))
    who.launch([ran, where], mx.cpu(), grid_dims, block_dims)
    assert (ran.asnumpy() == 1).all()
    z, y, x = numpy.mgrid[:3, :4, :7]
    block = (z * 10000 + y * 100 + x).ravel()
    assert (where.asnumpy() == numpy.tile(block, 30)).all()


def test_a_launch_is_ordered_like_an_operator(plus_one):
    """Inputs are computed before it, and what reads its output later waits for it."""
    double = ElementwiseKernel("int *x", "x[i] *= 2", "doubled")
    x = np.ones(300_000, dtype="int32", ctx=mx.cpu(1))
    y = np.zeros(300_000, dtype="int32", ctx=mx.cpu(1))
    value = 1
    for _ in range(20):
        x += 3
        before = x * 1  # a read that is pending when the kernel is to write
        double(x)
        plus_one(x, y)
        x = y - 7
        assert before.asnumpy()[[0, -1]].tolist() == [value + 3] * 2
        value = 2 * (value + 3) + 1 - 7
        value = (value + 2**31) % 2**32 - 2**31
    assert (x.asnumpy() == value).all()


def test_arrays_may_be_freed_before_the_kernel_runs(plus_one):
    for _ in range(50):
        x, y = (np.ones(100_000, dtype="int32") for _ in range(2))
        plus_one(x, y)
        total = y.sum()
        del x, y
        assert int(total) == 200_000


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


def test_functions_that_cuda_has_and_c_has_not():
    kernel = ElementwiseKernel(
        "const float *x, const double *y, float *z",
        "z[i] = rsqrtf(__ldg(x + i)) + (float)rsqrt(y[i]) + min(i, 2LL) + max(n, i)",
    )
    x, y, z = np.ones(4) * 4, np.ones(4, dtype="float64") * 16, np.zeros(4)
    kernel(x, y, z)
    assert z.asnumpy().tolist() == [4.75, 5.75, 6.75, 6.75]


def test_templates_device_functions_and_extern_c():
    module = CudaModule("""
    // __shared__ in a comment, and "atomicAdd(" in a string, are nothing that is used
    #define TWICE(v) (2 * (v))
    template <typename T> __device__ T half_of(T v) { return v / 2; }
    template <typename T> __global__ void scaled(const T *x, T *y, T a) {
      y[threadIdx.x] = a * half_of(TWICE(x[threadIdx.x]));
    }
    extern "C" {
    __device__ __forceinline__ int index() { return blockIdx.x; }
    __global__ void __launch_bounds__(64) numbered(int *y) { y[index()] = index(); }
    }""")
    for ctype, dtype in (("float", "float32"), ("double", "float64")):
        kernel = module.get_kernel(
            f"scaled<{ctype}>", f"const {ctype} *, {ctype} *, {ctype}"
        )
        x, y = np.arange(8, dtype=dtype), np.zeros(8, dtype=dtype)
        kernel.launch([x, y, 2.5], mx.cpu(), (1, 1, 1), (8, 1, 1))
        assert (y.asnumpy() == 2.5 * numpy.arange(8)).all()
    y = np.zeros(9, dtype="int32")
    numbered = module.get_kernel("numbered", "int *y")
    numbered.launch([y], mx.cpu(), (9, 1, 1), (1, 1, 1))
    assert y.asnumpy().tolist() == list(range(9))


INT10 = {"shape": 10, "dtype": "int32"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (lambda x: [x], "takes 2 arguments"),
        (lambda x: [x, np.zeros(10)], r"argument 2 \(int \*y\).*float32, not int32"),
        (lambda x: [x, np.zeros(9, dtype="int32")], r"sizes: \(10,\), \(9,\)"),
        (lambda x: [x, x.copyto(mx.cpu(1))], r"on cpu\(1\), the launch on cpu\(0\)"),
        (lambda x: [x, x.asnumpy()], "MXNet array on cpu.0. is needed, not ndarray"),
        (lambda x: [x.asnumpy()[::2], x], "is needed, not ndarray"),
        (lambda x: [x, None], "not NoneType"),
        (lambda x: [x, x], "are one array"),
        (lambda x: [x[:5], x[5:]], "two parts of one"),
        (
            lambda x: [mx.nd.sparse.zeros("row_sparse", (10, 1), dtype="int32"), x],
            "sparse",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_errors_before_the_launch(plus_one, args, says):
    x = np.zeros(**INT10)
    with pytest.raises(KernelError, match=says):
        plus_one(*args(x))
    assert (x.asnumpy() == 0).all()
    assert issubclass(KernelError, D2lparError)


@pytest.mark.parametrize(
    ("ctype", "number"),
    [
        ("int", 2**31),
        ("int", 1.5),
        ("int8_t", -129),
        ("uint8_t", -1),
        ("float", 1e39),
        ("float", 1j),
        ("double", "1"),
        ("int", None),
    ],
)
def test_numbers_that_a_type_cannot_hold_are_refused(ctype, number):
    fill = ElementwiseKernel(f"{ctype} a, float *y", "y[i] = a", "fill")
    with pytest.raises(KernelError, match=rf"argument 1 \({ctype} a\)"):
        fill(number, np.zeros(3))


@pytest.mark.parametrize(
    ("ctype", "number"), [("int8_t", -128), ("uint8_t", 255), ("int64_t", 2**53 + 1)]
)
def test_numbers_that_a_type_can_just_hold_arrive(ctype, number):
    fill = ElementwiseKernel(f"{ctype} a, int64_t *y", "y[i] = a", "fill")
    y = np.zeros(3, dtype="int64")
    fill(number, y)
    assert y.asnumpy().tolist() == [number] * 3


def test_one_array_may_be_read_twice():
    add = ElementwiseKernel("const int *x, const int *y, int *z", "z[i] = x[i] + y[i]")
    x, z = np.arange(10, dtype="int32"), np.zeros(**INT10)
    add(x, x, z)
    assert z.asnumpy().tolist() == [2 * k for k in range(10)]


def test_storage_is_what_views_have_in_common():
    a = np.zeros((4, 3))
    assert storage(a[1]) == storage(a[2:]) == storage(a)
    assert storage(a.detach()) == storage(a)
    assert storage(a.copy()) != storage(a)


@pytest.mark.parametrize(
    ("grid_dims", "block_dims", "says"),
    [
        ((1, 1), (1, 1, 1), "grid_dims"),
        ((0, 1, 1), (1, 1, 1), "grid_dims"),
        ((1, 65536, 1), (1, 1, 1), "grid_dims"),
        ((1.0, 1, 1), (1, 1, 1), "grid_dims"),
        ((1, 1, 1), (1, 1, 65), "block_dims"),
        ((1, 1, 1), (64, 32, 1), "2048 threads"),
    ],
)
def test_dims_that_cuda_does_not_allow_are_refused(grid_dims, block_dims, says):
    kernel = CudaModule(WHO).get_kernel("who", "int *ran, int *where")
    arrays = [np.zeros(**INT10), np.zeros(**INT10)]
    with pytest.raises(KernelError, match=says):
        kernel.launch(arrays, mx.cpu(), grid_dims, block_dims)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("__shared__ float s[9];", "__shared__"),
        ("__syncthreads();", "__syncthreads"),
        ("y[0] = __shfl_down_sync(~0u, y[0], 1);", "__shfl_down_sync"),
        ("y[0] = __ballot_sync(~0u, 1);", "__ballot_sync"),
        ("y[0] = threadIdx.x % warpSize;", "warpSize"),
        ("atomicAdd(y, 1.f);", "atomicAdd"),
        ("y[0] = __expf(y[0]);", "__expf"),
        ("y[0] = clock64();", "clock64"),
        ('asm("exit;");', "asm"),
        ("y[0] = __half2float(1);", "__half2float"),
        ("} __device__ float table[3]; __device__ void f() {", "a __device__ variable"),
        ("} __constant__ float c = 1; __device__ void f() {", "__constant__"),
    ],
)
def test_what_only_a_gpu_has_is_refused_by_name(body, named):
    kernel = CudaModule(f"__global__ void k(float *y) {{ {body} }}").get_kernel(
        "k", "float *y"
    )
    with pytest.raises(KernelError, match=rf"kernel k uses {named}, which only a GPU"):
        kernel.launch([np.zeros(3)], mx.cpu(), (1, 1, 1), (1, 1, 1))


def test_shared_memory_is_refused_on_a_cpu():
    kernel = CudaModule(WHO).get_kernel("who", "int *ran, int *where")
    arrays = [np.zeros(**INT10), np.zeros(**INT10)]
    with pytest.raises(KernelError, match="64 bytes of shared memory"):
        kernel.launch(arrays, mx.cpu(), (1, 1, 1), (1, 1, 1), shared_mem=64)


@pytest.mark.parametrize(
    ("name", "signature", "says"),
    [
        ("who", "const int *ran, int *where", "argument 1 is not 'const int"),
        ("who", "int *ran, float *where", "argument 2 is not 'float"),
        ("who", "int *ran, int64_t *where", "argument 2 is not 'int64_t"),
        ("who", "int *ran", "arguments are not the 1 of its signature"),
        ("whom", "int *ran, int *where", "no such __global__ function, but who"),
        ("who(", "int *ran, int *where", "not a name"),
    ],
)
def test_a_signature_that_is_not_the_sources_is_an_error(name, signature, says):
    parameters = parse_signature(signature)
    arrays = [np.zeros(1, dtype=p.dtype) for p in parameters]
    kernel = CudaModule(WHO).get_kernel(name, signature)
    with pytest.raises(KernelError, match=says):
        kernel.launch(arrays, mx.cpu(), (1, 1, 1), (1, 1, 1))


@pytest.mark.parametrize(
    ("arguments", "operation", "name", "says"),
    [
        ("unsigned *x", "x[i] = 1", "k", "the type unsigned is none of"),
        ("float **x", "x[i] = 1", "k", "not of the form"),
        ("float *x,", "x[i] = 1", "k", "not of the form"),
        ("float *n", "n[i] = 1", "k", "needs a name of its own"),
        ("float *", "x[i] = 1", "k", "needs a name of its own"),
        ("float x", "x = 1", "k", "none of its arguments is an array"),
        ("float *x", "x[i] = 1", "no name", "letters, digits"),
    ],
)
def test_kernels_that_cannot_be_are_refused_when_made(arguments, operation, name, says):
    with pytest.raises(KernelError, match=says):
        ElementwiseKernel(arguments, operation, name)


def test_a_compile_error_is_one_line_that_names_the_line_of_the_source():
    source = "__global__ void k(float *y)\n{\n  y[0] = none;\n}\n"
    kernel = CudaModule(source).get_kernel("k", "float *y")
    with pytest.raises(KernelError, match=r"does not compile: k\.cu:3: error.*none"):
        kernel.launch([np.zeros(1)], mx.cpu(), (1, 1, 1), (1, 1, 1))
    assert not list(on_cpu.cache_folder().glob("k-*"))  # nor anything half-written
    assert not list(on_cpu.cache_folder().glob(".*"))


# On a GPU: tests/kernels/test_kernels_on_gpu.py runs the sources there


def test_on_a_gpu_the_same_source_goes_to_rtc(monkeypatch):
    made = []

    class Module:
        def __init__(self, source, options, exports):
            made.append((source, options, exports))

        def get_kernel(self, name, signature):
            made.append((name, signature))
            return self

    features = SimpleNamespace(is_enabled=lambda name: name == "CUDA")
    monkeypatch.setattr(mx.runtime, "Features", lambda: features)
    monkeypatch.setattr(mx.rtc, "CudaModule", Module)
    kernel = CudaModule(ADD_TWO_ARRAY_2D).get_kernel(
        "add_two_array_2d", "int nx, long long ny, const float *res"
    )
    gpu = mx.gpu(0)
    assert kernel.compiled(gpu) is kernel.compiled(gpu)
    exports = ("add_two_array_2d",)
    assert made == [
        (ADD_TWO_ARRAY_2D, ("--fmad=false",), exports),
        ("add_two_array_2d", "int nx, int64_t ny, const float *res"),
    ]


def test_a_build_without_cuda_says_so():
    if mx.runtime.Features().is_enabled("CUDA"):
        pytest.skip("this MXNet has CUDA")
    kernel = CudaModule("__global__ void k(int n) {}").get_kernel("k", "int n")
    with pytest.raises(KernelError, match="has no CUDA"):
        kernel.launch([1], mx.gpu(0), (1, 1, 1), (1, 1, 1))


# The fused update


@settings(deadline=None)
@given(
    st.sampled_from(("float32", "float64")),
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.floats(1e-4, 10),
    st.integers(1, 999),
)
def test_the_fused_update_is_numpys_and_sgds(dtype, shape, lr, batch_size):
    rng = numpy.random.default_rng(batch_size)
    host, grad = rng.normal(size=(2, *shape)).astype(dtype)
    ends = []
    for update in (sgd, fused_sgd):
        params = get_params([np.array(host, dtype=dtype)], mx.cpu(1))
        params[0].grad[:] = np.array(grad, dtype=dtype, ctx=mx.cpu(1))
        update(params, lr, batch_size)
        ends.append(params[0].asnumpy())
    right = host - numpy.dtype(dtype).type(lr / batch_size) * grad
    numpy.testing.assert_array_equal(ends[1], right)
    if dtype == "float32":
        numpy.testing.assert_array_equal(*ends)
    else:  # MXNet reads the step from a text, and can be off by its last bit
        numpy.testing.assert_allclose(*ends, rtol=0, atol=1e-15 * lr + 1e-15)


def test_train_batch_takes_the_fused_update():
    X, y = np.random.uniform(size=(6, 1, 28, 28)), np.arange(6)
    ends = []
    for update in (sgd, fused_sgd):
        replicas = [get_params(init_lenet(0.1), ctx) for ctx in CPUS]
        for _ in range(3):
            train_batch(X, y, replicas, CPUS, lr=0.2, update=update)
        ends.append([p.asnumpy() for params in replicas for p in params])
    for one, other in zip(*ends):
        numpy.testing.assert_array_equal(one, other)


def test_the_fused_update_names_a_dtype_that_it_cannot_do():
    (p,) = get_params([np.zeros(3, dtype="float16")], mx.cpu())
    with pytest.raises(KernelError, match="float16"):
        fused_sgd([p], 0.1, 1)


def test_a_kernel_ends_with_a_process_that_does_not_wait_for_it():
    code = """if True:
        from d2lpar._mxnet import np
        from d2lpar.kernels import ElementwiseKernel
        x = np.ones(3_000_000)
        for _ in range(5):
            ElementwiseKernel("float *x", "x[i] *= 2", "twice")(x)
    """
    root = str(Path(on_cpu.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_sources_load_no_mxnet():
    """test_kernels_on_gpu.py reads them on machines without it."""
    code = "import sys, d2lpar.kernels.cpp; print('mxnet' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
