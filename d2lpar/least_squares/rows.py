"""The rows of A and b: shared over devices, and read in blocks that fit in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx, np
from d2lpar.parallel import shares
from d2lpar.step_checks import as_array

BLOCK_BYTES = 2**26  # of A, per device and round
RESIDENT_BYTES = 2**30  # up to this size A stays on the devices between rounds


class Block(NamedTuple):
    """Some rows of one device's shard, on that device."""

    k: int  # number of the device in the list
    A: mx.nd.NDArray  # (rows, n)
    b: mx.nd.NDArray  # (rows, 1)


class Residual(NamedTuple):
    """The size of b - A x for a host array x (n,), and its gradient."""

    x: numpy.ndarray
    norm: float
    gradient: numpy.ndarray  # A^T (b - A x), (n,); zeros if it was left out

    @property
    def size(self) -> float:
        """Return the norm of the gradient."""
        return float(numpy.linalg.norm(self.gradient))


class Answer(NamedTuple):
    """One iterate of a solver. The last one also carries what `_examine` needs."""

    x: numpy.ndarray  # (n,), on the host
    iteration: int = 1
    residual: Residual | None = None
    device_xs: Sequence[numpy.ndarray] = ()  # the devices' own, where they differ
    gradient: numpy.ndarray | None = None  # by a direct method's own account
    lengths: numpy.ndarray | None = None  # of A's columns, (n,)
    tol: float = 0.0  # of an iterative method
    may_be_off: float = 0.0  # x, relative to its norm
    condition: float | None = None
    rank: int | None = None


class RowShards:
    """Rows of A (m, n) and b (m,), shared in order over devices."""

    def __init__(
        self,
        A,
        b,
        devices: Sequence[mx.Context],
        dtype: str,
        block_bytes: int,
        resident_bytes: int,
    ) -> None:
        self.A, b = opened("A", A), opened("b", b)
        if len(self.A.shape) != 2 or b.shape != self.A.shape[:1] or 0 in self.A.shape:
            raise ValueError(
                f"A is of shape {tuple(self.A.shape)}, b of shape {b.shape}: write "
                "(m, n) and (m,)"
            )
        self.dtype = numpy.dtype(dtype)
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype {dtype}: write float64 or float32")
        self.eps = float(numpy.finfo(self.dtype).eps)
        self.m, self.n = self.A.shape
        self.devices, self.parts = list(devices), shares(self.m, len(devices))
        row_bytes = self.dtype.itemsize * self.n
        self.block_rows = max(block_bytes // row_bytes, 1)
        self.resident = self.m * row_bytes <= resident_bytes
        self._kept: list[Block] = []  # all blocks, if they stay

        self.b = numpy.asarray(b).astype(self.dtype)[:, None]
        self.norm_of_b = float(numpy.linalg.norm(self.b.astype("float64")))
        self.check_finite(self.norm_of_b)
        # A residual of rounding's size must have a square in this dtype, too.
        least = (numpy.finfo(self.dtype).tiny / self.eps**2) ** 0.5
        if self.b.any() and self.norm_of_b < least:
            raise ValueError(f"the squares of b's numbers underflow {dtype}: scale b")

    def vector(self, name: str, array) -> numpy.ndarray:
        """Return an array of n numbers in float64; ValueError for any other."""
        array = numpy.asarray(as_array(name, array), dtype="float64")
        if array.size != self.n:
            raise ValueError(f"{name} {array.shape}: write ({self.n},), as x")
        return array.reshape(self.n)

    def rounds(self) -> Iterator[Iterable[Block]]:
        """Yield rounds of all devices' blocks until all rows were used.

        The next round is read during this one: three blocks per device are in memory.
        """
        if self._kept:
            yield self._kept
            return
        step = self.m if self.resident else self.block_rows
        longest = self.parts[0].stop
        earlier: list[Block] = []
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._read, 0, step)
            for row in range(0, longest, step):
                host, blocks = ahead.result(), []
                ahead = reader.submit(self._read, row + step, step)
                yield self._on_devices(host, blocks)
                if self.resident:
                    self._kept = blocks
                # Wait for the work that reads these blocks, and for no other.
                for array in (array for _, *arrays in earlier for array in arrays):
                    mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
                earlier, host = blocks, None  # free before the next are waited for

    def _read(self, row: int, count: int) -> list[tuple]:
        """Return `count` rows or less of each shard from its `row` on: (k, A, b)."""
        blocks = []
        for k, part in enumerate(self.parts):
            start = part.start + row
            stop = min(start + count, part.stop)
            if stop > start:
                A = numpy.ascontiguousarray(self.A[start:stop], self.dtype)
                blocks.append((k, A, self.b[start:stop]))
        return blocks

    def _on_devices(self, host: list[tuple], made: list[Block]) -> Iterator[Block]:
        """Yield the blocks on their devices, one by one; append each to `made`."""
        # MXNet's copy from the host queues behind all work of cpu(0): that device must
        # be the last to get work.
        for k, *arrays in reversed(host):
            placed = []
            for array in arrays:
                if self.devices[k] == mx.cpu(0) and array.flags.c_contiguous:
                    # Read where it is; a view, because MXNet makes it read-only.
                    placed.append(mx.nd.from_numpy(array.view(), zero_copy=True))
                else:  # mx.nd.array would make another copy on the host
                    placed.append(mx.nd.empty(array.shape, self.devices[k], self.dtype))
                    placed[-1][:] = array
            made.append(Block(k, *placed))
            yield made[-1]

    def residual(self, x: numpy.ndarray, gradient: bool = True) -> Residual:
        """Return b - A x of a host array x (n,) by its norm and gradient."""
        return Residual(x, *self.products(x, lambda b, Ax: b - Ax, gradient))

    def products(self, x, of_rows, transposed: bool = True) -> tuple:
        """Return ||q|| and A^T q (n,) of q = of_rows(b, A x), summed over devices.

        This is the one all-reduce of an iteration. Unless `transposed`, the second is
        0.
        """
        xs = [mx.nd.array(x[:, None], ctx=d, dtype=self.dtype) for d in self.devices]
        parts = []
        for blocks in self.rounds():
            for k, A, b in blocks:
                q = of_rows(b, matmul(A, xs[k]))
                part = (q * q).sum().reshape((1, 1))
                if transposed:
                    part = mx.nd.concat(part, matmul(A, q, transpose=True), dim=0)
                parts.append(part)
        sums = numpy.zeros(1 + self.n)  # in float64
        for part in parts:
            sums[: len(part)] += part.asnumpy()[:, 0]
        return math.sqrt(sums[0]), sums[1:]

    def rounding(self, x: numpy.ndarray, lengths: numpy.ndarray) -> float:
        """Return the size of rounding errors of b - A x; A's columns have `lengths`."""
        return self.eps * float(lengths @ abs(x) + self.norm_of_b)

    def check_finite(self, *results) -> None:
        """Raise ValueError if results of A, b and x0 are not finite."""
        if not all(numpy.isfinite(result).all() for result in results):
            raise ValueError(
                "A, b or x0 holds NaN or infinity (numpy.isfinite shows where), or "
                f"their products overflow {self.dtype}: scale them"
            )


def opened(name: str, array):
    """Return an array, or the rows of the ``.npy`` file that a path names."""
    if isinstance(array, (str, os.PathLike)):
        try:
            mapping = numpy.lib.format.open_memmap(array, mode="r")
        except ValueError as error:  # as of a .npz or .csv file
            raise ValueError(
                f"{name}, {os.fspath(array)}: write the path of a .npy file ({error})"
            ) from None
        as_array(name, mapping)  # its dtype
        in_rows = mapping.ndim == 2 and mapping.flags.c_contiguous
        return FileRows(array, mapping) if in_rows else mapping
    array = as_array(name, array)
    return array.asnumpy() if isinstance(array, np.ndarray) else array


class FileRows:
    """Rows of an ``.npy`` file in C order; a mapping's pages would count as memory."""

    def __init__(self, path: str | os.PathLike, mapping: numpy.memmap) -> None:
        self.path, self.shape, self.dtype = path, mapping.shape, mapping.dtype
        self._begin, self._row_bytes = mapping.offset, mapping.strides[0]

    def __getitem__(self, rows: slice) -> numpy.ndarray:
        count = (rows.stop - rows.start) * self.shape[1]
        offset = self._begin + rows.start * self._row_bytes
        numbers = numpy.fromfile(self.path, self.dtype, count, offset=offset)
        return numbers.reshape(-1, self.shape[1])


def matmul(A: mx.nd.NDArray, x: mx.nd.NDArray, transpose: bool = False):
    """A x, or A^T x without forming A^T; x is (n, k) or (rows, k)."""
    # MXNet's BLAS is up to twice as fast with the long matrix on the right.
    product = mx.nd.linalg.gemm2(x, A, transpose_a=True, transpose_b=not transpose)
    if x.shape[1] == 1:
        return product.reshape((-1, 1))
    return product.T
