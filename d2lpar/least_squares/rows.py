"""The rows of A and b: shared over devices, and read in blocks.

A is anything with a shape, a dtype and rows that can be sliced: a NumPy array or
memmap, the path of an ``.npy`` file, a Zarr or HDF5 array, or MXNet's. It need not fit
in memory: :meth:`RowShards.rounds` brings one block of rows at a time to every device,
while the next blocks are being read.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy

from d2lpar._mxnet import mx
from d2lpar.device_arrays import check_unmasked, shares
from d2lpar.training import check_whole

if TYPE_CHECKING:
    from d2lpar.workers.group import Workers

BLOCK_BYTES = 2**26  # of A, per device and round
RESIDENT_BYTES = 2**30  # up to this size A stays on the devices between rounds
# If all numbers of A or of b are smaller, products such as A^T b and its square, which
# is taken on the host in float64, lose digits or vanish; from 1 / TOO_SMALL on they may
# overflow.
TOO_SMALL = {"float64": 1e-65, "float32": 1e-15}
PATHS = (str, bytes, os.PathLike)


class Block(NamedTuple):
    """Some rows of one device's shard, on that device."""

    k: int  # number of the device in the list
    A: mx.nd.NDArray  # (rows, n)
    b: mx.nd.NDArray  # (rows, number of right-hand sides)


class RowShards:
    """Rows of A (m, n) and b (m, k), shared evenly and in order over devices.

    `dtype` is that of the computation, float64 or float32; `flat` shows that b was
    (m,), and `norms_of_b` (k,) are the lengths of its columns. Each of several
    `workers` reads its own part of the rows of A alone.

    Raises ValueError if b is so large or small that its squares leave the dtype. A is
    not read here: the methods see its size in their own products, and ask
    :meth:`check_finite` and :meth:`check_not_tiny`.
    """

    def __init__(
        self,
        A,
        b,
        devices: Sequence[mx.Context],
        *,
        dtype: str = "float64",
        block_bytes: int = BLOCK_BYTES,
        resident_bytes: int = RESIDENT_BYTES,
        workers: Workers | None = None,
    ) -> None:
        self.A, b = open_problem(A, b)
        self.b, self.flat = b.reshape(b.shape[0], -1), b.ndim == 1
        (self.m, self.n), self.num_rhs = self.A.shape, self.b.shape[1]
        if dtype not in ("float64", "float32", numpy.float64, numpy.float32):
            raise ValueError(f"dtype {dtype}: write float64 or float32")
        check_whole("block_bytes", block_bytes)
        self.devices, self.workers = list(devices), workers
        self.dtype = numpy.dtype(dtype)
        mine = slice(0, self.m)
        if workers is not None:
            if self.m < workers.count:
                raise ValueError(f"A has {self.m} rows for {workers.count} workers")
            mine = shares(self.m, workers.count)[workers.number]
        num_rows, row_bytes = mine.stop - mine.start, self.dtype.itemsize * self.n
        self.bounds = [
            (mine.start + part.start, mine.start + part.stop)
            for part in shares(num_rows, len(self.devices))
        ]
        self.block_rows = max(block_bytes // row_bytes, 1)
        self.resident = num_rows * row_bytes <= resident_bytes
        self._kept: list[Block] = []  # all blocks, if they stay

        with numpy.errstate(over="ignore", under="ignore", invalid="ignore"):
            self.norms_of_b = numpy.linalg.norm(self.b.astype("float64"), axis=0)
        if not (self.norms_of_b < 1 / self.too_small).all():
            self.check_finite(numpy.inf)
        tiny = (self.norms_of_b < self.too_small) & self.b.any(axis=0)
        if tiny.any():
            size = abs(self.b[:, tiny]).max()
            raise ValueError(
                f"b's numbers are at most {size:.0e}: their squares underflow "
                f"{self.dtype}; scale b"
            )
        self.b = self.b.astype(self.dtype, copy=False)

    @property
    def too_small(self) -> float:
        return TOO_SMALL[self.dtype.name]

    def shaped(self, name: str, x) -> numpy.ndarray:
        """An x that a user gives, as (n, k) float64; None is 0."""
        shape = (self.n, self.num_rhs)
        check_unmasked(name, x)
        x = numpy.zeros(shape) if x is None else numpy.array(x, "float64")
        if x.size != self.n * self.num_rhs or not numpy.isfinite(x).all():
            raise ValueError(
                f"{name} of shape {x.shape}: write {shape[0]} x {shape[1]} finite "
                "numbers"
            )
        return x.reshape(shape)

    def rounds(self) -> Iterator[Iterable[Block]]:
        """Blocks of all devices, one round at a time, until every row has been used.

        A problem that fits stays on the devices, in one block each. Of a larger one the
        next round is read while the devices work on this one; on GPUs that work may go
        on while the next blocks are copied. So three blocks per device are in memory,
        however many rows there are. Blocks come in the order in which the devices can
        start soonest; use each at once.
        """
        if self._kept:
            yield self._kept
            return
        step = self.m if self.resident else self.block_rows
        longest = max(stop - start for start, stop in self.bounds)
        earlier: list[Block] = []
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._read, 0, step)
            for row in range(0, longest, step):
                host, blocks = ahead.result(), []
                ahead = reader.submit(self._read, row + step, step)
                yield self._on_devices(host, blocks)
                if self.resident:
                    self._kept = blocks
                _wait_until_used(earlier)
                earlier, host = blocks, None  # free before the next are waited for

    def _read(self, row: int, count: int) -> list[tuple]:
        """Up to `count` rows of each shard from its `row`, on the host: (k, A, b)."""
        blocks = []
        for k, (first, end) in enumerate(self.bounds):
            start, stop = first + row, min(first + row + count, end)
            if stop > start:
                with numpy.errstate(over="ignore"):  # check_finite sees it
                    A = rows_of(self.A, start, stop, self.dtype)
                blocks.append((k, A, self.b[start:stop]))
        return blocks

    def _on_devices(self, host: list[tuple], made: list[Block]) -> Iterator[Block]:
        """The blocks on their devices, one by one; each is also added to `made`."""
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

    def to_devices(self, x: numpy.ndarray) -> list[mx.nd.NDArray]:
        """A copy of the host array on every device."""
        return [mx.nd.array(x, ctx=d, dtype=self.dtype) for d in self.devices]

    def total(self, array: numpy.ndarray) -> numpy.ndarray:
        """The sum of a host array over the workers, if there are several."""
        return array if self.workers is None else self.workers.total(array)

    def residual_norms(self, x: numpy.ndarray) -> numpy.ndarray:
        """||A x - b|| (devices, k) of each device's rows, for a host array x (n, k).

        The devices are those of all workers.
        """
        sums = numpy.zeros((len(self.devices), self.num_rhs))
        xs = self.to_devices(x)
        for blocks in self.rounds():
            squares = []
            for k, A, b in blocks:
                r = times(A, xs[k]) - b
                squares.append((k, (r * r).sum(axis=0)))
            for k, square in squares:
                sums[k] += square.asnumpy()
        return numpy.sqrt(self._of_every_worker(sums))

    def _of_every_worker(self, rows: numpy.ndarray) -> numpy.ndarray:
        """The rows of all workers' arrays (r, width) as (workers * r, width)."""
        if self.workers is None or self.workers.count == 1:
            return rows
        every = numpy.zeros((self.workers.count, *rows.shape))
        every[self.workers.number] = rows
        return self.total(every).reshape(-1, rows.shape[1])

    def residual_norm(self, x: numpy.ndarray) -> float:
        """||A x - b|| over all rows and right-hand sides."""
        return float(numpy.linalg.norm(self.residual_norms(x)))

    def check_finite(self, *results) -> None:
        """Raise ValueError if results of A and b are not finite, saying why."""
        if all(numpy.isfinite(result).all() for result in results):
            return
        for name, array in (("b", self.b), ("A", self.A)):
            for start, rows in _in_parts(array):
                places = numpy.argwhere(~numpy.isfinite(rows))
                if len(places):
                    row, column = places[0]
                    raise ValueError(
                        f"{name} is {rows[row, column]} in row {start + row}, "
                        f"column {column}"
                    )
        raise ValueError(
            f"A, b or x0 is too large: their products overflow {self.dtype}; scale them"
        )

    def check_not_tiny(self) -> None:
        """Raise ValueError if A is so small, but not 0, that its squares underflow.

        It reads all of A: ask only where a product is 0 or nearly so.
        """
        if 0 < self._largest_of_A < self.too_small:
            raise ValueError(
                f"A's numbers are at most {self._largest_of_A:.0e}: their squares "
                f"underflow {self.dtype}; scale A"
            )

    @functools.cached_property
    def _largest_of_A(self) -> float:
        return max(float(abs(rows).max()) for _, rows in _in_parts(self.A))


def _in_parts(array) -> Iterator[tuple[int, numpy.ndarray]]:
    """(first row, rows in float64) of the whole array, 64 MB at a time."""
    step = max(1, 2**23 // array.shape[1])
    for start in range(0, array.shape[0], step):
        stop = min(start + step, array.shape[0])
        yield start, rows_of(array, start, stop, numpy.dtype("float64"))


def open_problem(A, b):
    """A as something that can be sliced, b as a host array (m,) or (m, k)."""
    path = A if isinstance(A, PATHS) else None
    A, b = _opened("A", A), numpy.asarray(_opened("b", b))
    if len(A.shape) != 2 or b.ndim not in (1, 2) or A.shape[0] != b.shape[0]:
        raise ValueError(
            f"A is of shape {tuple(A.shape)}, b of shape {b.shape}: write (m, n), and "
            "(m,) or (m, k)"
        )
    if 0 in A.shape or 0 in b.shape:
        raise ValueError(f"A {tuple(A.shape)} or b {b.shape} is empty")
    if path is not None and A.flags.c_contiguous:
        A = FileRows(path, A)
    return A, b


def _opened(name: str, array):
    """Something of real numbers, with a shape, a dtype and rows that can be sliced."""
    if isinstance(array, PATHS):
        try:
            opened = numpy.load(array, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: {array} cannot be opened ({error})") from None
        if not isinstance(opened, numpy.memmap):
            raise ValueError(
                f"{name}: {array} is an archive: write one of its arrays, "
                "numpy.load(path)[its name]"
            )
        array = opened
    elif isinstance(array, mx.nd.NDArray):  # mx.np's are, too
        array = array.asnumpy()
    elif not hasattr(array, "dtype"):
        array = numpy.asarray(array)
    check_unmasked(name, array)
    try:
        kind = numpy.dtype(array.dtype).kind
    except TypeError:  # a dtype of another library
        kind = None
    if kind is None or hasattr(array, "toarray"):  # a sparse matrix of SciPy's
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__name__}: convert it "
            "to a NumPy array"
        )
    if kind not in "fiub":
        raise ValueError(f"{name} is of dtype {array.dtype}: write real numbers")
    return array


class FileRows:
    """Rows of an ``.npy`` file, which stays open, read when they are sliced.

    The pages of a mapping would count as this process's memory.
    """

    def __init__(self, path: str | bytes | os.PathLike, mapping: numpy.memmap) -> None:
        self.shape, self.dtype = mapping.shape, mapping.dtype
        self._begin, self._row_bytes = mapping.offset, mapping.strides[0]
        self._file, self._position = open(path, "rb"), threading.Lock()
        weakref.finalize(self, self._file.close)

    def __getitem__(self, rows: slice) -> numpy.ndarray:
        count = rows.stop - rows.start
        with self._position:
            self._file.seek(self._begin + rows.start * self._row_bytes)
            numbers = numpy.fromfile(self._file, self.dtype, count * self.shape[1])
        return numbers.reshape(count, self.shape[1])


def rows_of(A, start: int, stop: int, dtype: numpy.dtype) -> numpy.ndarray:
    """Rows start:stop of A, contiguous and of this dtype.

    Those of a memmap are copied, so that the disk is read here, beside the devices'
    work. They come from the mapping: its file may have other numbers (mode "c") or
    another name by now.
    """
    rows = A[start:stop]
    if isinstance(rows, numpy.memmap):
        return numpy.array(rows, dtype, order="C")
    return numpy.ascontiguousarray(rows, dtype=dtype)


def _wait_until_used(blocks: Iterable[Block]) -> None:
    """Wait for the work that reads these blocks, and for no other."""
    for _, *arrays in blocks:
        for array in arrays:
            mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))


def times(A: mx.nd.NDArray, x: mx.nd.NDArray, transpose: bool = False):
    """A x, or A^T x without forming A^T; x is (n, k) or (rows, k).

    Computed as (x^T A^T)^T: MXNet's BLAS is up to twice as fast with the long matrix on
    the right.
    """
    product = mx.nd.linalg.gemm2(x, A, transpose_a=True, transpose_b=not transpose)
    if x.shape[1] == 1:
        return product.reshape((-1, 1))
    return product.T
