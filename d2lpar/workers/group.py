"""One worker among the others: its part of the work, and what all sum together.

All workers go through the same seeded sequence of global batches. Each takes its
contiguous part, splits it over its devices, and the servers sum what the workers push.
Every worker makes the same number of steps: one that has no sample in a last partial
batch contributes zeros. All communication is MXNet's own ``kvstore("dist_sync")``.

Source: the book (d2l), "Parameter Servers".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import numpy

from d2lpar._mxnet import gluon, np
from d2lpar.errors import SettingError
from d2lpar.shards import shares
from d2lpar.workers.kvstore import DistributedKVStore
from d2lpar.workers.place import NODE, Place, node_number

log = logging.getLogger("d2lpar")

FIRST_OWN_KEY = 1_000_000  # Gluon's trainer numbers its parameters from 0


class Workers:
    """This worker, connected to the others; creating it waits until all are there.

    `on_step` is called at every step: the launcher is told that the worker progresses.
    """

    def __init__(
        self, place: Place, on_step: Callable[[], object] = lambda: None
    ) -> None:
        self.place, self.number, self.count = place, place.number, place.count
        self.synchronous = place.kvstore == "dist_sync"  # or servers apply each push
        self.report_progress = on_step
        self.kvstore = DistributedKVStore(place.kvstore)
        log.warning("%s%d", NODE, node_number("worker", self.kvstore.rank))
        self._keys: dict[tuple, int] = {}  # of the shapes that `_rows_of_all` sums
        self._divisor: int | None = None

    # A data-parallel training

    def check_batch(self, global_batch_size: int) -> None:
        """Raise :class:`SettingError` unless a batch has a sample for every worker."""
        if global_batch_size < self.count:
            raise SettingError(
                f"global-batch-size {global_batch_size}: fewer samples than the "
                f"{self.count} workers; use a larger batch or fewer workers"
            )

    def trainer(self, params, lr: float) -> gluon.Trainer:
        """A Gluon trainer that sums the gradients of all workers on the servers.

        Each worker then updates its own replicas, so that all hold the same parameters.
        In "dist_async" there is no such sum: the servers update.
        """
        threshold = self.place.threshold
        return gluon.Trainer(
            params,
            "sgd",
            {"learning_rate": lr},
            kvstore=self.kvstore,
            update_on_kvstore=not self.synchronous,
            compression_params=threshold and {"type": "2bit", "threshold": threshold},
        )

    def part(self, X, y) -> tuple:
        """This worker's rows of a batch; there may be none. Reports progress."""
        self.report_progress()
        mine = shares(len(y), self.count)[self.number]
        return X[mine], y[mine]

    def test_part(self, X, y) -> tuple:
        """This worker's part of the test set; all of it where nothing can be summed."""
        if len(y) < self.count:
            raise SettingError(
                f"{len(y)} test images: fewer than the {self.count} workers"
            )
        return self.part(X, y) if self.place.variant == "" else (X, y)

    def divisor(self, batch_size: int) -> int:
        """The number by which a step divides the sum of gradients: the global batch's.

        The servers of "dist_async" are told once: a smaller last batch counts less.
        """
        if self.synchronous or self._divisor is None:
            self._divisor = batch_size
        return self._divisor

    def epoch_means(self, train_loss: float, test_acc: float, share: float) -> tuple:
        """Loss and accuracy of all workers, from those of each.

        `train_loss` is the sum over this worker's samples divided by the number of all
        samples; `test_acc` is that of its part of the test set, `share` of the whole.
        Where nothing can be summed, this worker's samples stand for all.
        """
        if self.place.variant:
            return train_loss * self.count, test_acc
        return tuple(self.total(numpy.array([train_loss, test_acc * share])).tolist())

    # Sums, to the bit

    def total(self, array: numpy.ndarray) -> numpy.ndarray:
        """The sum of all workers' arrays (one shape, float64): the same bits on each.

        Raises :class:`SettingError` for "dist_async", and once a trainer compresses.
        """
        array = numpy.ascontiguousarray(array, numpy.float64)
        rows = self._rows_of_all(array.reshape(-1).view(numpy.uint16))
        return rows.view(numpy.float64).sum(axis=0).reshape(array.shape)

    def gather(self, content: bytes) -> list[bytes]:
        """The contents of all workers, in their order, on each of them."""
        lengths = numpy.zeros(self.count)
        lengths[self.number] = len(content)
        lengths = self.total(lengths).astype(int)
        padded = content.ljust(lengths.max() + lengths.max() % 2, b"\0")
        rows = self._rows_of_all(numpy.frombuffer(padded, numpy.uint16))
        return [row.tobytes()[:length] for row, length in zip(rows, lengths)]

    def _rows_of_all(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """The uint16 numbers of all workers, (n,) each, as (workers, n).

        The servers sum in float32, and 1e300 pushed in float64 came back infinite. So
        numbers travel in 16-bit pieces, which float32 holds exactly. Each worker fills
        a row of its own and leaves the others zero: those sums are exact, and the same
        bits in whatever order pushes arrive.
        """
        self.report_progress()
        if not self.synchronous or self.kvstore.compresses:
            raise SettingError(
                f"{self.place.variant}: this work needs sums; leave --kvstore and "
                "--compress out"
            )
        rows = numpy.zeros((self.count, max(1, len(numbers))), numpy.float32)
        rows[self.number, : len(numbers)] = numbers
        value = np.array(rows, dtype="float32")
        if value.shape not in self._keys:
            self._keys[value.shape] = FIRST_OWN_KEY + len(self._keys)
            self.kvstore.init(self._keys[value.shape], np.zeros_like(value))
        self.kvstore.pushpull(self._keys[value.shape], value, out=value)
        return value.asnumpy().astype(numpy.uint16)[:, : len(numbers)]

    # The beginning

    def check_same(self, **facts: str) -> None:
        """Raise :class:`SettingError` if a fact differs from that of worker 0.

        `facts` are names and this worker's values, such as the hash of its data.
        """
        if not self.synchronous:
            return
        first, *others = map(json.loads, self.gather(json.dumps(facts).encode()))
        for name, value in first.items():
            for number, other in enumerate(others, 1):
                if other[name] != value:
                    raise SettingError(
                        f"worker {number} has another {name} ({other[name][:12]}) than "
                        f"worker 0 ({value[:12]}): give all hosts the same"
                    )

    def state_of_first(self, state):
        """Worker 0's training state, on every worker: only it reads a checkpoint.

        In "dist_async" each worker has read it, and continues from its own.
        """
        from safetensors.numpy import load, save

        if not self.synchronous:
            return state
        contents = (b"", b"")
        if self.number == 0:
            arrays = {n: numpy.ascontiguousarray(a) for n, a in state.tensors().items()}
            contents = (json.dumps(state.facts()).encode(), save(arrays))
        facts, tensors = (self.gather(content)[0] for content in contents)
        return type(state).restore(load(tensors), json.loads(facts))

    # The end

    def leave(self) -> None:
        """Wait for the other workers, and tell the servers that this one is done."""
        self.kvstore.close()
