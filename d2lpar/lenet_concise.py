"""The same LeNet in Gluon: HybridBlock, Trainer and kvstore do what we did by hand.

Started from the same parameters, it reaches the losses of :mod:`d2lpar.lenet`.
:mod:`d2lpar.lenet_workers` is this training on several workers: compare the two files.

Source: the book (d2l), "Concise Implementation for Multiple GPUs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy

from d2lpar import datasets
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.buckets import BucketTrainer
from d2lpar.lenet import TrainingState, evaluate_accuracy, start
from d2lpar.networks import (
    CHANNELS,
    MANY_IN_A_GRAPH,
    LeNet,
    device_channels,
    get_host_params,
    set_params,
)
from d2lpar.parallel import shares, split_batch
from d2lpar.records.kinds import EpochRecord
from d2lpar.training import Epoch, check_settings, choose, on_device


def build(
    params: Sequence[numpy.ndarray],
    devices: Sequence[mx.Context],
    lr: float,
    per_device_batch_size: int = 1,
    channels: tuple[int, int] = CHANNELS,
) -> tuple[LeNet, gluon.Trainer | BucketTrainer, gluon.loss.Loss]:
    """The network with `params` on every device, its trainer and its loss, compiled.

    On GPUs the trainer does what Gluon's does in fewer operations. `channels` are the
    network's on the devices (:func:`d2lpar.networks.device_channels`).
    """
    on_gpus = devices[0].device_type == "gpu"
    many_images = on_gpus and per_device_batch_size >= MANY_IN_A_GRAPH
    net = LeNet(many_images, channels)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(ctx=devices)
    for block in (net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    for device in devices:
        net(np.zeros((1, 1, 28, 28), ctx=device))  # Gluon infers the shapes now
    set_params(net, params)
    if on_gpus:
        return net, BucketTrainer(net, lr), loss
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": lr},
        kvstore="local",
        update_on_kvstore=False,  # as fast, and keeps all-reduce and update apart
    )
    return net, trainer, loss


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
    """Train in Gluon, yielding one record per epoch; see :func:`d2lpar.lenet.train`.

    Arguments, records, errors and `state` are the same as from scratch, so that either
    implementation can continue what the other began. Every device holds all images and
    takes the rows of its shard out of them (:class:`ShardLosses`): the numbers of
    :func:`train_batch`, in less time.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    state = start(seed) if state is None else state
    n = len(data.y_train)
    copies = [on_device((data.X_train, data.y_train), device) for device in devices]
    X_test, y_test = on_device((data.X_test, data.y_test), devices[0])
    per_device, kind = global_batch_size // len(devices), devices[0].device_type
    net, trainer, loss = build(
        state.params, devices, lr, per_device, device_channels(kind)
    )
    shard_losses = ShardLosses(net, loss)
    shard_losses.hybridize(static_alloc=True, static_shape=True)
    order = state.next_rng().permutation(n).astype("int32")
    for _ in range(num_epochs):
        epoch = Epoch()
        for rows in row_shards(order, global_batch_size, devices):
            shards = [(X, y, k) for (X, y), k in zip(copies, rows)]
            size = sum(k.size for k in rows)
            epoch.add(_step(shards, shard_losses, net, devices, trainer, size))
        # Drawn while the devices work: a millisecond, 2 % of a fast epoch on GPUs.
        following = replace(state, epoch=state.epoch + 1)
        order = following.next_rng().permutation(n).astype("int32")
        train_loss = epoch.end_training(n)
        acc = evaluate(net, X_test, y_test, devices)
        record = epoch.record(state.epoch + 1, train_loss, acc, num_samples=n, lr=lr)
        state.finish_epoch(get_host_params(net), lr)
        yield record


def train_batch(
    X: numpy.ndarray,
    y: numpy.ndarray,
    net: LeNet,
    devices: Sequence[mx.Context],
    trainer: gluon.Trainer | BucketTrainer,
    *,
    loss: gluon.loss.Loss,
) -> list[np.ndarray]:
    """One step on the global batch (X, y): `trainer` all-reduces and updates.

    Returns the losses, (n_k,) per busy device, without waiting for them.
    """
    shards = [
        (X_shard, y_shard)
        for X_shard, y_shard in zip(*split_batch(X, y, devices))
        if X_shard.shape[0] > 0
    ]

    def losses_of(X_shard, y_shard):
        return loss(net(X_shard), y_shard)

    return _step(shards, losses_of, net, devices, trainer, X.shape[0])


def _step(
    shards: Sequence[tuple[np.ndarray, ...]],
    losses_of: Callable,
    net: LeNet,
    devices: Sequence[mx.Context],
    trainer: gluon.Trainer | BucketTrainer,
    global_batch_size: int,
) -> list[np.ndarray]:
    """One step, on one shard per busy device: ``losses_of(*shard)`` are its losses."""
    with autograd.record():
        losses = [losses_of(*shard) for shard in shards]
    for l in losses:
        l.backward()
    if len(shards) < len(devices):
        clear_gradients(net, len(shards))
    trainer.step(global_batch_size)
    return losses


class ShardLosses(gluon.HybridBlock):
    """From the row numbers of a shard to its losses, in one graph per device.

    Called with X uint8 (n, 28, 28), y (n,) and rows int32 (k,) on one device, gives the
    losses (k,). Cutting batches on the first device and sending shards to the others
    costs a call of Python and a push to MXNet's engine for every operation: on two
    H200s an epoch with batches of 256 takes 0.49 s so, and 0.31 s by this graph.
    """

    def __init__(self, net: LeNet, loss: gluon.loss.Loss) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def hybrid_forward(self, F, X, y, rows):
        # The row numbers are in range; "clip" is the one mode that MXNet has.
        X_shard = F.np.take(X, rows, axis=0, mode="clip").astype("float32") / 255
        y_shard = F.np.take(y, rows, axis=0, mode="clip")
        return self.loss(self.net(F.np.expand_dims(X_shard, axis=1)), y_shard)


def row_shards(
    order: numpy.ndarray, global_batch_size: int, devices: Sequence[mx.Context]
) -> Iterator[list[np.ndarray]]:
    """One epoch of batches as row numbers, int32 (k,) on each device that has some.

    `order` int32 (n,) is a permutation of the rows; the last batch may be short.
    """
    copies = [np.array(order, dtype="int32", ctx=device) for device in devices]
    for first in range(0, len(order), global_batch_size):
        size = min(global_batch_size, len(order) - first)
        parts = shares(size, len(devices))
        yield [
            copy[first + part.start : first + part.stop]
            for copy, part in zip(copies, parts)
            if part.start < part.stop
        ]


def clear_gradients(net: LeNet, first: int) -> None:
    """Set the gradients on the devices from number `first` on to zero.

    A device without a sample still holds the gradients of the last step.
    """
    for p in net.collect_params().values():
        for data, grad in list(zip(p.list_data(), p.list_grad()))[first:]:
            grad[:] = 0
            data._fresh_grad = True  # or the trainer would not update this replica


def evaluate(
    net: LeNet, X: np.ndarray, y: np.ndarray, devices: Sequence[mx.Context]
) -> float:
    """The accuracy of `net` on images X uint8 (n, 28, 28) with classes y (n,)."""
    # Gluon finds the replica by the shard's device.
    no_params: list[tuple] = [()] * len(devices)
    return evaluate_accuracy(X, y, no_params, devices, net=lambda X, _: net(X))
