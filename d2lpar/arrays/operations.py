"""The sources' array operations.

Functions draw an operation's arrays, split their rows over the devices, and yield a
:class:`Work`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import numpy

from d2lpar._mxnet import np, npx
from d2lpar.kernels import CudaModule, ElementwiseKernel

AS_WRITTEN, IN_PLACE, ONE_KERNEL = "as written", "in place", "one kernel"

# Each thread sums EACH elements. On a CPU they are neighbours, in 32 lanes that become
# vectors; on a GPU, neighbours of other threads' (coalesced). x is reduced to [-pi/4,
# pi/4] by pi/2 in three parts; then Cephes' sinf and cosf: error 5e-7 for |x| < 8192.
_TRIG = CudaModule("""
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
__global__ void sum_tan_squared(
    const float *x, float *sums, long long n, long long each) {
  long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  long long i = t * each, end = i + each < n ? i + each : n;
  if (i >= n) return;
  float lane[32] = {0}, sum = 0;
  for (; i + 32 <= end; i += 32)
    for (int k = 0; k < 32; ++k) lane[k] += tan_squared(x[i + k]);
  for (; i < end; ++i) sum += tan_squared(x[i]);
  for (int k = 0; k < 32; ++k) sum += lane[k];
  sums[t] = sum;
}
__global__ void sum_tan_squared_coalesced(
    const float *x, float *sums, long long n, long long each) {
  long long t = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  long long threads = (n + each - 1) / each;
  if (t >= threads) return;
  float sum = 0;
  for (long long i = t; i < n; i += threads) sum += tan_squared(x[i]);
  sums[t] = sum;
}
""")
_TRIG_ARGUMENTS = "const float *x, float *sums, long long n, long long each"
SUM_TAN_SQUARED = {
    "cpu": _TRIG.get_kernel("sum_tan_squared", _TRIG_ARGUMENTS),
    "gpu": _TRIG.get_kernel("sum_tan_squared_coalesced", _TRIG_ARGUMENTS),
}
EACH = {"cpu": 4096, "gpu": 256}
X2 = ElementwiseKernel("const float *x, float *y", "y[i] = 2 * x[i]", "x2")


@dataclass(frozen=True)
class Sizes:
    """Say how large each operation is, by default as large as in its source."""

    x2: int = 50_000_000
    sum_rows: int = 100_000  # of 10
    trig: int = 10_000  # the side of a square matrix, as of the product
    product: int = 15_360
    largest_copy: int = 2**28  # bytes; the smallest is 4 KiB
    seed: int = 0

    name: ClassVar[str] = "random numbers"
    synthetic: ClassVar[bool] = False

    @property
    def copies(self) -> tuple[int, ...]:
        """Return the bytes of the arrays that are copied, ascending."""
        return tuple(4**k for k in range(6, 32) if 4**k <= self.largest_copy)

    @property
    def sizes(self) -> dict[str, int]:
        return {k: v for k, v in asdict(self).items() if k != "seed"}

    @property
    def sha256(self) -> str:
        """Return the hash of the sizes and `seed`, which determine the numbers."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass
class Work:
    """Hold an operation's forms, and how they are checked.

    `on_devices` are functions of a device; `on_host`, of a library, of its `host`
    arrays and of those in `out`; `checks` are :mod:`d2lpar.timing`'s.
    """

    operation: str
    shape: tuple[int, ...]
    num_bytes: int
    flops: int
    checks: dict
    on_devices: dict[str, Callable]
    host: tuple[numpy.ndarray, ...] = ()
    out: tuple[numpy.ndarray, ...] = ()
    on_host: dict[str, Callable] = field(default_factory=dict)


def x2(sizes: Sizes, devices: list, rng: numpy.random.Generator) -> Iterator[Work]:
    """Yield the notes' "every number twice", and a copy: the limit that memory sets."""
    host = rng.random(sizes.x2, dtype="float32")
    x, out = _shards(host, devices), numpy.zeros_like(host)
    y = {d: np.zeros(x[d].shape, ctx=d) for d in devices}

    def one_kernel(d) -> np.ndarray:
        X2(x[d], y[d])
        return y[d]

    def copied(library, x, out):
        out[:] = x
        return out

    clear, num_bytes = clearing(*y.values()), 2 * host.nbytes
    yield Work(
        "x2", host.shape, num_bytes, host.size,
        {"expected": 2 * host, "rtol": 0, "before": clear},
        {
            AS_WRITTEN: lambda d: x[d] * 2,
            IN_PLACE: lambda d: np.multiply(x[d], 2, out=y[d]),
            ONE_KERNEL: one_kernel,
        },
        host=(host,), out=(out,),
        on_host={
            AS_WRITTEN: lambda library, x, out: x * 2,
            IN_PLACE: lambda library, x, out: library.multiply(x, 2, out=out),
        },
    )  # fmt: skip
    yield Work(
        "copy", host.shape, num_bytes, 0,
        {"expected": host, "rtol": 0, "before": clear},
        {"copyto": lambda d: x[d].copyto(y[d])},
        host=(host,), out=(out,), on_host={"copyto": copied},
    )  # fmt: skip


def total(sizes: Sizes, devices: list, rng: numpy.random.Generator) -> Iterator[Work]:
    """Yield the CryptoPunks notebook's sum of n x 10 numbers.

    MXNet's own sum adds one by one, in one thread; oneDNN's dense layer adds vectors.
    """
    host = rng.standard_normal((sizes.sum_rows, 10), dtype="float32")
    x = _shards(host, devices)
    ones = {}
    for d in devices:  # as long as the largest divisor up to 4,096
        longest = max(c for c in range(1, 4097) if x[d].size % c == 0)
        ones[d] = np.ones((1, longest), ctx=d)

    def product_with_ones(d) -> np.ndarray:
        rows = x[d].reshape(-1, ones[d].size)
        return npx.fully_connected(rows, ones[d], num_hidden=1, no_bias=True).sum()

    # Positive and negative numbers cancel: the error is relative to the sum of sizes.
    right, size = host.sum(dtype="float64"), float(numpy.abs(host).sum())
    yield Work(
        "sum", host.shape, host.nbytes, host.size,
        {"expected": right, "join": sum, "rtol": 1e-6 * size / abs(right)},
        {AS_WRITTEN: lambda d: x[d].sum(), "product with ones": product_with_ones},
        host=(host,), on_host={AS_WRITTEN: lambda library, x: x.sum()},
    )  # fmt: skip


def trig(sizes: Sizes, devices: list, rng: numpy.random.Generator) -> Iterator[Work]:
    """Yield the GPU wiki's sum of sin^2/cos^2 over n x n numbers in [0, 1)."""
    host = rng.random((sizes.trig, sizes.trig), dtype="float32")
    x = _shards(host, devices)
    kind = devices[0].device_type
    kernel, each = SUM_TAN_SQUARED[kind], EACH[kind]
    sums = {d: np.zeros((-(-x[d].size // each),), ctx=d) for d in devices}

    def written(library, x):
        return (library.sin(x) ** 2 / library.cos(x) ** 2).sum()

    def one_kernel(d) -> np.ndarray:
        blocks = -(-sums[d].size // 256)
        arguments = [x[d], sums[d], x[d].size, each]
        kernel.launch(arguments, d, (blocks, 1, 1), (256, 1, 1))
        return sums[d].sum()

    right = written(numpy, host.astype("float64"))
    clear = clearing(*sums.values())
    yield Work(
        "trig", host.shape, host.nbytes, 6 * host.size,
        {"expected": right, "join": sum, "rtol": 1e-5, "before": clear},
        {AS_WRITTEN: lambda d: written(np, x[d]), ONE_KERNEL: one_kernel},
        host=(host,), on_host={AS_WRITTEN: written},
    )  # fmt: skip


def product(sizes: Sizes, devices: list, rng: numpy.random.Generator) -> Iterator[Work]:
    """Yield the GPUSOROBAN posts' product of two n x n matrices.

    It is checked by the product with a random vector (Freivalds): n^2 operations.
    """
    n = sizes.product
    host = rng.standard_normal((n, n), dtype="float32")
    weight = rng.standard_normal((n, n), dtype="float32")
    x = _shards(host, devices)
    w = {d: np.array(weight, ctx=d) for d in devices}
    dense = {"num_hidden": n, "no_bias": True}
    v = rng.choice([-1.0, 1.0], n)
    checks = {
        "expected": _times(host, _times(weight.T, v)),
        "join": lambda parts: numpy.concatenate([_times(part, v) for part in parts]),
        "rtol": 1e-4,
    }
    yield Work(
        "product", (n, n), 3 * host.nbytes, 2 * n**3, checks,
        {"dense layer": lambda d: npx.fully_connected(x[d], w[d], **dense)},
        host=(host, weight), on_host={AS_WRITTEN: lambda library, x, w: x @ w.T},
    )  # fmt: skip


OPERATIONS = (x2, total, trig, product)


def copies(
    num_bytes: int, devices: list, rng: numpy.random.Generator
) -> Iterator[Work]:
    """Yield copies of `num_bytes` to, from and between devices."""
    shape = (num_bytes // 4,)  # of float32
    hosts = {d: rng.random(shape, dtype="float32") for d in devices}
    x = {d: np.array(hosts[d], ctx=d) for d in devices}
    y = {d: np.zeros(shape, ctx=d) for d in devices}
    following = dict(zip(devices, [*devices[1:], devices[0]]))
    everywhere = numpy.concatenate(list(hosts.values()))
    copied = {"expected": everywhere, "rtol": 0}
    cleared = {**copied, "before": clearing(*y.values())}
    for direction, checks, name, call in (
        ("host to device", copied, "np.array", lambda d: np.array(hosts[d], ctx=d)),
        ("device to host", copied, "asnumpy", lambda d: x[d].asnumpy()),
        ("device to device", cleared, "copyto",
         lambda d: x[d].copyto(y[following[d]])),
    ):  # fmt: skip
        yield Work(direction, shape, num_bytes, 0, checks, {name: call})


def _shards(host: numpy.ndarray, devices: list) -> dict:
    """Return a host array by device, split by rows as evenly as possible."""
    parts = zip(devices, numpy.array_split(host, len(devices)))
    return {d: np.array(part, ctx=d) for d, part in parts}


def clearing(*arrays) -> Callable[[], None]:
    """Zero the outputs before each repetition, so that a no-op fails the check."""

    def clear() -> None:
        for array in arrays:
            array[:] = 0

    return clear


def _times(matrix: numpy.ndarray, v: numpy.ndarray) -> numpy.ndarray:
    """Return matrix @ v in float64, 1,024 rows at a time to save memory."""
    parts = (matrix[i : i + 1024] for i in range(0, len(matrix), 1024))
    return numpy.concatenate([part.astype("float64") @ v for part in parts])
