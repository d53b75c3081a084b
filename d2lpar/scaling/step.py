"""Where a step's time goes, by omission: split, forward, backward, all-reduce, update.

A step that ends after the forward pass, minus one that ends after the split, is the
forward pass. Every shortened step is timed as training runs it, many in a row, so that
the parts add up to a training step. A machine's speed drifts by more than the smaller
parts take, so the shortened steps take turns, and only those of one turn are subtracted
from each other. The steps are :func:`d2lpar.parallel.train_batch` and
:func:`d2lpar.lenet_concise.train_batch` themselves, with their last parts left out.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from types import SimpleNamespace
from typing import Union

import numpy

from d2lpar import datasets, lenet_concise, networks
from d2lpar._mxnet import autograd, gluon, mx, np, npx
from d2lpar.buckets import Bucket, allreduce_buckets, update_bucket
from d2lpar.lenet import evaluate_accuracy
from d2lpar.parallel import split_batch, train_batch
from d2lpar.records.kinds import PARTS
from d2lpar.training import BATCHES_IN_FLIGHT

SPLIT, FORWARD, BACKWARD, ALL_REDUCE, UPDATE = PARTS


def nothing(*_) -> None:
    """Takes the place of a part that is left out."""


class FromScratch:
    """LeNet of :mod:`d2lpar.lenet` on several devices, trained step by step.

    `params` are host arrays, of which every device gets a copy.
    """

    def __init__(
        self,
        params: Sequence[numpy.ndarray],
        devices: Sequence[mx.Context],
        per_device_batch_size: int,
    ) -> None:
        self.devices = devices
        channels = networks.device_channels(devices[0].device_type)
        params = networks.padded(params, channels)
        self.replicas = [Bucket(params, device) for device in devices]
        self._loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self._loss.hybridize()

    def step(self, X: np.ndarray, y: np.ndarray, lr: float, upto: str = UPDATE) -> list:
        """Take the step up to one of PARTS; return its results without waiting.

        X is float32 (n, 1, 28, 28) and y (n,). Results are the losses, (n_k,) per busy
        device, or after the split the shards.
        """
        if upto == SPLIT:
            return split_batch(X, y, self.devices)
        if upto == FORWARD:
            shards = zip(*split_batch(X, y, self.devices), self.replicas)
            with autograd.record():
                return [
                    self._loss(networks.lenet(X_k, params), y_k)
                    for X_k, y_k, params in shards
                ]
        return train_batch(
            X, y, self.replicas, self.devices, lr,
            loss=self._loss,
            reduce=nothing if upto == BACKWARD else allreduce_buckets,
            update=update_bucket if upto == UPDATE else nothing,
        )  # fmt: skip

    def accuracy(self, X: np.ndarray, y: np.ndarray) -> float:
        """On the images X uint8 (n, 28, 28) of classes y (n,)."""
        replicas = [bucket.copies() for bucket in self.replicas]
        return evaluate_accuracy(X, y, replicas, self.devices)

    def params(self) -> list[numpy.ndarray]:
        """The first device's parameters as host arrays."""
        return networks.unpadded(self.replicas[0])


class Concise:
    """The same in Gluon, see :mod:`d2lpar.lenet_concise`."""

    def __init__(
        self,
        params: Sequence[numpy.ndarray],
        devices: Sequence[mx.Context],
        per_device_batch_size: int,
    ) -> None:
        self.devices = devices
        channels = networks.device_channels(devices[0].device_type)
        self.net, self._trainer, self._loss = lenet_concise.build(
            params, devices, 0.0, per_device_batch_size, channels
        )

    def step(self, X: np.ndarray, y: np.ndarray, lr: float, upto: str = UPDATE) -> list:
        """Take the step up to one of PARTS; see :meth:`FromScratch.step`."""
        if upto == SPLIT:
            return split_batch(X, y, self.devices)
        if upto == FORWARD:
            shards = zip(*split_batch(X, y, self.devices))
            with autograd.record():
                return [self._loss(self.net(X_k), y_k) for X_k, y_k in shards]
        trainer = self._trainer
        trainer.set_learning_rate(lr)
        if upto == BACKWARD:
            trainer = SimpleNamespace(step=nothing)
        elif upto == ALL_REDUCE:
            trainer = SimpleNamespace(step=lambda _: self._trainer.allreduce_grads())
        return lenet_concise.train_batch(
            X, y, self.net, self.devices, trainer, loss=self._loss
        )

    def accuracy(self, X: np.ndarray, y: np.ndarray) -> float:
        """See :meth:`FromScratch.accuracy`."""
        return lenet_concise.evaluate(self.net, X, y, self.devices)

    def params(self) -> list[numpy.ndarray]:
        """The parameters as host arrays."""
        return networks.get_host_params(self.net)


IMPLEMENTATIONS = {"from scratch": FromScratch, "concise": Concise}
Training = Union[FromScratch, Concise]
LR = 1e-3  # of the steps that are timed: small, so that the parameters stay finite


def endless_batches(
    X: np.ndarray, y: np.ndarray, batch_size: int, order: np.ndarray
) -> Iterator[tuple]:
    """Full batches of data on a device, over and over; see datasets.batches."""
    while True:
        for X_batch, y_batch in datasets.batches(X, y, batch_size, order):
            if len(y_batch) == batch_size:
                yield X_batch, y_batch


def sample(
    training: Training, batches: Iterator, steps: int, upto: str = UPDATE
) -> tuple[float, float]:
    """Mean seconds of `steps` steps in a row, and of Python to issue one of them.

    Each step ends after `upto`, one of PARTS. As in training, Python waits for an
    earlier step once BATCHES_IN_FLIGHT are queued; the seconds to issue a step are
    those of the steps before that.
    """
    in_flight: deque = deque()
    npx.waitall()
    begin = issued = time.perf_counter()
    for number, (X, y) in enumerate(itertools.islice(batches, steps), 1):
        in_flight.append(training.step(X, y, LR, upto))
        if number <= BATCHES_IN_FLIGHT:
            issued = time.perf_counter()
        else:
            last = in_flight.popleft()[-1]  # the losses, or the shards y, of a device
            (last[-1] if isinstance(last, (list, tuple)) else last).wait_to_read()
    npx.waitall()
    end = time.perf_counter()
    del in_flight  # alive until the clock is read, so that freeing them is not timed
    return (end - begin) / steps, (issued - begin) / min(steps, BATCHES_IN_FLIGHT)


def turn(training: Training, batches: Iterator, steps: int) -> dict[str, float]:
    """Seconds of the step that ends after each of PARTS, one after the other.

    One device has no all-reduce: a step that ends after it is the one before.
    """
    seconds: dict[str, float] = {}
    for name in PARTS:
        if name == ALL_REDUCE and len(training.devices) == 1:
            seconds[name] = seconds[BACKWARD]
        else:
            seconds[name], _ = sample(training, batches, steps, name)
    return seconds


def parts(turns: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds of each of PARTS, from several turns of all shortened steps.

    Means over the half of the turns whose whole step is nearest to the median, so that
    the parts add up to their whole step. A part below the noise is 0.
    """
    ordered, cut = sorted(turns, key=lambda t: t[UPDATE]), len(turns) // 4
    middle = ordered[cut : len(turns) - cut]
    means = (mean(seconds[name] for seconds in middle) for name in PARTS)
    ends = list(itertools.accumulate(means, max))
    return {name: b - a for name, a, b in zip(PARTS, [0.0, *ends], ends)}
