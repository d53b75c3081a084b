"""LeNet from scratch on Fashion-MNIST, trained data-parallel.

Source: d2l, "Multi-GPU Computation Implementation from Scratch" (seed 001): two
convolutions with average pooling, two dense layers, weights drawn from N(0, 0.01), SGD.
:mod:`d2lpar.lenet_concise` is the same network in Gluon.
"""

from __future__ import annotations

import math
import sys
import time
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy

from d2lpar import datasets
from d2lpar import devices as _devices
from d2lpar._mxnet import mx, np, npx
from d2lpar.errors import DivergedError, SettingError
from d2lpar.parallel import get_params, split_batch, train_batch
from d2lpar.records import EpochRecord

SHAPES = (
    (20, 1, 3, 3),  # W1, convolution
    (20,),
    (50, 20, 5, 5),  # W2, convolution
    (50,),
    (800, 128),  # W3, dense
    (128,),
    (128, 10),  # W4, dense
    (10,),
)

# Python runs ahead of the devices. This many batches at most, so that the memory of
# batches that wait does not grow with the epoch.
BATCHES_IN_FLIGHT = 16


def init_lenet(scale: float = 0.01, seed: int = 0) -> list[numpy.ndarray]:
    """Parameters [W1, b1, W2, b2, W3, b3, W4, b4] as host arrays, float32.

    Weights are N(0, scale), biases 0. Drawn once on the host and copied to each device,
    because MXNet's random streams depend on the device.
    """
    rng = numpy.random.default_rng(seed)
    return [
        rng.normal(scale=scale, size=shape).astype(numpy.float32)
        if len(shape) > 1
        else numpy.zeros(shape, numpy.float32)
        for shape in SHAPES
    ]


def lenet(X: np.ndarray, params: Sequence[np.ndarray]) -> np.ndarray:
    """Scores (n, 10) of images X (n, 1, 28, 28), on the device where both are."""
    h1 = npx.convolution(
        data=X, weight=params[0], bias=params[1], kernel=(3, 3), num_filter=20
    )
    h1 = npx.activation(h1, act_type="relu")  # 3 times as fast on a CPU as npx.relu
    h1 = npx.pooling(data=h1, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = npx.convolution(
        data=h1, weight=params[2], bias=params[3], kernel=(5, 5), num_filter=50
    )
    h2 = npx.activation(h2, act_type="relu")
    h2 = npx.pooling(data=h2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape((h2.shape[0], -1))
    h3 = npx.activation(dense(h2, params[4], params[5]), act_type="relu")
    return dense(h3, params[6], params[7])


def dense(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """X (n, i) times W (i, o) plus b (o,): the book's ``np.dot(X, W) + b``.

    By oneDNN, as the convolutions are. ``np.dot`` goes to the OpenBLAS in MXNet's
    wheel, which is slower, and which waits for ever when two CPU contexts with more
    than one thread each call it at the same time.
    """
    return npx.fully_connected(X, W.T, b, num_hidden=W.shape[1])


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


def on_device(data: datasets.ImageData, device: mx.Context) -> list[np.ndarray]:
    """The four uint8 arrays of `data` on a device, where batches are cut from them.

    A batch that comes from the host instead makes Python wait: MXNet's copy from the
    host queues behind whatever cpu(0) has to do, and the devices run dry meanwhile.
    """
    return [np.array(array, dtype="uint8", ctx=device) for array in data]


def shuffled(n: int, rng: numpy.random.Generator, device: mx.Context) -> np.ndarray:
    """A permutation of range(n) drawn from `rng`, int32 (n,), on a device."""
    return np.array(rng.permutation(n).astype("int32"), dtype="int32", ctx=device)


def check_settings(global_batch_size: int, lr: float, num_epochs: int) -> None:
    """Raise :class:`SettingError` for the first setting that cannot be."""
    check_whole("global-batch-size", global_batch_size)
    check_whole("num-epochs", num_epochs)
    if not (math.isfinite(lr) and lr > 0):
        raise SettingError(f"lr {lr}: write a finite number greater than 0")


def check_whole(name: str, value: int, most: int | None = None) -> None:
    """Raise :class:`SettingError` for what is no whole number from 1 to `most`."""
    if value != int(value) or value < 1 or (most is not None and value > most):
        limit = "1 or more" if most is None else f"1 to {most:,}"
        raise SettingError(f"{name} {value}: write a whole number, {limit}")


def choose(
    devices: str | Sequence[mx.Context], num_devices: int | None
) -> list[mx.Context]:
    """The first `num_devices` of a device string or of a list of contexts."""
    found = _devices.parse(devices) if isinstance(devices, str) else list(devices)
    if num_devices is None:
        return found
    return found[: _devices.parse_counts(str(num_devices), len(found))[0]]


def epoch_record(
    epoch: int,
    seconds: float,
    eval_seconds: float,
    train_loss: float,
    test_acc: float,
    num_samples: int,
    lr: float,
) -> EpochRecord:
    """The record of a finished epoch, or :class:`DivergedError` if its loss is not."""
    if not math.isfinite(train_loss):
        raise DivergedError(
            f"training diverged: the loss of epoch {epoch} is {train_loss}; "
            f"use a smaller learning rate than {lr:g}"
        )
    return EpochRecord(
        epoch=epoch,
        seconds=seconds,
        samples_per_sec=num_samples / seconds,
        train_loss=train_loss,
        test_acc=test_acc,
        eval_seconds=eval_seconds,
    )


class _CallableModule(types.ModuleType):
    """``from d2lpar import lenet`` gives ``lenet(X, params)`` and ``lenet.train``."""

    def __call__(self, X: np.ndarray, params: Sequence[np.ndarray]) -> np.ndarray:
        return lenet(X, params)


sys.modules[__name__].__class__ = _CallableModule
