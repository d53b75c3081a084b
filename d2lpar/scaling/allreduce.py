"""The same all-reduce in several ways; each leaves the sum in all ``data[k]``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.padding import lenet_shapes
from d2lpar.parallel import allreduce, shares
from d2lpar.records.kinds import AllReduceRecord
from d2lpar.timing import TimingError

DeviceArrays = Sequence[Sequence[np.ndarray]]
AllReduce = Callable[[DeviceArrays], None]


def book(data: DeviceArrays) -> None:
    """Sum everything on the first device, device by device, and copy the sum back."""
    for arrays in zip(*data):
        allreduce(arrays)


def tree(data: DeviceArrays) -> None:
    """Sum pairs, then pairs of pairs, and copy the sum down: 2 log2(N) rounds."""
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


def ring(data: DeviceArrays) -> None:
    """Sum the k-th of N parts of each array around a ring that ends on device k.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009). The parts are
    copies: in MXNet views of one array wait for each other.
    """
    n = len(data)
    for arrays in zip(*data):
        rows = arrays[0].shape[0]
        cuts = list(shares(rows, min(n, rows)))  # fewer rows than devices: fewer parts
        parts = [[a[cut].copy() for a in arrays] for cut in cuts]
        for hop in range(n - 1):  # part k is summed from device k + 1 on, up to k
            for k, part in enumerate(parts):
                sender, receiver = (k + 1 + hop) % n, (k + 2 + hop) % n
                total = part[receiver]
                total += part[sender].copyto(total.ctx)
        for hop in range(n - 1):
            for k, part in enumerate(parts):
                part[(k + hop) % n].copyto(part[(k + 1 + hop) % n])
        for cut, part in zip(cuts, parts):
            for array, total in zip(arrays, part):
                array[cut] = total


def kvstore(name: str) -> AllReduce:
    """Return an all-reduce by MXNet's kvstore."""
    store = mx.kv.create(name)
    initialised: set[int] = set()

    def all_reduce(data: DeviceArrays) -> None:
        for key, arrays in enumerate(zip(*data)):
            if key not in initialised:
                store.init(key, arrays[0])
                initialised.add(key)
            store.pushpull(key, list(arrays), out=list(arrays), priority=-key)

    return all_reduce


# What makes each variant.
VARIANTS: dict[str, Callable[[], AllReduce]] = {
    "book": lambda: book,
    "tree": lambda: tree,
    "ring": lambda: ring,
    "kvstore local": lambda: kvstore("local"),
    "kvstore device": lambda: kvstore("device"),
}


def time_all(
    devices: Sequence[mx.Context],
    sizes: Sequence[int],
    in_steps: tuple[str, int],
) -> Iterator[AllReduceRecord]:
    """Time and check every variant: an array of `sizes` bytes, and LeNet's gradients.

    `in_steps` is the variant and number of arrays with which a training sums them.
    """
    gradients = lenet_shapes()
    flat = [(sum(int(numpy.prod(shape)) for shape in gradients),)]
    for shapes in (*([(size // 4,)] for size in sizes), flat, gradients):
        of_gradients = shapes in (flat, gradients)
        rng = numpy.random.default_rng(0)
        host = [[rng.random(s, dtype="float32") for s in shapes] for _ in devices]
        data = [[np.zeros(s, ctx=d) for s in shapes] for d in devices]
        for name, make in VARIANTS.items():
            all_reduce, seconds = make(), []
            for _ in range(2 + 7):  # two warm up
                for arrays, values in zip(data, host):
                    for array, value in zip(arrays, values):
                        array[:] = value
                npx.waitall()
                begin = time.perf_counter()
                all_reduce(data)
                npx.waitall()
                seconds.append(time.perf_counter() - begin)
                for of_devices, values in zip(zip(*data), zip(*host)):
                    found = [array.asnumpy() for array in of_devices]
                    if not numpy.allclose(found, sum(values), 1e-5):
                        what = f"all-reduce ({name}) has not summed"
                        raise TimingError(f"{what} {values[0].shape}")
            yield AllReduceRecord(
                variant=name,
                num_arrays=len(shapes),
                num_bytes=sum(array.nbytes for array in host[0]),
                seconds=seconds[2:],
                num_devices=len(devices),
                in_steps=of_gradients and in_steps == (name, len(shapes)),
            )
