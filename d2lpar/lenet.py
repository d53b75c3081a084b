"""LeNet from scratch on Fashion-MNIST, trained data-parallel.

Source: d2l, "Multi-GPU Computation Implementation from Scratch" (seed 001): two
convolutions with average pooling, two dense layers, weights drawn from N(0, 0.01), SGD.
:mod:`d2lpar.lenet_concise` is the same network in Gluon.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy

from d2lpar import datasets
from d2lpar._mxnet import mx, np, npx
from d2lpar.networks import init_lenet, lenet
from d2lpar.parallel import get_params, split_batch, train_batch
from d2lpar.records.kinds import EpochRecord
from d2lpar.training import (
    BATCHES_IN_FLIGHT,
    check_settings,
    choose,
    epoch_record,
    on_device,
    shuffled,
)


def evaluate_accuracy(
    X: numpy.ndarray | np.ndarray,
    y: numpy.ndarray | np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    net: Callable = lenet,
    batch_size: int = 1000,
) -> float:
    """Share of the images X uint8 (n, 28, 28) that `net` puts in their class y (n,).

    Every device takes its part of each batch, with its own replica; the counts alone
    come back, once, at the end.
    """
    hits = []
    for X_batch, y_batch in datasets.batches(X, y, batch_size):
        shards = zip(*split_batch(X_batch, y_batch, devices), device_params)
        for X_k, y_k, params in shards:
            if X_k.shape[0] > 0:
                y_hat = net(X_k, params).argmax(axis=1)
                hits.append((y_hat.astype("int32") == y_k.astype("int32")).sum())
    return sum(float(h) for h in hits) / len(y)


@dataclass
class TrainingState:
    """All that a run carries from one epoch to the next; independent of devices.

    `params` are host arrays, `epoch` is the number of finished epochs, `rng` draws the
    next epoch's order. Continue a run by handing its state to :func:`train` again, on
    any number of devices.
    """

    params: list[numpy.ndarray]
    epoch: int
    rng: numpy.random.Generator

    workload: ClassVar[str] = "lenet"

    def tensors(self) -> dict[str, numpy.ndarray]:
        """The state's arrays by name, for a checkpoint."""
        return {f"params.{i}": p for i, p in enumerate(self.params)}

    def facts(self) -> dict:
        """The rest of the state, as JSON has it."""
        return {"epoch": self.epoch, "rng": self.rng.bit_generator.state}

    @classmethod
    def restore(cls, tensors: dict[str, numpy.ndarray], facts: dict) -> TrainingState:
        """The inverse of :meth:`tensors` and :meth:`facts`."""
        rng = numpy.random.default_rng()
        rng.bit_generator.state = facts["rng"]
        params = [tensors[f"params.{i}"] for i in range(len(tensors))]
        return cls(params, facts["epoch"], rng)


def start(seed: int = 0, scale: float = 0.01) -> TrainingState:
    """The state before the first epoch."""
    return TrainingState(
        init_lenet(scale, seed), 0, numpy.random.default_rng([seed, 1])
    )


def train(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    global_batch_size: int = 256,
    lr: float = 0.2,
    num_epochs: int = 10,
    seed: int = 0,
    data: datasets.ImageData | None = None,
    state: TrainingState | None = None,
) -> Iterator[EpochRecord]:
    """Train from scratch, yielding one record an epoch. Nothing is printed or drawn.

    `devices` is a device string or a list of contexts, of which the first `num_devices`
    are used (None: all). `data` defaults to the real Fashion-MNIST. `state` is where to
    start from and is brought up to date after every epoch; None starts from `seed`.
    Raises :class:`SettingError` or :class:`DeviceError` for settings that cannot be,
    and :class:`DivergedError` after an epoch whose loss is no longer finite.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    state = start(seed) if state is None else state
    device_params = [get_params(state.params, device) for device in devices]
    X_train, y_train, X_test, y_test = on_device(data, devices[0])

    for _ in range(num_epochs):
        npx.waitall()
        begin = time.perf_counter()
        loss_sums, in_flight = [], deque()
        order = shuffled(len(data.y_train), state.rng, devices[0])
        for X, y in datasets.batches(X_train, y_train, global_batch_size, order):
            losses = train_batch(X, y, device_params, devices, lr)
            loss_sums += [l.sum() for l in losses]
            in_flight.append(loss_sums[-1])
            if len(in_flight) > BATCHES_IN_FLIGHT:
                in_flight.popleft().wait_to_read()
        npx.waitall()
        trained = time.perf_counter()
        test_acc = evaluate_accuracy(X_test, y_test, device_params, devices)
        evaluated = time.perf_counter()
        state.params = [p.asnumpy() for p in device_params[0]]
        state.epoch += 1
        yield epoch_record(
            state.epoch,
            trained - begin,
            evaluated - trained,
            sum(float(s) for s in loss_sums) / len(data.y_train),
            test_acc,
            len(data.y_train),
            lr,
        )
