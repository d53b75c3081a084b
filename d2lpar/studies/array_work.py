"""The arrays of the seeds' work and what is done with them, on devices and on the host.

Each function draws the arrays of one operation, shares them out over the devices by
rows, and returns a :class:`Work`: the operation in several forms, and its right result.
Nothing is timed here; :mod:`d2lpar.studies.array_timings` does that.

Forms: "as written" in the seed; "in place", in memory that is there already, with
MXNet's fast operators; "one kernel", a single pass over memory by a kernel of
:mod:`d2lpar.kernels.kernel`; or the name of the function that does it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import SettingError
from d2lpar.kernels import CudaModule, ElementwiseKernel
from d2lpar.machine import cores
from d2lpar.parallel import allreduce

AS_WRITTEN, IN_PLACE, ONE_KERNEL = "as written", "in place", "one kernel"
AS_WRITTEN_64 = "as written, float64"
FLOAT = 4  # bytes of a float32, which everything is unless it says otherwise
SUM_COLUMNS = 10  # seed 003's

# Each thread of the grid sums EACH elements in 32 lanes, which the compiler of a CPU
# turns into vectors. sin and cos: reduced to [-pi/4, pi/4] by pi/2 in three parts, then
# the polynomials of Cephes' sinf and cosf; right to about 5e-7 for |x| < 8192.
SUM_TAN_SQUARED = CudaModule("""
__device__ inline float tan_squared(float x) {
  float q = rintf(x * 0.63661977f);
  float r = ((x - q * 1.5703125f) - q * 4.8375129e-4f) - q * 7.5497899e-8f;
  float u = r * r;
  float s = r + r * u * (-1.6666655e-1f + u * (8.3321609e-3f - u * 1.9515296e-4f));
  float c = 1.0f - 0.5f * u
    + u * u * (4.1666646e-2f + u * (-1.3887316e-3f + u * 2.4433157e-5f));
  bool odd = (int)q & 1;
  float a = odd ? c : s, b = odd ? s : c;
  return (a * a) / (b * b);
}
__global__ void sum_tan_squared(const float *x, float *sums, int64_t n, int64_t each) {
  int64_t t = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  int64_t i = t * each, end = i + each < n ? i + each : n;
  if (i >= n) return;
  float lane[32] = {0}, sum = 0;
  for (; i + 32 <= end; i += 32)
    for (int k = 0; k < 32; ++k) lane[k] += tan_squared(x[i + k]);
  for (; i < end; ++i) sum += tan_squared(x[i]);
  for (int k = 0; k < 32; ++k) sum += lane[k];
  sums[t] = sum;
}
""").get_kernel(
    "sum_tan_squared", "const float *x, float *sums, int64_t n, int64_t each"
)
EACH = 4096
X2 = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")


class Work(NamedTuple):
    """An operation on data that is there, and the forms it is measured in.

    `on_devices` are functions of a device, by form, `on_host` of nothing, by library
    and form. The others are a record's, and :func:`d2lpar.timing.measure`'s.
    """

    operation: str
    shape: tuple[int, ...]
    num_bytes: int
    flops: int
    expected: object
    on_devices: dict[str, Callable]
    on_host: dict[tuple[str, str], Callable] = {}
    join: Callable = numpy.concatenate
    rtol: float = 0.0
    before: Callable | None = None


def x2(data: Sizes, chosen: list, rng: numpy.random.Generator, torch) -> Work:
    """Seed 000: every number twice. "In place" writes into an array that is there."""
    host = rng.random(data.x2, dtype="float32")
    x, (y,) = _shards(host, chosen), _room(host, chosen, 1)
    out = numpy.zeros_like(host)
    on_host = {
        ("NumPy", AS_WRITTEN): lambda: host * numpy.float32(2),
        ("NumPy", IN_PLACE): lambda: numpy.multiply(host, numpy.float32(2), out=out),
    }
    if torch:
        t, t_out = torch.from_numpy(host), torch.from_numpy(out)
        on_host["PyTorch", AS_WRITTEN] = lambda: t * 2
        on_host["PyTorch", IN_PLACE] = lambda: torch.mul(t, 2, out=t_out)
    on_devices = {
        AS_WRITTEN: lambda d: x[d] * 2,
        IN_PLACE: lambda d: np.multiply(x[d], 2, out=y[d]),
        ONE_KERNEL: lambda d: (X2(x[d], y[d]), y[d])[1],
    }
    return Work(
        "x2", host.shape, 2 * host.nbytes, host.size, 2 * host, on_devices, on_host,
        before=lambda: _clear([out, *y.values()]),
    )  # fmt: skip


def copy(data: Sizes, chosen: list, rng: numpy.random.Generator, torch) -> Work:
    """x2 without the x2: what memory allows, measured on the same arrays."""
    host = rng.random(data.x2, dtype="float32")
    x, (y,) = _shards(host, chosen), _room(host, chosen, 1)
    out = numpy.zeros_like(host)
    on_host = {("NumPy", "copyto"): lambda: (numpy.copyto(out, host), out)[1]}
    if torch:
        t, t_out = torch.from_numpy(host), torch.from_numpy(out)
        on_host["PyTorch", "copy_"] = lambda: t_out.copy_(t)
    return Work(
        "copy", host.shape, 2 * host.nbytes, 0, host,
        {"copyto": lambda d: x[d].copyto(y[d])}, on_host,
        before=lambda: _clear([out, *y.values()]),
    )  # fmt: skip


def total(data: Sizes, chosen: list, rng: numpy.random.Generator, torch) -> Work:
    """Seed 003: the sum of n x 10. MXNet's own adds one by one, in one thread."""
    host = rng.standard_normal((data.sum_rows, SUM_COLUMNS), dtype="float32")
    x = _shards(host, chosen)
    ones = {d: np.ones((1, _columns(x[d].size)), ctx=d) for d in chosen}
    on_host = {("NumPy", AS_WRITTEN): lambda: host.sum()}
    if torch:
        t = torch.from_numpy(host)
        on_host["PyTorch", AS_WRITTEN] = lambda: t.sum()
    on_devices = {
        AS_WRITTEN: lambda d: x[d].sum(),
        "product with ones": lambda d: _sum(x[d], ones[d]),
    }
    # Positive and negative numbers cancel: measured against the sum of their sizes.
    right, size = host.sum(dtype="float64"), float(numpy.abs(host).sum())
    return Work(
        "sum", host.shape, host.nbytes, host.size, right, on_devices, on_host, sum,
        rtol=1e-6 * size / abs(right),
    )  # fmt: skip


def trig(data: Sizes, chosen: list, rng: numpy.random.Generator, torch) -> Work:
    """Seed 002: the sum of sin^2/cos^2 over n x n numbers in [0, 1)."""
    host = rng.random((data.trig, data.trig), dtype="float32")
    x, (s, c) = _shards(host, chosen), _room(host, chosen, 2)
    ones = {d: np.ones((1, _columns(x[d].size)), ctx=d) for d in chosen}
    sums = {d: np.zeros((-(-x[d].size // EACH),), ctx=d) for d in chosen}
    out, out_2 = numpy.zeros_like(host), numpy.zeros_like(host)
    host64 = host.astype("float64")

    def mxnet_in_place(d):
        np.square(np.sin(x[d], out=s[d]), out=s[d])
        np.square(np.cos(x[d], out=c[d]), out=c[d])
        return _sum(np.divide(s[d], c[d], out=s[d]), ones[d])

    def mxnet_one_kernel(d):
        blocks = -(-sums[d].size // 256)
        arguments = [x[d], sums[d], x[d].size, EACH]
        SUM_TAN_SQUARED.launch(arguments, d, (blocks, 1, 1), (256, 1, 1))
        return sums[d].sum()

    def numpy_in_place():
        numpy.square(numpy.sin(host, out=out), out=out)
        numpy.square(numpy.cos(host, out=out_2), out=out_2)
        return numpy.divide(out, out_2, out=out).sum()

    def numpy_as_written(x):
        return (numpy.sin(x) ** 2 / numpy.cos(x) ** 2).sum()

    on_host = {
        ("NumPy", AS_WRITTEN): lambda: numpy_as_written(host),
        ("NumPy", IN_PLACE): numpy_in_place,
        ("NumPy", AS_WRITTEN_64): lambda: numpy_as_written(host64),
    }
    if torch:
        t, t_out, t_2 = map(torch.from_numpy, (host, out, out_2))

        def torch_in_place():
            torch.sin(t, out=t_out).square_()
            return t_out.div_(torch.cos(t, out=t_2).square_()).sum()

        on_host["PyTorch", AS_WRITTEN] = lambda: (
            torch.sin(t) ** 2 / torch.cos(t) ** 2
        ).sum()
        on_host["PyTorch", IN_PLACE] = torch_in_place
    on_devices = {
        AS_WRITTEN: lambda d: (np.sin(x[d]) ** 2 / np.cos(x[d]) ** 2).sum(),
        IN_PLACE: mxnet_in_place,
        ONE_KERNEL: mxnet_one_kernel,
    }
    return Work(
        "trig", host.shape, host.nbytes, 6 * host.size, numpy_as_written(host64),
        on_devices, on_host, sum, rtol=1e-5, before=lambda: _clear(sums.values()),
    )  # fmt: skip


def product(data: Sizes, chosen: list, rng: numpy.random.Generator, torch) -> Work:
    """Seed 004: a product of two n x n, the first one's rows shared out.

    The second is given as its transpose, as a dense layer has it. Checked by the
    product with a random vector (Freivalds): n^2 operations for each n^3.
    """
    n = data.product
    host, weight = (rng.standard_normal((n, n), dtype="float32") for _ in range(2))
    x = _shards(host, chosen)
    w = {d: np.array(weight, ctx=d) for d in chosen}
    on_host = {("NumPy", AS_WRITTEN): lambda: host @ weight.T}
    if torch:
        t, t_weight = torch.from_numpy(host), torch.from_numpy(weight)
        on_host["PyTorch", AS_WRITTEN] = lambda: t @ t_weight.T
    on_devices = {
        "dense layer": lambda d: npx.fully_connected(
            x[d], w[d], num_hidden=n, no_bias=True
        )
    }
    on_cpu = chosen[0].device_type == "cpu"
    if len(chosen) == 1 or not on_cpu or cores.omp_threads() == 1:
        # Elsewhere OpenBLAS waits for ever: see d2lpar._mxnet.
        on_devices["dot"] = lambda d: mx.nd.dot(
            x[d].as_nd_ndarray(), w[d].as_nd_ndarray(), transpose_b=True
        )
    v = rng.choice([-1.0, 1.0], n)
    return Work(
        "product", (n, n), 3 * host.nbytes, 2 * n**3, _times(host, _times(weight.T, v)),
        on_devices, on_host, rtol=1e-4,
        join=lambda parts: numpy.concatenate([_times(part, v) for part in parts]),
    )  # fmt: skip


def copies(num_bytes: int, chosen: list, rng: numpy.random.Generator) -> Iterator[Work]:
    """Arrays of `num_bytes` a device: to it, from it, to the next one; all-reduce."""
    shape = (num_bytes // FLOAT,)
    hosts = {d: rng.random(shape, dtype="float32") for d in chosen}
    x = {d: np.array(hosts[d], ctx=d) for d in chosen}
    y = {d: np.zeros(shape, ctx=d) for d in chosen}
    following = dict(zip(chosen, [*chosen[1:], chosen[0]]))
    everywhere = numpy.concatenate(list(hosts.values()))
    # The host's side of these two is Python itself: they return when they are done.
    to = {"np.array": lambda d: np.array(hosts[d], ctx=d)}
    yield Work("host to device", shape, num_bytes, 0, everywhere, to)
    back = {"asnumpy": lambda d: x[d].asnumpy()}
    yield Work("device to host", shape, num_bytes, 0, everywhere, back)
    across = {"copyto": lambda d: x[d].copyto(y[following[d]])}
    yield Work(
        "device to device", shape, num_bytes, 0, everywhere, across,
        before=lambda: _clear(y.values()),
    )  # fmt: skip
    if len(chosen) == 1:
        return  # nothing to sum
    arrays = list(y.values())

    def reduce(d):
        if d == chosen[0]:
            allreduce(arrays)
        return y[d]

    summed = numpy.tile(sum(hosts.values()), len(chosen))
    yield Work(
        "all-reduce", shape, num_bytes, (len(chosen) - 1) * shape[0], summed,
        {"allreduce": reduce}, rtol=1e-6,
        before=lambda: [x[d].copyto(y[d]) for d in chosen],
    )  # fmt: skip


def _shards(host: numpy.ndarray, chosen: list) -> dict:
    """Rows of a host array by device, as equal in number as can be."""
    parts = numpy.array_split(host, len(chosen))
    return {d: np.array(part, ctx=d) for d, part in zip(chosen, parts)}


def _room(host: numpy.ndarray, chosen: list, n: int) -> list[dict]:
    """`n` times the memory of the shards."""
    shapes = [part.shape for part in numpy.array_split(host, len(chosen))]
    return [
        {d: np.zeros(shape, ctx=d) for d, shape in zip(chosen, shapes)}
        for _ in range(n)
    ]


def _clear(arrays) -> None:
    """So that an operation that does nothing is found out."""
    for array in arrays:
        array[:] = 0


def _columns(size: int) -> int:
    """The largest divisor up to 4,096: so long are the rows that are summed."""
    return max(c for c in range(1, min(size, 4096) + 1) if size % c == 0)


def _sum(x: np.ndarray, ones: np.ndarray) -> np.ndarray:
    """The sum by oneDNN, as a dense layer of ones: in vectors, MXNet's is not."""
    rows = x.reshape(-1, ones.size)
    return npx.fully_connected(rows, ones, num_hidden=1, no_bias=True).sum()


def _times(matrix: numpy.ndarray, v: numpy.ndarray) -> numpy.ndarray:
    """matrix @ v in float64, 1,024 rows at a time: a copy of all would be large."""
    starts = range(0, len(matrix), 1024)
    return numpy.concatenate(
        [matrix[i : i + 1024].astype("float64") @ v for i in starts]
    )


log = logging.getLogger("d2lpar")


@dataclass(frozen=True)
class Sizes:
    """How much of everything: elements, rows of 10, and n of two n x n; bytes to copy.

    `name`, `sha256` (of the sizes and the seed: the numbers are drawn from them, as
    they are needed) and `synthetic` are what a record says of its data.
    """

    x2: int
    sum_rows: int
    trig: int
    product: int
    copies: tuple[int, ...]
    name: str
    sha256: str
    synthetic: bool = False  # it stands in for nothing

    @property
    def sizes(self) -> dict:
        """What a record says of how much data there is."""
        own = ("x2", "sum_rows", "trig", "product", "copies")
        return {name: value for name, value in asdict(self).items() if name in own}


def sizes(
    x2: int = 50_000_000,
    sum_rows: int = 100_000,
    trig: int = 10_000,
    product: int = 15_360,
    largest_copy: int = 2**28,
    seed: int = 0,
) -> Sizes:
    """Sizes of :func:`train`'s work, the seeds' own; numbers are drawn from `seed`.

    Copies are of 4 KiB, 16 KiB, ... up to `largest_copy` bytes. Raises
    :class:`SettingError` for a size below 1, or a largest copy below 4 KiB.

    >>> sizes(x2=6, sum_rows=5, trig=4, product=3, largest_copy=20_000).sizes
    {'x2': 6, 'sum_rows': 5, 'trig': 4, 'product': 3, 'copies': (4096, 16384)}
    """
    counts = {"x2": x2, "sum_rows": sum_rows, "trig": trig, "product": product}
    for name, value in counts.items():
        if value < 1:
            raise SettingError(f"size of {name} {value}: write 1 or more")
    if largest_copy < 2**12:
        raise SettingError(f"largest copy {largest_copy}: write 4096 bytes or more")
    copies = tuple(4**k for k in range(6, 32) if 4**k <= largest_copy)
    text = json.dumps([counts, copies, seed])
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Sizes(**counts, copies=copies, name="random numbers", sha256=digest)
