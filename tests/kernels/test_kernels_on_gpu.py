"""The CUDA C of every kernel on a real GPU: NVRTC as mx.rtc calls it, run by CuPy.

    python -m pytest tests/kernels/test_kernels_on_gpu.py -v

Needs no MXNet: its GPU builds have no code for compute capability 9.0, but what is to
be shown is that the sources are CUDA C that compiles and is right. CuPy serves as the
runtime; NumPy says what is right, to the bit.
"""

import ast
from pathlib import Path

import numpy
import pytest

from d2lpar.kernels.source import (
    SGD_ARGUMENTS,
    SGD_OPERATION,
    elementwise_source,
    parse_signature,
)

try:
    import cupy
    from cuda.bindings import nvrtc

    cupy.cuda.runtime.getDeviceCount()
# Without a driver, or beside the NumPy 1 that MXNet needs, CuPy 14 raises more than
# ImportError: whatever it is, nothing here can run CUDA C with it.
except Exception as error:
    said = [line.strip() for line in str(error).splitlines() if "rror" in line]
    reason = f"no usable CuPy with cuda-bindings: {(said or [error])[-1]}"
    pytest.skip(reason, allow_module_level=True)

pytestmark = pytest.mark.gpu

SIZES = (1, 15, 16, 17, 255, 256, 257, 10**6 + 3)
DTYPES = {"int": "i4", "long long": "i8", "float": "f4", "double": "f8"}
rng = numpy.random.default_rng(0)


def compiled(source: str, name: str):
    """What mxnet's rtc.cc does: a name expression, PTX, the lowered name."""

    def ask(call, *args):
        code, *answer = call(*args)
        assert code == nvrtc.nvrtcResult.NVRTC_SUCCESS, (call, code)
        return answer[0] if answer else None

    program = ask(nvrtc.nvrtcCreateProgram, source.encode(), b"source.cu", 0, [], [])
    ask(nvrtc.nvrtcAddNameExpression, program, name.encode())
    capability = cupy.cuda.Device().compute_capability
    options = [b"--fmad=false", f"--gpu-architecture=compute_{capability}".encode()]
    ask(nvrtc.nvrtcCompileProgram, program, len(options), options)
    ptx = b" " * ask(nvrtc.nvrtcGetPTXSize, program)
    ask(nvrtc.nvrtcGetPTX, program, ptx)
    module = cupy.cuda.function.Module()
    module.load(ptx)
    lowered = ask(nvrtc.nvrtcGetLoweredName, program, name.encode())
    return module.get_function(lowered.decode())


def elementwise(arguments: str, operation: str, name: str):
    kernel = compiled(
        elementwise_source(parse_signature(arguments), operation, name), name
    )

    def call(*args):
        n = next(arg.size for arg in args if isinstance(arg, cupy.ndarray))
        kernel((-(-n // 256), 1, 1), (256, 1, 1), (*args, numpy.int64(n)))

    return call


def draw(n: int, dtype: str) -> numpy.ndarray:
    if dtype[0] == "i":
        return rng.integers(-(2**31), 2**31 - 1, size=n).astype(dtype)
    return rng.normal(size=n).astype(dtype)


@pytest.mark.parametrize("n", SIZES)
def test_plus_one_of_the_posts_both_ways_round(n):
    plus_one = elementwise("int *x, int *y", "y[i] = x[i] + 1", "plus_one")
    x, y = cupy.arange(n, dtype="i4"), cupy.zeros(n, dtype="i4")
    plus_one(x, y)
    assert (y.get() == numpy.arange(n) + 1).all()
    y = cupy.zeros(n, dtype="i4")
    plus_one(y, x)
    assert (y.get() == 0).all() and (x.get() == 1).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ctype", DTYPES)
def test_a_sum_of_products_is_numpys_to_the_bit(ctype, n):
    axpy = elementwise(
        f"{ctype} a, const {ctype} *x, {ctype} *y", "y[i] = a * x[i] + y[i]", "axpy"
    )
    x, y = draw(n, DTYPES[ctype]), draw(n, DTYPES[ctype])
    on_gpu = cupy.asarray(y)
    axpy(x.dtype.type(3), cupy.asarray(x), on_gpu)
    assert (on_gpu.get() == x.dtype.type(3) * x + y).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("ctype", ["float", "double"])
def test_the_fused_sgd_update(ctype, n):
    sgd = elementwise(SGD_ARGUMENTS.format(ctype), SGD_OPERATION, "sgd")
    p, grad = draw(n, DTYPES[ctype]), draw(n, DTYPES[ctype])
    step, on_gpu = p.dtype.type(0.2 / 256), cupy.asarray(p)
    sgd(on_gpu, cupy.asarray(grad), step)
    assert (on_gpu.get() == p - step * grad).all()


@pytest.mark.parametrize("bits", ["uint8_t", "int8_t", "int32_t", "int64_t", "char"])
def test_types_that_nvrtc_knows_from_headers_only(bits):
    double = elementwise(f"const {bits} *x, {bits} *y", "y[i] = 2 * x[i]", "doubled")
    dtype = parse_signature(f"{bits} *x")[0].dtype
    x = numpy.arange(60).astype(dtype)
    y = cupy.zeros(60, dtype=dtype)
    double(cupy.asarray(x), y)
    assert (y.get() == 2 * x).all()


@pytest.mark.parametrize("shape", [(2, 5), (16, 16), (17, 31), (1000, 1003)])
def test_add_two_array_2d_of_the_posts(shape):
    chapter = Path(__file__).parents[2] / "chapters" / "kernels.py"
    tree = ast.parse(chapter.read_text(encoding="utf-8"))
    (source,) = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and "__global__ void add_two_array_2d" in str(node.value)
    )
    add = compiled(source, "add_two_array_2d")
    ny, nx = shape
    arr1, arr2 = draw(nx * ny, "f4"), draw(nx * ny, "f4")
    res = cupy.zeros(nx * ny + 400, dtype="f4")  # threads out of range would write here
    grid_dims = (-(-nx // 16), -(-ny // 16), 1)
    arrays = (res, cupy.asarray(arr1), cupy.asarray(arr2))
    add(grid_dims, (16, 16, 1), (numpy.int32(nx), numpy.int32(ny), *arrays))
    assert (res.get()[: nx * ny] == arr1 + arr2).all()
    assert (res.get()[nx * ny :] == 0).all()


def test_doubling_fifty_million_floats():
    x2 = elementwise("const float *x, float *y", "y[i] = 2 * x[i]", "x2")
    x = rng.random(50_000_000, dtype="f4")
    y = cupy.zeros(x.size, dtype="f4")
    x2(cupy.asarray(x), y)
    assert (y.get() == 2 * x).all()
