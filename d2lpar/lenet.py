"""LeNet from scratch on Fashion-MNIST, trained data-parallel.

Source: the book (d2l), "Training on Multiple GPUs": its network, SGD, and its loop over
the epochs. :mod:`d2lpar.lenet_concise` trains the same network in Gluon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy

from d2lpar import datasets, tuning
from d2lpar._mxnet import mx, np
from d2lpar.at_once import pushed_together
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.devices import check_contexts
from d2lpar.networks import SHAPES, init_lenet, lenet
from d2lpar.parallel import split_batch, train_batch
from d2lpar.records.kinds import EpochRecord
from d2lpar.training import (
    Epoch,
    check_params,
    check_settings,
    choose,
    on_device,
    shuffled_batches,
)


@dataclass
class TrainingState:
    """All that a training carries from one epoch to the next; independent of devices.

    `params` are host arrays and `epoch` is the number of finished epochs. The order of
    epoch e comes from ``default_rng([seed, e])``. To continue a training, pass its
    state to :func:`train` again, with any number of devices.
    """

    params: list[numpy.ndarray]
    epoch: int
    seed: int

    workload: ClassVar[str] = "lenet"

    def next_rng(self) -> numpy.random.Generator:
        """The generator that draws the order of the next epoch."""
        return numpy.random.default_rng([self.seed, self.epoch + 1])

    def finish_epoch(self, params: list[numpy.ndarray], lr: float) -> None:
        """Advance to the parameters after an epoch, or raise `DivergedError`."""
        check_params(self.epoch + 1, params, lr)
        self.params, self.epoch = params, self.epoch + 1

    def tensors(self) -> dict[str, numpy.ndarray]:
        """The arrays of the state by name, for a checkpoint."""
        return {f"params.{i}": p for i, p in enumerate(self.params)}

    def facts(self) -> dict:
        """The rest of the state, as JSON can hold it."""
        return {"epoch": self.epoch, "seed": self.seed}

    @classmethod
    def restore(cls, tensors: dict[str, numpy.ndarray], facts: dict) -> TrainingState:
        """The inverse of :meth:`tensors` and :meth:`facts`."""
        params = [tensors[f"params.{i}"] for i in range(len(tensors))]
        return cls(params, facts["epoch"], facts["seed"])


def start(seed: int = 0, scale: float = 0.01) -> TrainingState:
    """The state before the first epoch; the initial weights are N(0, `scale`)."""
    return TrainingState(init_lenet(scale, seed), 0, seed)


def header_facts(device_type: str) -> dict:
    """Return what a record's header says of LeNet in training on "cpu" or "gpu".

    Its channels, where they are not the book's.
    """
    channels = tuning.device_channels(device_type)
    return {} if channels == tuning.CHANNELS else {"lenet_channels": channels}


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
    """Train from scratch, yielding one record per epoch. Nothing is printed or drawn.

    `devices` is a device string or a list of contexts, of which the first `num_devices`
    are used (None: all). `data` defaults to the real Fashion-MNIST. Training starts
    from `state`, which is updated after every epoch; None starts from `seed`. Raises
    :class:`SettingError` or :class:`DeviceError` for settings that are out of range,
    and :class:`DivergedError` after an epoch whose loss or parameters are not finite,
    with `state` as it was before that epoch.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    state = start(seed) if state is None else state
    n = len(data.y_train)
    X, y, X_test, y_test = on_device(data, devices[0])
    channels = tuning.device_channels(devices[0].device_type)
    params = tuning.padded(state.params, channels)
    device_params = [Bucket(params, device) for device in devices]
    for _ in range(num_epochs):
        epoch = Epoch()
        with pushed_together(devices[0]):
            for batch in shuffled_batches(X, y, global_batch_size, state.next_rng()):
                epoch.add(train_batch(*batch, device_params, devices, lr, **BUCKETS))
        loss = epoch.end_training(n)
        replicas = [bucket.copies() for bucket in device_params]
        acc = evaluate_accuracy(X_test, y_test, replicas, devices)
        record = epoch.record(state.epoch + 1, loss, acc, num_samples=n, lr=lr)
        state.finish_epoch(tuning.unpadded(device_params[0], SHAPES), lr)
        yield record


def evaluate_accuracy(
    X: numpy.ndarray | np.ndarray,
    y: numpy.ndarray | np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    *,
    net: Callable = lenet,
    batch_size: int = 1000,
) -> float:
    """The share of the images X (n, 28, 28) that `net` assigns to their class y (n,).

    Integers of X are images in 0..255, which are divided by 255; floats are taken as
    they are. Every device evaluates its shard of each batch with its own replica. Only
    the counts of hits return to the host, once, at the end. Raises ValueError for other
    shapes, for no images, and unless there is one replica per device.
    """
    check_contexts(devices)
    if len(device_params) != len(devices):
        raise ValueError(f"{len(device_params)} replicas for {len(devices)} devices")
    if X.ndim != 3 or y.shape != X.shape[:1] or len(y) == 0:
        raise ValueError(f"X {X.shape}, y {y.shape}: write images (n, 28, 28), y (n,)")
    hits = []
    for X_batch, y_batch in datasets.batches(X, y, batch_size):
        shards = zip(*split_batch(X_batch, y_batch, devices), device_params)
        for X_k, y_k, params in shards:
            if X_k.shape[0] > 0:
                y_hat = net(X_k, params).argmax(axis=1)
                hits.append((y_hat.astype("int32") == y_k.astype("int32")).sum())
    return sum(float(h) for h in hits) / len(y)
