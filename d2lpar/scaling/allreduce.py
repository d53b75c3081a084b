"""The same all-reduce in several ways, of one array per device, in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy

from d2lpar._mxnet import mx, np, npx
from d2lpar.padding import lenet_shapes
from d2lpar.parallel import allreduce, shares, sum_in_tree
from d2lpar.records.kinds import AllReduceRecord
from d2lpar.timing import TimingError

AllReduce = Callable[[Sequence[np.ndarray]], None]


def ring(data: Sequence[np.ndarray]) -> None:
    """Sum the k-th of N parts around a ring that ends on device k.

    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009). The parts are
    copies: in MXNet views of one array wait for each other.
    """
    n, rows = len(data), data[0].shape[0]
    cuts = list(shares(rows, min(n, rows)))  # fewer rows than devices: fewer parts
    parts = [[array[cut].copy() for array in data] for cut in cuts]
    for hop in range(n - 1):  # part k is summed from device k + 1 on, up to k
        for k, part in enumerate(parts):
            sender, receiver = (k + 1 + hop) % n, (k + 2 + hop) % n
            total = part[receiver]
            total += part[sender].copyto(total.ctx)
    for hop in range(n - 1):
        for k, part in enumerate(parts):
            part[(k + hop) % n].copyto(part[(k + 1 + hop) % n])
    for cut, part in zip(cuts, parts):
        for array, total in zip(data, part):
            array[cut] = total


def kvstore(name: str) -> AllReduce:
    """Return an all-reduce by MXNet's kvstore, which knows an array by its key."""
    store = mx.kv.create(name)
    firsts: list[np.ndarray] = []  # of each key; kept, so that none is another's

    def all_reduce(data: Sequence[np.ndarray]) -> None:
        key = next((k for k, a in enumerate(firsts) if a is data[0]), len(firsts))
        if key == len(firsts):
            store.init(key, data[0])
            firsts.append(data[0])
        store.pushpull(key, data, out=data, priority=-key)

    return all_reduce


# What makes each variant: "book" sums on the first device, one by one.
VARIANTS: dict[str, Callable[[], AllReduce]] = {
    "book": lambda: allreduce,
    "tree": lambda: sum_in_tree,
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
        host = [rng.random((len(devices), *s), dtype="float32") for s in shapes]
        data = [[np.zeros(s, ctx=d) for d in devices] for s in shapes]
        for name, make in VARIANTS.items():
            all_reduce, seconds = make(), []
            for _ in range(2 + 7):  # two warm up
                for arrays, values in zip(data, host):
                    for array, value in zip(arrays, values):
                        array[:] = value
                npx.waitall()
                begin = time.perf_counter()
                for arrays in data:
                    all_reduce(arrays)
                npx.waitall()
                seconds.append(time.perf_counter() - begin)
                for arrays, values in zip(data, host):
                    found = [array.asnumpy() for array in arrays]
                    if not numpy.allclose(found, values.sum(axis=0), 1e-5):
                        raise TimingError(f"all-reduce ({name}) has not summed")
            yield AllReduceRecord(
                variant=name,
                num_arrays=len(shapes),
                num_bytes=sum(arrays[0].nbytes for arrays in host),
                seconds=seconds[2:],
                num_devices=len(devices),
                in_steps=of_gradients and in_steps == (name, len(shapes)),
            )
