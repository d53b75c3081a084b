"""One worker: its part of each batch, and sums. Source: d2l, "Parameter Servers"."""

from __future__ import annotations

import ctypes
import json
import logging
import threading

import numpy

from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import SettingError
from d2lpar.parallel import shares
from d2lpar.workers.node import WorkerInfo

log = logging.getLogger("d2lpar")

SECONDS_IN_SILENCE = 20  # before a worker says that it waits
WAITING = "%s waits for the scheduler, the servers and the other workers to start"
FIRST_OWN_KEY = 1_000_000  # Gluon's trainer numbers its parameters from 0


class DistributedKVStore(mx.kvstore.KVStore):
    """MXNet's distributed kvstore with a safe broadcast, and with compression."""

    def __init__(self, name: str) -> None:
        if not mx.runtime.Features().is_enabled("DIST_KVSTORE"):
            raise SettingError(
                "this MXNet was built without the distributed kvstore, which several "
                "workers need: build it with USE_DIST_KVSTORE=1, or use the wheel"
            )
        handle, create = mx.base.KVStoreHandle(), mx.base._LIB.MXKVStoreCreate
        mx.base.check_call(create(mx.base.c_str(name), ctypes.byref(handle)))
        super().__init__(handle)
        self.compresses = False

    def broadcast(self, key, value, out, priority: int = 0) -> None:
        """Copy one worker's value to all workers, and wait for the copies."""
        super().broadcast(key, value, out, priority)
        # A gradient could be summed before a slow worker has pulled the parameter,
        # which would receive the sum: only later pushes wait for the last pull.
        for array in out if isinstance(out, (list, tuple)) else [out]:
            array.wait_to_read()

    def set_gradient_compression(self, compression_params: dict) -> None:
        """Compress what is pushed from now on."""
        super().set_gradient_compression(compression_params)
        self.compresses = True

    def pushpull(self, key, value, out=None, priority: int = 0) -> None:
        """Sum the values of all workers; by push and pull if they are compressed."""
        if not self.compresses:
            super().pushpull(key, value, out, priority)
            return
        self.push(key, value, priority)
        self.pull(key, value if out is None else out, priority)


class Workers:
    """Connect this worker to the others; wait until all of them are connected."""

    def __init__(self, info: WorkerInfo) -> None:
        self.info, self.number, self.count = info, info.number, info.count
        self.synchronous = info.kvstore == "dist_sync"  # else servers apply each push
        waiting = threading.Timer(SECONDS_IN_SILENCE, log.warning, [WAITING, info])
        waiting.daemon = True
        waiting.start()
        try:
            self.kvstore = DistributedKVStore(info.kvstore)
        finally:
            waiting.cancel()
        self._keys: dict[tuple, int] = {}  # of the shapes that `_sum` has seen
        self._divisor: int | None = None

    # A data-parallel training

    def trainer(self, params, lr: float) -> gluon.Trainer:
        """Return a Gluon trainer that sums all workers' gradients on the servers."""
        threshold = self.info.threshold
        return gluon.Trainer(
            params,
            "sgd",
            {"learning_rate": lr},
            kvstore=self.kvstore,
            update_on_kvstore=not self.synchronous,
            compression_params=threshold and {"type": "2bit", "threshold": threshold},
        )

    def part(self, batch: slice) -> slice:
        """Return this worker's part of a batch, which may be empty."""
        mine = shares(batch.stop - batch.start, self.count)[self.number]
        return slice(batch.start + mine.start, batch.start + mine.stop)

    def test_part(self, X, y) -> tuple:
        """Return this worker's part of the test set; all of it if sums are inexact."""
        if self.info.variant:
            return X, y
        mine = self.part(slice(0, len(y)))
        return X[mine], y[mine]

    def divisor(self, batch_size: int) -> int:
        """Return the divisor of a step's gradients; dist_async keeps the first one."""
        if self.synchronous or self._divisor is None:
            self._divisor = batch_size
        return self._divisor

    def epoch_means(
        self, train_loss: float, test_acc: float, share: float, of_test: float
    ) -> tuple[float, float]:
        """Return the means over all workers; this worker's if sums are inexact.

        `train_loss` is this worker's sum over the number of all samples, of which it
        has the `share`; `test_acc` is the accuracy on a share `of_test`.
        """
        if self.info.variant:
            return train_loss / (share or 1), test_acc
        loss, acc = self.total(numpy.array([train_loss, test_acc * of_test])).tolist()
        return loss, acc

    # Sums, to the bit

    def total(self, array: numpy.ndarray) -> numpy.ndarray:
        """Return the sum of all workers' float64 arrays, the same bits on each."""
        array = numpy.ascontiguousarray(array, numpy.float64)
        rows = self._rows_of_all(array.reshape(-1).view(numpy.uint16))
        return rows.view(numpy.float64).sum(axis=0).reshape(array.shape)

    def gather(self, facts) -> list:
        """Return the facts (as JSON can hold them) of all workers, in their order."""
        content = json.dumps(facts).encode()
        lengths = numpy.zeros(self.count)
        lengths[self.number] = len(content)
        lengths = self.total(lengths).astype(int)
        padded = content.ljust(lengths.max() + lengths.max() % 2)
        rows = self._rows_of_all(numpy.frombuffer(padded, numpy.uint16))
        return [json.loads(row.tobytes()) for row in rows]

    def _rows_of_all(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """Return all workers' uint16 numbers as (workers, n), exact as float32 sums."""
        rows = numpy.zeros((self.count, max(1, len(numbers))), numpy.float32)
        rows[self.number, : len(numbers)] = numbers
        return self._sum(rows).astype(numpy.uint16)[:, : len(numbers)]

    def _sum(self, array: numpy.ndarray) -> numpy.ndarray:
        """Return the servers' sum of all workers' float32 arrays of one shape."""
        if not self.synchronous or self.kvstore.compresses:
            raise SettingError(
                f"{self.info.variant}: this work needs sums; leave --kvstore and "
                "--compress out"
            )
        value = np.array(array, dtype="float32")
        if value.shape not in self._keys:
            self._keys[value.shape] = FIRST_OWN_KEY + len(self._keys)
            self.kvstore.init(self._keys[value.shape], np.zeros_like(value))
        self.kvstore.pushpull(self._keys[value.shape], value, out=value)
        return value.asnumpy()

    # The beginning and the end

    def check_same(self, **facts: str) -> None:
        """Raise :class:`SettingError` if a fact differs from that of worker 0."""
        if not self.synchronous:
            return
        first, *others = self.gather(facts)
        for number, other in enumerate(others, 1):
            for name, value in first.items():
                if other[name] != value:
                    raise SettingError(
                        f"worker {number} has another {name} ({other[name][:12]}) than "
                        f"worker 0 ({value[:12]}): give all hosts the same"
                    )

    def state_of_first(self, state):
        """Return worker 0's training state on every worker."""
        if not self.synchronous:
            return state
        first = self.number == 0
        tensors = {
            key: self._sum(array if first else numpy.zeros_like(array))
            for key, array in state.tensors().items()
        }
        return type(state).restore(tensors, self.gather(state.facts())[0])

    def leave(self) -> None:
        """Wait for the other workers, and tell the servers that this one is done."""
        handle, self.kvstore.handle = self.kvstore.handle, None
        mx.base.check_call(mx.base._LIB.MXKVStoreFree(handle))
