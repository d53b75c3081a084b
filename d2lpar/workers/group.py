"""One worker: its part of each batch, and sums. Source: d2l, "Parameter Servers"."""

from __future__ import annotations

import hashlib

import numpy

from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import SettingError
from d2lpar.parallel import shares

FIRST_OWN_KEY = 1_000_000  # the gradients have the numbers of their parameters


class Workers:
    """Connect this worker to the others; wait until all of them are connected."""

    def __init__(self) -> None:
        self.kvstore = mx.kv.create("dist_sync")
        self.number, self.count = self.kvstore.rank, self.kvstore.num_workers
        self._keys: set[int] = set()  # that the server knows

    def part(self, batch: slice) -> slice:
        """Return this worker's part of a batch, which may be empty."""
        mine = shares(batch.stop - batch.start, self.count)[self.number]
        return slice(batch.start + mine.start, batch.start + mine.stop)

    def sum(self, key: int, values: list) -> None:
        """Replace the arrays of one shape by the sum of them and all other workers'."""
        if key not in self._keys:
            self._keys.add(key)
            self.kvstore.init(key, np.zeros_like(values[0]))
        self.kvstore.pushpull(key, values, out=values)

    def total(self, numbers: list[float]) -> list[float]:
        """Return the sums of all workers' numbers, in float32."""
        value = np.array(numbers, dtype="float32")
        self.sum(FIRST_OWN_KEY + len(numbers), [value])
        return value.asnumpy().tolist()

    def check_same(self, facts: str) -> None:
        """Raise :class:`SettingError` unless all workers have the same facts."""
        digest = hashlib.sha256(facts.encode()).digest()
        mine = numpy.frombuffer(digest, numpy.uint16)  # whose sums are exact
        if self.total(mine.tolist()) != (self.count * mine.astype(float)).tolist():
            raise SettingError(
                "the workers differ in their versions, data, seed or settings: give "
                "all the same (a worker without the data takes the sample; --data)"
            )

    def leave(self) -> None:
        """Wait for the other workers, and tell the server that this one is done."""
        handle, self.kvstore.handle = self.kvstore.handle, None
        mx.base.check_call(mx.base._LIB.MXKVStoreFree(handle))


class Trainer(gluon.Trainer):
    """Sum the gradients of all workers' devices on the server; update by SGD here.

    All workers begin with the same parameters. None is broadcast, because MXNet may
    let a gradient overtake a parameter.
    """

    def __init__(self, params: dict, lr: float, workers: Workers) -> None:
        super().__init__(params, "sgd", {"learning_rate": lr}, kvstore=None)
        self.workers = workers

    def _allreduce_grads(self) -> None:  # of Gluon's step, and of its allreduce_grads
        for key, parameter in enumerate(self._params):
            self.workers.sum(key, parameter.list_grad())
