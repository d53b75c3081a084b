"""Where a step's time goes: shortened steps, timed in turns, are subtracted.

From scratch making the batch belongs to the split, and checking to the backward pass.
In Gluon the split cuts row numbers; the forward pass takes the rows.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Union

import numpy

from d2lpar import datasets, lenet, parallel
from d2lpar._mxnet import autograd, mx, np, npx
from d2lpar.buckets import Bucket, allreduce_buckets, update_bucket
from d2lpar.epochs import BATCHES_IN_FLIGHT, Epoch, batch_slices
from d2lpar.lenet import concise as lenet_concise
from d2lpar.lenet.scratch import softmax_cross_entropy
from d2lpar.on_gpus import BucketTrainer
from d2lpar.padding import lenet_channels, lenet_shapes, padded
from d2lpar.records.kinds import PARTS

SPLIT, FORWARD, BACKWARD, ALL_REDUCE, UPDATE = PARTS
LR = 1e-3  # of the steps that are timed: small, so that the parameters stay finite


def nothing(*_) -> None:
    """Stand in for a part that is left out."""


class FromScratch:
    """LeNet on several devices, step by step; ``copies[k]`` are device k's data."""

    all_reduce = "book", 1

    def __init__(
        self,
        params: Sequence[numpy.ndarray],
        devices: Sequence[mx.Context],
        per_device_batch_size: int,
        copies: Sequence[Sequence[np.ndarray]],
        lr: float = LR,
    ) -> None:
        self.devices, self.lr = devices, lr
        self._X, self._y = copies[0]
        params = padded(params, devices[0].device_type)
        self.replicas = [Bucket(params, device) for device in devices]

    def batches(self, orders: Sequence[np.ndarray], batch_size: int) -> Iterator[tuple]:
        """Yield an epoch of batches, in the order int32 (n,) on each device."""
        return datasets.batches(self._X, self._y, batch_size, orders[0])

    def step(self, batch: tuple, upto: str = UPDATE) -> list[np.ndarray]:
        """Take the step up to one of PARTS; return losses, or shards if it splits."""
        X, y = batch
        if upto in (SPLIT, FORWARD):
            X_shards, y_shards = parallel.split_batch(X, y, self.devices[: len(X)])
            if upto == SPLIT:
                return [*X_shards, *y_shards]
            with autograd.record():
                return [
                    softmax_cross_entropy(lenet.lenet(X_k, params), y_k)
                    for X_k, y_k, params in zip(X_shards, y_shards, self.replicas)
                ]
        return lenet.train_batch(
            X,
            y,
            self.replicas,
            self.devices,
            self.lr,
            reduce=nothing if upto == BACKWARD else allreduce_buckets,
            update=update_bucket if upto == UPDATE else nothing,
        )


class Concise:
    """The same in Gluon, :mod:`d2lpar.lenet.concise`, with the same methods."""

    def __init__(
        self,
        params: Sequence[numpy.ndarray],
        devices: Sequence[mx.Context],
        per_device_batch_size: int,
        copies: Sequence[Sequence[np.ndarray]],
        lr: float = LR,
    ) -> None:
        self.devices, self._copies = devices, copies[: len(devices)]
        channels = lenet_channels(devices[0].device_type)
        self.net, self._trainer, loss = lenet_concise.build(
            params, devices, lr, per_device_batch_size, channels
        )
        self._losses_of = lenet_concise.ShardLosses(self.net, loss)

    @property
    def all_reduce(self) -> tuple[str, int]:
        if isinstance(self._trainer, BucketTrainer):
            return "kvstore device", 1
        return "kvstore local", len(lenet_shapes())

    def batches(self, orders: Sequence[np.ndarray], batch_size: int) -> Iterator[tuple]:
        orders = orders[: len(self.devices)]
        for batch in batch_slices(len(orders[0]), batch_size):
            yield orders, batch

    def step(self, batch: tuple, upto: str = UPDATE) -> list[np.ndarray]:
        orders, rows = batch
        shards = lenet_concise.row_shards(self._copies, orders, rows)
        if upto == SPLIT:
            return [rows_k for _, _, rows_k in shards]
        size = rows.stop - rows.start
        return lenet_concise.train_shards(
            shards, self._losses_of, self._trainer, size, upto
        )


IMPLEMENTATIONS: dict[str, type] = {"from scratch": FromScratch, "concise": Concise}
Training = Union[FromScratch, Concise]


def endless_batches(
    training: Training, orders: Sequence[np.ndarray], batch_size: int
) -> Iterator[tuple]:
    """Yield full batches of `training` over and over, in the order on each device."""
    full = len(orders[0]) // batch_size
    while True:
        yield from itertools.islice(training.batches(orders, batch_size), full)


def sample(
    training: Training, batches: Iterator, steps: int, upto: str = UPDATE
) -> tuple[float, float]:
    """Return mean seconds of `steps` steps in a row, and of Python to issue one."""
    epoch = Epoch()  # waits for the devices
    begin = issued = time.perf_counter()
    for number, batch in enumerate(itertools.islice(batches, steps), 1):
        results = training.step(batch, upto)
        if upto == SPLIT:
            epoch.keep_pace(results[-1:])
        else:
            epoch.add(results)
        if number <= BATCHES_IN_FLIGHT:
            issued = time.perf_counter()
    npx.waitall()
    end = time.perf_counter()
    return (end - begin) / steps, (issued - begin) / min(steps, BATCHES_IN_FLIGHT)


def turn(training: Training, batches: Iterator, steps: int) -> list[float]:
    """Return the seconds of the steps that end after each of PARTS, one by one."""
    ends = [sample(training, batches, steps, name)[0] for name in PARTS]
    if len(training.devices) == 1:
        ends[3] = ends[2]  # there is no all-reduce
    return ends


def parts(turns: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return seconds of each of PARTS: means over the middle half of the turns."""
    ordered, cut = sorted(turns, key=lambda ends: ends[-1]), len(turns) // 4
    means = map(mean, zip(*ordered[cut : len(turns) - cut]))
    ends = [0.0, *itertools.accumulate(means, max)]
    return {name: b - a for name, a, b in zip(PARTS, ends, ends[1:])}
