"""The rows of a least-squares problem, shared out over devices and read in blocks.

A is anything with a shape, a dtype and rows that can be sliced: a NumPy array or
memmap, the path of an ``.npy`` file, a Zarr or HDF5 array, or MXNet's. It need not fit
in memory. Each device has a run of consecutive rows; :meth:`RowShards.rounds` brings a
block of every device's rows to the devices at a time, while the next blocks are being
read.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx
from d2lpar.parallel import span
from d2lpar.workers.group import Workers

BLOCK_BYTES = 2**26  # of A, a device and a round
RESIDENT_BYTES = 2**30  # up to here A stays on the devices between rounds


class Block(NamedTuple):
    """Some rows of one device's shard, on that device."""

    k: int  # number of the device in the list
    A: mx.nd.NDArray  # (rows, n)
    b: mx.nd.NDArray  # (rows, number of right-hand sides)


class RowShards:
    """Rows of A (m, n) and b (m, k), shared out evenly and in order over devices.

    `dtype` is that of the computation, float64 or float32; `flat` says that b was (m,).
    As one of several `workers` it has, and reads, its part of the rows of A alone.
    Raises ValueError for what :func:`open_problem` refuses.
    """

    def __init__(
        self,
        A,
        b,
        devices: Sequence[mx.Context],
        dtype: str = "float64",
        block_bytes: int = BLOCK_BYTES,
        resident_bytes: int = RESIDENT_BYTES,
        workers: Workers | None = None,
    ) -> None:
        self.A, b = open_problem(A, b)
        self.b, self.flat = b.reshape(b.shape[0], -1), b.ndim == 1
        self.devices = list(devices)
        if not self.devices:
            raise ValueError("devices is empty: name one or more")
        if dtype not in ("float64", "float32", numpy.float64, numpy.float32):
            raise ValueError(f"dtype {dtype}: write float64 or float32")
        self.dtype = numpy.dtype(dtype)
        (self.m, self.n), self.num_rhs = self.A.shape, self.b.shape[1]
        self.workers = workers
        mine = slice(0, self.m)
        if workers is not None:
            if self.m < workers.count:
                raise ValueError(f"A has {self.m} rows for {workers.count} workers")
            mine = span(self.m, workers.number, workers.count)
        size, extra = divmod(mine.stop - mine.start, len(self.devices))
        rows = [size + (k < extra) for k in range(len(self.devices))]
        stops = mine.start + numpy.cumsum(rows)
        self.bounds = list(zip([mine.start, *stops[:-1]], stops))
        row_bytes = self.dtype.itemsize * self.n
        self.block_rows = max(block_bytes // row_bytes, 1)
        self.resident = sum(rows) * row_bytes <= resident_bytes
        self._kept: list[Block] | None = None

    def rounds(self) -> Iterator[Iterable[Block]]:
        """Blocks of all devices, a round at a time, until every row has come by.

        A problem that fits stays on the devices, in one block each. Of a larger one the
        next round is read while the devices work on this one, which has ended when the
        next is asked for: two blocks a device are in memory, whatever the rows. Blocks
        come in the order in which the devices can start soonest; use each at once.
        """
        if self._kept is not None:
            yield self._kept
        elif self.resident:
            self._kept = []
            yield self._keep(self._on_devices(self._read(self.bounds)))
        else:
            longest = max(stop - start for start, stop in self.bounds)
            spans = [
                [
                    (min(start + r, stop), min(start + r + self.block_rows, stop))
                    for start, stop in self.bounds
                ]
                for r in range(0, longest, self.block_rows)
            ]
            with ThreadPoolExecutor(1) as reader:
                ahead = reader.submit(self._read, spans[0])
                for following in [*spans[1:], None]:
                    host = ahead.result()
                    if following is not None:
                        ahead = reader.submit(self._read, following)
                    yield self._on_devices(host)
                    mx.nd.waitall()
                    if self.workers is not None:
                        # A pass may take longer than --timeout.
                        self.workers.report_progress()

    def _keep(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            self._kept.append(block)
            yield block

    def to_devices(self, x: numpy.ndarray) -> list[mx.nd.NDArray]:
        """A copy of the host array on every device."""
        return [mx.nd.array(x, ctx=d, dtype=self.dtype) for d in self.devices]

    def total(self, array: numpy.ndarray) -> numpy.ndarray:
        """The sum of a host array over the workers, where there are several."""
        return array if self.workers is None else self.workers.total(array)

    def residual_squares(self, x: numpy.ndarray) -> numpy.ndarray:
        """Squared residuals of the host array `x` (n, k): sums (devices, k).

        The devices are those of all workers, worker 0's first.
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
        if self.workers is None:
            return sums
        every = numpy.zeros((self.workers.count, *sums.shape))
        every[self.workers.number] = sums
        return self.total(every).reshape(-1, self.num_rhs)

    def _read(self, spans) -> list[tuple]:
        """Host blocks of the devices that have rows in this round."""
        return [
            (k, rows_of(self.A, start, stop, self.dtype),
             self.b[start:stop].astype(self.dtype))
            for k, (start, stop) in enumerate(spans)
            if stop > start
        ]  # fmt: skip

    def _on_devices(self, host: list[tuple]) -> Iterator[Block]:
        # The last device first: MXNet's copy from the host queues behind whatever
        # cpu(0) has to do, so that one must be the last to get work.
        for k, A, b in reversed(host):
            on_device = []
            for array in (A, b):
                # mx.nd.array would copy on the host, too.
                target = mx.nd.empty(array.shape, self.devices[k], self.dtype)
                target[:] = array
                on_device.append(target)
            yield Block(k, *on_device)


def times(A: mx.nd.NDArray, x: mx.nd.NDArray, transpose: bool = False):
    """A x, or A^T x without ever making A^T; x is (n, k) or (rows, k).

    Computed as (x^T A^T)^T: with the long matrix on the right MXNet's BLAS is up to
    twice as fast.
    """
    product = mx.nd.linalg.gemm2(x, A, transpose_a=True, transpose_b=not transpose)
    if x.shape[1] == 1:
        return product.reshape((-1, 1))
    return product.T


def rows_of(A, start: int, stop: int, dtype: numpy.dtype) -> numpy.ndarray:
    """Rows start:stop of A as an array of its own.

    Of a memmap they are read from its file, not through the mapping, whose pages would
    stay in memory. (Of a whole one: a part does not know where in the file it begins.)
    """
    whole = isinstance(A, numpy.memmap) and isinstance(A.base, mmap.mmap)
    if not whole or not A.flags.c_contiguous:
        return numpy.ascontiguousarray(A[start:stop], dtype=dtype)
    with open(A.filename, "rb") as f:
        f.seek(A.offset + start * A.strides[0])
        rows = numpy.fromfile(f, A.dtype, (stop - start) * A.shape[1])
    if rows.size < (stop - start) * A.shape[1]:
        raise ValueError(f"{A.filename}: ends before row {stop} of {A.shape[0]}")
    return rows.reshape(stop - start, A.shape[1]).astype(dtype, copy=False)


def open_problem(A, b):
    """A as something that can be sliced, b as a host array (m,) or (m, k).

    Raises ValueError, naming what is wrong, for arrays that are empty, not real
    numbers, not of matching shapes, or shorter on disk than they claim.
    """
    A, b = _open(A, "A"), numpy.asarray(_open(b, "b"))
    for name, array in (("A", A), ("b", b)):
        dtype = numpy.dtype(array.dtype)
        if dtype.kind not in "fiub":
            raise ValueError(f"{name} is of dtype {dtype}: write real numbers")
    if len(A.shape) != 2:
        raise ValueError(f"A is of shape {tuple(A.shape)}: write a matrix (m, n)")
    if 0 in A.shape or 0 in b.shape:
        raise ValueError(f"A {tuple(A.shape)} or b {tuple(b.shape)} is empty")
    if b.ndim not in (1, 2) or b.shape[0] != A.shape[0]:
        turned = b.ndim == 2 and b.shape[1] == A.shape[0]
        raise ValueError(
            f"b is of shape {b.shape}, A of shape {tuple(A.shape)}: b needs "
            f"{A.shape[0]} rows" + (", as b.T has" if turned else "")
        )
    return A, b


def _open(array, name: str):
    if isinstance(array, (str, Path)):
        try:
            return numpy.load(array, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: {array} cannot be opened ({error})") from None
    if isinstance(array, mx.nd.NDArray):  # mx.np's are, too
        return array.asnumpy()
    if not hasattr(array, "dtype"):
        return numpy.asarray(array)
    if isinstance(array, numpy.memmap):
        _check_file_is_whole(array, name)
    return array


def _check_file_is_whole(array: numpy.memmap, name: str) -> None:
    """Raise ValueError for a mapping that goes on where its file has ended.

    To touch what lies beyond does not raise: it kills the process.
    """
    mapping = array
    while isinstance(mapping, numpy.ndarray):
        mapping = mapping.base
    if not isinstance(mapping, mmap.mmap):
        return  # a copy of a part, in memory
    begins = array.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    needed = begins + len(mapping)
    if mapping.size() < needed:
        raise ValueError(
            f"{name}: {array.filename} is {mapping.size()} bytes long, not {needed}: "
            "truncated, or not all written yet"
        )


def find_not_finite(shards: RowShards) -> str:
    """Where the first NaN or infinity of A or b is, for a message."""
    for name, width in (("A", shards.n), ("b", shards.num_rhs)):
        step = max(1, BLOCK_BYTES // (8 * width))
        for start in range(0, shards.m, step):
            stop = min(start + step, shards.m)
            source = shards.A if name == "A" else shards.b
            rows = rows_of(source, start, stop, numpy.dtype("float64"))
            bad = numpy.argwhere(~numpy.isfinite(rows))
            if len(bad):
                row, column = bad[0]
                value = rows[row, column]
                return f"{name} is {value} in row {start + row}, column {column}"
    return "A or b is too large: their products overflow"
