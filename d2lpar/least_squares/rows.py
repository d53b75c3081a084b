"""The rows of a least-squares problem, shared over devices and read in blocks.

Each device has a range of consecutive rows. :meth:`RowShards.rounds` brings one block
of rows at a time to every device, while the next blocks are being read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.checks import check_count, check_count_or_0
from d2lpar.least_squares.problem import find_not_finite, open_problem, rows_of
from d2lpar.least_squares.scaling import Scale, largest
from d2lpar.memory.estimate import SPARE
from d2lpar.memory.free import free_memory
from d2lpar.shards import shares
from d2lpar.workers.group import Workers

BLOCK_BYTES = 2**26  # of A, per device and round
RESIDENT_BYTES = 2**30  # up to this size A stays on the devices between rounds
# The matrices (n, n + k) for which a GPU keeps room beside A: what tsqr takes.
WORK_MATRICES = 10


class Block(NamedTuple):
    """Some rows of one device's shard, on that device."""

    k: int  # number of the device in the list
    A: mx.nd.NDArray  # (rows, n)
    b: mx.nd.NDArray  # (rows, number of right-hand sides)


class RowShards:
    """Rows of A (m, n) and b (m, k), shared evenly and in order over devices.

    `dtype` is that of the computation, float64 or float32; `flat` tells that b was
    (m,). One of several `workers` has, and reads, its own part of the rows of A alone.
    Blocks are scaled, where A or b needs it: `scale` says how, once the first round has
    begun. Raises ValueError for what
    :func:`~d2lpar.least_squares.problem.open_problem` refuses.
    """

    def __init__(
        self,
        A,
        b,
        devices: Sequence[mx.Context],
        *,
        dtype: str = "float64",
        block_bytes: int = BLOCK_BYTES,
        resident_bytes: int | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.A, b = open_problem(A, b)
        self.b, self.flat = b.reshape(b.shape[0], -1), b.ndim == 1
        (self.m, self.n), self.num_rhs = self.A.shape, self.b.shape[1]
        if not devices:
            raise ValueError("devices is empty: name one or more")
        check_count("block_bytes", block_bytes)
        if resident_bytes is not None:
            check_count_or_0("resident_bytes", resident_bytes)
        if dtype not in ("float64", "float32", numpy.float64, numpy.float32):
            raise ValueError(f"dtype {dtype}: write float64 or float32")
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
        self._kept: list[list[Block]] = []  # the first rounds, if they stay
        self._room = 0
        size = num_rows * row_bytes
        if resident_bytes is None and size > RESIDENT_BYTES:
            self._room = self._room_on_gpus()
            longest = max(stop - start for start, stop in self.bounds)
            self.resident = longest <= self._room
        else:
            limit = RESIDENT_BYTES if resident_bytes is None else resident_bytes
            self.resident = size <= limit
        self.scale: Scale | None = None

    def _room_on_gpus(self) -> int:
        """How many rows may stay on each GPU beyond RESIDENT_BYTES; 0 on CPU contexts.

        What is free on the fullest GPU, less a fifth, less what the methods themselves
        need there. Raises :class:`~d2lpar.errors.DeviceError` if NVML does not know.
        """
        if self.devices[0].device_type == "cpu":
            return 0
        free = min(free_memory(self.devices, running=True))
        row = self.dtype.itemsize * (self.n + self.num_rhs)
        work = WORK_MATRICES * self.n * row + 2 * self.block_rows * row
        return max(0, int((1 - SPARE) * free - work) // row)

    def starting_point(self, x0: numpy.ndarray | None) -> numpy.ndarray:
        """`x0` as (n, k) float64, scaled; None is 0. Call it after the first round.

        Raises ValueError for another size, or for numbers that are not finite.
        """
        size = (self.n, self.num_rhs)
        try:
            x0 = numpy.zeros(size) if x0 is None else numpy.array(x0, float)
        except (TypeError, ValueError):
            raise ValueError(
                f"x0 {x0!r}: write {size[0]} x {size[1]} finite numbers"
            ) from None
        if x0.size != numpy.prod(size) or not numpy.isfinite(x0).all():
            raise ValueError(
                f"x0 is of shape {x0.shape} with {numpy.isfinite(x0).sum()} finite "
                f"numbers: write {size[0]} x {size[1]} finite numbers"
            )
        return self.scale.fit_x(x0.reshape(size))

    def rounds(self) -> Iterator[Iterable[Block]]:
        """Blocks of all devices, one round at a time, until every row has been used.

        A problem that fits stays on the devices, in one block each. Of a larger one the
        first rounds stay on GPUs that have room; of the others the next round is read
        while the devices work on this one. On CPU contexts that work has ended when the
        next round is asked for; on GPUs it may go on while the next blocks are copied.
        So two blocks per device are in memory besides, however many rows there are.
        Blocks come in the order in which the devices can start soonest; use each at
        once.
        """
        step = self.m if self.resident else self.block_rows
        kept = len(self._kept)
        yield from self._kept
        starts = range(0, max(stop - start for start, stop in self.bounds), step)[kept:]
        if starts:
            yield from self._rounds_read_ahead(starts)

    def _rounds_read_ahead(self, starts: range) -> Iterator[Iterable[Block]]:
        step, earlier = starts.step, []
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self._read, starts[0], step)
            for row in starts:
                host, blocks = self._scaled(ahead.result()), []
                ahead = reader.submit(self._read, row + step, step)
                yield self._on_devices(host, blocks)
                if self.resident or row + step <= self._room:
                    self._kept.append(blocks)
                if self._overlaps:
                    _wait_until_used(earlier)
                    earlier = blocks
                else:
                    mx.nd.waitall()
                host = blocks = None  # free before the next ones are waited for
                if self.workers is not None:  # a pass may take longer than --timeout
                    self.workers.report_progress()

    @property
    def _overlaps(self) -> bool:
        """Whether devices work on a round while the next one is copied to them."""
        return self.devices[0].device_type == "gpu"

    def _read(self, row: int, count: int) -> list[tuple]:
        """Up to `count` rows of each shard from its `row`, on the host: (k, A, b).

        A is scaled, and of the computation's dtype, once the scale is known.
        """
        # Until then, keep what float32 cannot hold.
        narrow = numpy.result_type(self.A.dtype, self.dtype) == self.dtype
        wide = self.dtype if narrow else numpy.dtype("float64")
        blocks = []
        for k, (first, end) in enumerate(self.bounds):
            start, stop = first + row, min(first + row + count, end)
            if stop > start:
                A = rows_of(self.A, start, stop, wide)
                A = A if self.scale is None else self.scale.fit_A(A)
                blocks.append((k, A, self.b[start:stop]))
        return blocks

    def _scaled(self, host: list[tuple]) -> list[tuple]:
        """What was read, scaled. The first round decides on the scale.

        That is by b, and by the first rows of A that are not all zero. Where others are
        so much larger that their products overflow, :meth:`check_finite` says so.
        """
        if self.scale is None:
            size = largest(A for _, A, _ in host)
            more, row = host, self.block_rows
            while size == 0 and more and not self.resident:
                more = self._read(row, self.block_rows)
                size, row = largest(A for _, A, _ in more), row + self.block_rows
            b = self.b[self.bounds[0][0] : self.bounds[-1][1]].astype("float64")
            sizes = numpy.array([[size, *abs(b).max(axis=0)]])
            size, *b_sizes = self._of_every_worker(sizes).max(axis=0)
            self.scale = Scale.choose(size, b_sizes, self.dtype)
            host = [(k, self.scale.fit_A(A), b) for k, A, b in host]
        return [(k, A, self.scale.fit_b(b)) for k, A, b in host]

    def _on_devices(self, host: list[tuple], made: list[Block]) -> Iterator[Block]:
        """The blocks on their devices, one by one; each is also added to `made`."""
        # MXNet's copy from the host queues behind all work of cpu(0): that device must
        # be the last to get work.
        for k, *arrays in reversed(host):
            made.append(Block(k, *(_on_device(a, self.devices[k]) for a in arrays)))
            yield made[-1]

    def unscaled(self, x: numpy.ndarray) -> numpy.ndarray:
        """A solution (n, k) of the scaled problem as one of the problem given."""
        assert self.scale is not None  # the first round has set it
        return self.scale.x(x)

    def to_devices(self, x: numpy.ndarray) -> list[mx.nd.NDArray]:
        """A copy of the host array on every device."""
        return [mx.nd.array(x, ctx=d, dtype=self.dtype) for d in self.devices]

    def total(self, array: numpy.ndarray) -> numpy.ndarray:
        """The sum of a host array over the workers, if there are several."""
        return array if self.workers is None else self.workers.total(array)

    def residual_squares(self, x: numpy.ndarray) -> numpy.ndarray:
        """Sums (devices, k) of squared residuals of the host array `x` (n, k), scaled.

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
        return self._of_every_worker(sums)

    def _of_every_worker(self, rows: numpy.ndarray) -> numpy.ndarray:
        """The rows of all workers' arrays (r, width) as (workers * r, width)."""
        if self.workers is None or self.workers.count == 1:
            return rows
        every = numpy.zeros((self.workers.count, *rows.shape))
        every[self.workers.number] = rows
        return self.total(every).reshape(-1, rows.shape[1])

    def check_finite(
        self,
        *results: numpy.ndarray,
        otherwise: str = "A or b is too large: their products overflow",
    ) -> None:
        """Raise ValueError if results of A and b are not finite, saying why.

        A and b are searched only then; `otherwise` is the reason if both are finite.
        """
        if not all(numpy.isfinite(result).all() for result in results):
            raise ValueError(find_not_finite(self.A, self.b) or otherwise)


def _on_device(array: numpy.ndarray, device: mx.Context) -> mx.nd.NDArray:
    """A host array on a device; cpu(0) reads it where it is."""
    if device == mx.cpu(0) and array.flags.c_contiguous:
        # A view, because MXNet makes what it is given read-only.
        return mx.nd.from_numpy(array.view(), zero_copy=True)
    # mx.nd.array would make another copy on the host.
    target = mx.nd.empty(array.shape, device, array.dtype)
    target[:] = array
    return target


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
