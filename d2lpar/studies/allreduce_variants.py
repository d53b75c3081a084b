"""All-reduce in several ways, the same sum: the book's, tree, ring, MXNet's kvstores.

A variant is a function of arrays that leaves the sum over the devices in all of them:
``data[k]`` is the list of device k's arrays. The book's is what this package trains
with from scratch, :func:`d2lpar.parallel.allreduce`, and "kvstore local" what Gluon's
trainer takes; the others are here to be compared. Words from MPI and Horovod.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx, np
from d2lpar.networks import SHAPES
from d2lpar.parallel import allreduce
from d2lpar.records.kinds import AllReduceRecord

Arrays = Sequence[Sequence[np.ndarray]]
KVSTORES = ("local", "device", "nccl")


def book(data: Arrays) -> None:
    """The seed's: everything to the first device, one after the other, and back."""
    for arrays in zip(*data):
        allreduce(arrays)


def tree(data: Arrays) -> None:
    """Sum pairs, then pairs of pairs, and hand the sum down the same way.

    As many bytes in all as the book's, in 2 log2(N) rounds of transfers side by side.
    """
    n, rounds, step = len(data), [], 1
    while step < n:
        rounds.append([(i, i + step) for i in range(0, n - step, 2 * step)])
        step *= 2
    for arrays in zip(*data):
        for pairs in rounds:
            for i, j in pairs:
                total = arrays[i]
                total += arrays[j].copyto(total.ctx)  # in place
        for pairs in reversed(rounds):
            for i, j in pairs:
                arrays[i].copyto(arrays[j])


def ring(data: Arrays) -> None:
    """Every device sums its own N-th of each array, which goes round in a ring.

    A device sends and receives 2 (N - 1) / N of the bytes, whatever N is: the least
    that is possible (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms",
    2009). Parts are cut along the first axis.
    """
    n = len(data)
    for arrays in zip(*data):
        edges = [arrays[0].shape[0] * k // n for k in range(n + 1)]
        parts = [
            [array[a:b] for array in arrays]  # views of the arrays' own memory
            for a, b in zip(edges, edges[1:])
            if a < b
        ]
        for hop in range(n - 1):  # part k is summed from device k + 1 on, up to k
            for k, part in enumerate(parts):
                sender, receiver = (k + 1 + hop) % n, (k + 2 + hop) % n
                total = part[receiver]
                total += part[sender].copyto(total.ctx)
        for hop in range(n - 1):
            for k, part in enumerate(parts):
                part[(k + hop) % n].copyto(part[(k + 1 + hop) % n])


def kvstore(name: str) -> Callable[[Arrays], None]:
    """MXNet's kvstore of that name: the arrays are pushed, and the sums pulled.

    Each call gives a new function, for arrays of the same shapes every time. Raises
    MXNetError where the build has no such kvstore: "nccl" is for GPUs.
    """
    store = mx.kv.create(name)
    started: set[int] = set()

    def reduce(data: Arrays) -> None:
        for key, arrays in enumerate(zip(*data)):
            if key not in started:
                store.init(key, arrays[0])
                started.add(key)
            store.pushpull(key, list(arrays), out=list(arrays), priority=-key)

    return reduce


def variants() -> dict[str, Callable[[], Callable[[Arrays], None]]]:
    """By name, what makes each variant anew; that of a kvstore may raise MXNetError."""
    stores = {f"kvstore {name}": partial(kvstore, name) for name in KVSTORES}
    return {"book": lambda: book, "tree": lambda: tree, "ring": lambda: ring, **stores}


def measure(
    devices: Sequence[mx.Context],
    sizes: Sequence[int] = (2**12, 2**16, 2**20, 2**24),
    repeats: int = 7,
) -> Iterator[AllReduceRecord]:
    """Time every variant: one array of each of `sizes`, in bytes; LeNet's gradients.

    These are taken as the 8 arrays that they are, and as one flat array. Every result
    is checked against NumPy's sum, in every repetition.
    """
    gradients = [tuple(shape) for shape in SHAPES]
    flat = [(sum(int(numpy.prod(shape)) for shape in gradients),)]
    for shapes in ([(size // 4,)] for size in sizes):
        yield from _each_variant(devices, shapes, repeats)
    yield from _each_variant(devices, flat, repeats)
    yield from _each_variant(devices, gradients, repeats)


def _each_variant(
    devices: Sequence[mx.Context], shapes: Sequence[tuple], repeats: int
) -> Iterator[AllReduceRecord]:
    rng = numpy.random.default_rng(0)
    host = [[rng.random(shape, dtype="float32") for shape in shapes] for _ in devices]
    total = [sum(arrays[1:], start=arrays[0]) for arrays in zip(*host)]
    expected = numpy.concatenate([array.ravel() for array in total])
    num_bytes = 4 * len(expected)
    source = [
        [np.array(array, ctx=device) for array in arrays]
        for arrays, device in zip(host, devices)
    ]
    data = [[array.copy() for array in arrays] for arrays in source]

    def refill() -> None:
        for arrays, originals in zip(data, source):
            for array, original in zip(arrays, originals):
                original.copyto(array)

    for name, make in variants().items():
        common = (name, len(shapes), num_bytes)
        try:
            reduce = make()
        except mx.base.MXNetError as error:
            reason = str(error).strip().splitlines()[-1].strip()
            yield AllReduceRecord(*common, why_not=f"MXNet: {reason}")
            continue

        def call(device: mx.Context, reduce=reduce):
            if device == devices[0]:
                reduce(data)
            return _Flat(data[devices.index(device)])

        measured = timing.measure(
            call,
            devices,
            repeats=repeats,
            expected=numpy.stack([expected] * len(devices)),
            join=numpy.stack,  # every device's sums, each the same
            before=refill,
            name=f"all-reduce ({name}) of {num_bytes:,} bytes",
        )
        yield AllReduceRecord(*common, seconds=list(measured.seconds))


class _Flat:
    """A device's arrays, read as one only when the clocks have been."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = arrays

    def asnumpy(self) -> numpy.ndarray:
        return numpy.concatenate([array.asnumpy().ravel() for array in self.arrays])
