"""The rows of A and b: shared over devices, read in blocks, scaled, and measured.

A is anything with a shape, a dtype and rows that can be sliced: a NumPy array or
memmap, the path of an ``.npy`` file, a Zarr or HDF5 array, or MXNet's. It need not fit
in memory: :meth:`RowShards.rounds` brings one block of rows at a time to every device,
while the next blocks are being read.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx, npx
from d2lpar.parallel import shares
from d2lpar.records.kinds import PointRecord
from d2lpar.training import check_whole
from d2lpar.workers.group import Workers

BLOCK_BYTES = 2**26  # of A, per device and round
RESIDENT_BYTES = 2**30  # up to this size A stays on the devices between rounds
# Numbers between 2^-limit and 2^limit need no scaling: products of four of them, summed
# over many rows, stay far from the limits of the dtype.
SCALED_BEYOND = {"float64": 100, "float32": 13}


class Block(NamedTuple):
    """Some rows of one device's shard, on that device."""

    k: int  # number of the device in the list
    A: mx.nd.NDArray  # (rows, n)
    b: mx.nd.NDArray  # (rows, number of right-hand sides)


class RowShards:
    """Rows of A (m, n) and b (m, k), shared evenly and in order over devices.

    `dtype` is that of the computation, float64 or float32; `flat` tells that b was
    (m,). Each of several `workers` reads its own part of the rows of A alone.

    Squares of 1e200 overflow float64, those of 1e20 float32. So blocks hold A and b
    divided by powers of two, which is exact, if their numbers are very large or small;
    ordinary numbers stay as they are. Methods solve the scaled problem, and
    :meth:`unscaled` makes the result an x of the problem given. Without `scale_A` the
    method sees from its own products whether A is ordinary, and asks :meth:`rescaled`.
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
        scale_A: bool = True,
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

        self._mine = mine
        self.A_power = self._powers(self._size_of_A())[0] if scale_A else numpy.int32(0)
        self.b_powers = self._powers(*abs(self.b.astype("float64")).max(axis=0))
        self._scaled_b = _divided(self.b, self.b_powers, self.dtype)

    def _size_of_A(self) -> float:
        """The largest absolute value in A, of this worker's rows.

        Of an A on disk the first rows that are not zero must do. If later ones are so
        much larger that their products overflow, check_finite says so.
        """
        size, in_memory = 0.0, type(self.A) is numpy.ndarray
        for start in range(self._mine.start, self._mine.stop, self.block_rows):
            if in_memory or size == 0:
                stop = min(start + self.block_rows, self._mine.stop)
                rows = rows_of(self.A, start, stop, self.A.dtype)
                size = max(size, float(rows.max()), -float(rows.min()))
        return size

    def _powers(self, *sizes: float) -> numpy.ndarray:
        """Powers of two to divide numbers of these sizes by: 0 if they are ordinary."""
        of_all = self._of_every_worker(numpy.array([sizes])).max(axis=0)
        powers = numpy.frexp(of_all)[1]
        is_ordinary = abs(powers) <= SCALED_BEYOND[self.dtype.name]
        powers[is_ordinary | ~numpy.isfinite(of_all)] = 0
        return powers

    def rescaled(self, lengths: numpy.ndarray) -> bool:
        """Whether A had to be scaled: then what has been computed of it is void.

        `lengths` are those of A's columns (n,), of all workers. No number of A is
        larger than the longest column is long: ordinary lengths save a pass over A.
        """
        with numpy.errstate(divide="ignore"):
            is_ordinary = (
                abs(numpy.log2(lengths.max())) <= SCALED_BEYOND[self.dtype.name]
            )
        if self.A_power or is_ordinary:
            return False
        self.A_power = self._powers(self._size_of_A())[0]
        if self.A_power:
            self._kept = []  # the unscaled blocks
        return bool(self.A_power)

    def shaped(self, name: str, x) -> numpy.ndarray:
        """An x that a user gives, as (n, k) float64; None is 0."""
        shape = (self.n, self.num_rhs)
        x = numpy.zeros(shape) if x is None else numpy.array(x, "float64")
        if x.size != self.n * self.num_rhs or not numpy.isfinite(x).all():
            raise ValueError(
                f"{name} of shape {x.shape}: write {shape[0]} x {shape[1]} finite "
                "numbers"
            )
        return x.reshape(shape)

    def starting_point(self, x0) -> numpy.ndarray:
        """`x0` as one of the scaled problem; None is 0."""
        return numpy.ldexp(self.shaped("x0", x0), self.A_power - self.b_powers)

    def unscaled(self, x: numpy.ndarray) -> numpy.ndarray:
        """A solution (n, k) of the scaled problem as one of the problem given."""
        with numpy.errstate(over="ignore", under="ignore"):
            result = numpy.ldexp(x.astype("float64"), self.b_powers - self.A_power)
            result = result.astype(self.dtype)
        largest = abs(result).max(axis=0)
        vanished = (largest < numpy.finfo(self.dtype).tiny) & x.any(axis=0)
        if vanished.any() or not numpy.isfinite(largest).all():
            size = "small" if vanished.any() else "large"
            raise ValueError(f"x is too {size} for {self.dtype}: scale A or b")
        return result

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
                if self.workers is not None:  # a pass may take longer than --timeout
                    self.workers.report_progress()

    def _read(self, row: int, count: int) -> list[tuple]:
        """Up to `count` rows of each shard from its `row`, on the host: (k, A, b)."""
        dtype = numpy.dtype("float64") if self.A_power else self.dtype
        blocks = []
        for k, (first, end) in enumerate(self.bounds):
            start, stop = first + row, min(first + row + count, end)
            if stop > start:
                with numpy.errstate(over="ignore"):  # rescaled and check_finite see it
                    A = rows_of(self.A, start, stop, dtype)
                A = _divided(A, self.A_power, self.dtype)
                blocks.append((k, A, self._scaled_b[start:stop]))
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

    def norms_of_b(self) -> numpy.ndarray:
        """||b|| (k,) of the problem given, also of numbers whose squares overflow."""
        scaled = _divided(self.b, self.b_powers, numpy.dtype("float64"))
        with numpy.errstate(over="ignore"):
            return numpy.ldexp(numpy.linalg.norm(scaled, axis=0), self.b_powers)

    def residual_norms(self, x: numpy.ndarray) -> numpy.ndarray:
        """||A x - b|| (devices, k) of each device's rows, of the problem given.

        `x` (n, k) is of the scaled problem; the devices are those of all workers.
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
        with numpy.errstate(over="ignore"):
            return numpy.ldexp(numpy.sqrt(self._of_every_worker(sums)), self.b_powers)

    def _of_every_worker(self, rows: numpy.ndarray) -> numpy.ndarray:
        """The rows of all workers' arrays (r, width) as (workers * r, width)."""
        if self.workers is None or self.workers.count == 1:
            return rows
        every = numpy.zeros((self.workers.count, *rows.shape))
        every[self.workers.number] = rows
        return self.total(every).reshape(-1, rows.shape[1])

    def residual_norm(self, x: numpy.ndarray) -> float:
        """||A x - b|| over all rows and right-hand sides, as :meth:`residual_norms`."""
        return frobenius_norm(self.residual_norms(x))

    def check_finite(self, *results: numpy.ndarray) -> None:
        """Raise ValueError if results of A and b are not finite, saying why."""
        if all(numpy.isfinite(result).all() for result in results):
            return
        for name, array in (("A", self.A), ("b", self.b)):
            step = max(1, 2**23 // array.shape[1])  # 64 MB at a time
            for start in range(0, self.m, step):
                stop = min(start + step, self.m)
                rows = rows_of(array, start, stop, numpy.dtype("float64"))
                for row, column in numpy.argwhere(~numpy.isfinite(rows)):
                    raise ValueError(
                        f"{name} is {rows[row, column]} in row {start + row}, "
                        f"column {column}"
                    )
        raise ValueError("A, b or x0 is too large: their products overflow")


def open_problem(A, b):
    """A as something that can be sliced, b as a host array (m,) or (m, k)."""
    opened = []
    for name, array in (("A", A), ("b", b)):
        if isinstance(array, (str, Path)):
            try:
                array = numpy.load(array, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"{name}: {array} cannot be opened ({error})"
                ) from None
        elif isinstance(array, mx.nd.NDArray):  # mx.np's are, too
            array = array.asnumpy()
        elif not hasattr(array, "dtype"):
            array = numpy.asarray(array)
        if numpy.dtype(array.dtype).kind not in "fiub":
            raise ValueError(f"{name} is of dtype {array.dtype}: write real numbers")
        opened.append(array)
    A, b = opened[0], numpy.asarray(opened[1])
    if len(A.shape) != 2 or b.ndim not in (1, 2) or A.shape[0] != b.shape[0]:
        raise ValueError(
            f"A is of shape {tuple(A.shape)}, b of shape {b.shape}: write (m, n), and "
            "(m,) or (m, k)"
        )
    if 0 in A.shape or 0 in b.shape:
        raise ValueError(f"A {tuple(A.shape)} or b {b.shape} is empty")
    return A, b


def rows_of(A, start: int, stop: int, dtype: numpy.dtype) -> numpy.ndarray:
    """Rows start:stop of A as an array of their own.

    Those of a whole memmap are read from its file, because the pages of a mapping would
    stay in memory. (A part of a memmap does not know where in the file it begins.)
    """
    whole = isinstance(A, numpy.memmap) and isinstance(A.base, mmap.mmap)
    if not whole or not A.flags.c_contiguous:
        return numpy.ascontiguousarray(A[start:stop], dtype=dtype)
    with open(A.filename, "rb") as f:
        f.seek(A.offset + start * A.strides[0])
        rows = numpy.fromfile(f, A.dtype, (stop - start) * A.shape[1])
    return rows.reshape(stop - start, A.shape[1]).astype(dtype, copy=False)


def _divided(array: numpy.ndarray, power, dtype: numpy.dtype) -> numpy.ndarray:
    """The array divided by 2^power (one power, or one per column), in a dtype."""
    if numpy.any(power):
        array = numpy.ldexp(array.astype("float64", copy=False), -power)
    return array.astype(dtype, copy=False)


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


class Answer(NamedTuple):
    """A method's x (n, k) on the host; for condition and rank see ``Solution``."""

    x: numpy.ndarray
    condition: float | None = None
    rank: int | None = None


class Progress:
    """The history of a run, with a timer that stops while residuals are computed."""

    def __init__(
        self, shards: RowShards, reference=None, *, residual: bool = True
    ) -> None:
        self.shards, self.reference, self.residual = shards, None, residual
        if reference is not None:
            self.reference = shards.shaped("reference", reference)
        self.history: list[PointRecord] = []
        self.seconds = 0.0
        self.column_norms = numpy.empty(0)  # (k,), of the last residual
        self._begin = time.perf_counter()

    def record(self, iteration: int, x: numpy.ndarray, device_xs=None) -> None:
        """Add the host array `x` (n, k), of the scaled problem, to the history.

        `device_xs` are the devices' own (n, k), if they differ. Norms are Frobenius
        norms over all right-hand sides; the distance to a reference of 0 is ||x||.
        Without `residual` there is no history, and no pass over A for it.
        """
        npx.waitall()
        self.seconds += time.perf_counter() - self._begin
        if not self.residual:
            self.column_norms = numpy.full(self.shards.num_rhs, numpy.nan)
            self._begin = time.perf_counter()
            return
        norms = self.shards.residual_norms(x)
        self.column_norms = numpy.hypot.reduce(norms, axis=0)
        per_device = numpy.hypot.reduce(norms, axis=1)
        if device_xs is not None:
            per_device = [self.shards.residual_norm(x_k) for x_k in device_xs]
        distance = None
        if self.reference is not None:
            off = self.shards.unscaled(x).astype("float64") - self.reference
            distance = frobenius_norm(off) / (frobenius_norm(self.reference) or 1)
        self.history.append(
            PointRecord(
                iteration=iteration,
                seconds=self.seconds,
                residual_norm=frobenius_norm(self.column_norms),
                device_residual_norms=[float(norm) for norm in per_device],
                distance=distance,
            )
        )
        npx.waitall()
        self._begin = time.perf_counter()


def frobenius_norm(array: numpy.ndarray) -> float:
    """The Frobenius norm, also of numbers whose squares over- or underflow."""
    return float(numpy.hypot.reduce(numpy.ravel(array)))
