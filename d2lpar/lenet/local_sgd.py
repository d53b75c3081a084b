"""Local SGD: devices train alone, and average their parameters every few steps.

Sources: Stich, "Local SGD Converges Fast and Communicates Little" (2019); Douillard et
al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from d2lpar import datasets
from d2lpar._mxnet import mx, np
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.epochs import Epoch, check_settings, check_whole, on_device
from d2lpar.errors import SettingError
from d2lpar.lenet.scratch import accuracy
from d2lpar.lenet.state import setup, start
from d2lpar.parallel import allreduce, split_batch, train_batch
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import REALS, check_rate


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    steps_between: int = 1,
    outer: tuple[float, float] | None = None,
    global_batch_size: int = 64,
    lr: float = 0.1,
    num_epochs: int = 1,
    seed: int = 0,
    data: datasets.ImageData | None = None,
) -> Iterator[EpochRecord]:
    """Train LeNet by local SGD, yielding one record per epoch.

    The replicas are averaged every `steps_between` steps and at an epoch's end, each
    weighted by its samples since the last average: with one step between averages this
    is data parallelism for unequal shards, too. `outer` is (learning rate, momentum) of
    DiLoCo's step along the averaged change; None takes the average. `data` defaults to
    the sample. Errors: :func:`d2lpar.lenet.train`.
    """
    check_settings(global_batch_size, lr, num_epochs)
    check_whole("steps-between", steps_between)
    if outer is not None:
        check_outer(outer)
    if data is None:
        data = datasets.load("sample", n_train=4_992)
    # At the book's scale of 0.01 the first epochs learn nothing, however one averages.
    state = start(seed, scale=0.1)
    devices, data, state = setup(num_devices, devices, seed, data, state)
    n = len(data.y_train)
    X, y, X_test, y_test = on_device(data, devices[0])
    replicas = [Bucket(state.params, device) for device in devices]
    averaging, step = Averaging(replicas, outer), 0
    num_samples = [0] * len(replicas)  # of each device since the last average
    for _ in range(num_epochs):
        epoch, sent_before = Epoch(), averaging.wire_bytes
        order = np.array(state.order(state.epoch + 1, n), dtype="int32", ctx=devices[0])
        for X_batch, y_batch in datasets.batches(X, y, global_batch_size, order):
            busy, losses = devices[: len(X_batch)], []
            shards = zip(*split_batch(X_batch, y_batch, busy), replicas, busy)
            for k, (X_k, y_k, replica, device) in enumerate(shards):
                losses += train_batch(X_k, y_k, [replica], [device], lr, **BUCKETS)
                num_samples[k] += len(X_k)
            epoch.add(losses)
            step += 1
            if step % steps_between == 0:
                averaging.average(num_samples)
                num_samples = [0] * len(replicas)
        if any(num_samples):
            averaging.average(num_samples)
            num_samples = [0] * len(replicas)
        loss = epoch.end_training(n)
        copies = [replica.copies() for replica in replicas]
        acc = accuracy(X_test, y_test, copies, devices)
        record = epoch.record(state.epoch + 1, loss, acc, num_samples=n, lr=lr)
        state.finish_epoch([p.asnumpy() for p in replicas[0]], lr)
        sent = averaging.wire_bytes - sent_before
        yield msgspec.structs.replace(record, wire_bytes=sent)


def check_outer(outer: tuple[float, float]) -> None:
    """Raise :class:`SettingError` unless a learning rate > 0 and a momentum below 1."""
    is_pair = isinstance(outer, (tuple, list)) and len(outer) == 2
    if not (is_pair and all(isinstance(number, REALS) for number in outer)):
        raise SettingError(f"outer {outer!r}: write (learning rate, momentum)")
    check_rate(outer[0])
    if not 0 <= outer[1] < 1:
        raise SettingError(f"momentum {outer[1]!r}: write a number from 0 to below 1")


class Averaging:
    """Replace replicas by their weighted mean or DiLoCo's step; count `wire_bytes`."""

    def __init__(
        self, replicas: Sequence[Bucket], outer: tuple[float, float] | None = None
    ) -> None:
        self.wire_bytes = 0
        self._values = [replica.values for replica in replicas]
        self._outer = outer
        self._before = [values.copy() for values in self._values]
        self._velocities = [np.zeros_like(values) for values in self._values]

    def average(self, num_samples: Sequence[int]) -> None:
        """Average all replicas, in place, each weighted by its number of samples.

        Every device computes the same step. A device without samples has weight 0.
        """
        n, size = len(self._values), self._values[0].size
        self.wire_bytes += 2 * (n - 1) * size * self._values[0].dtype.itemsize
        for values, samples in zip(self._values, num_samples):
            values *= samples / sum(num_samples)
        allreduce(self._values)
        for values, before, velocity in zip(
            self._values, self._before, self._velocities
        ):
            if self._outer:
                outer_lr, momentum = self._outer
                change = before - values
                velocity[:] = momentum * velocity + change
                before -= outer_lr * (change + momentum * velocity)  # Nesterov's
                values[:] = before
