"""The same LeNet in Gluon: HybridBlock, Trainer and kvstore instead of our own hands.

Source: d2l, "Concise Implementation for Multiple GPUs"; network and recipe of seed 001.
Started from the same parameters, it gives the losses of :mod:`d2lpar.lenet`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence

import numpy

from d2lpar import datasets
from d2lpar._mxnet import autograd, gluon, mx, np, npx
from d2lpar.lenet import TrainingState, evaluate_accuracy, start
from d2lpar.networks import LeNet, get_host_params, set_params
from d2lpar.parallel import split_batch
from d2lpar.records.kinds import EpochRecord
from d2lpar.training import (
    BATCHES_IN_FLIGHT,
    check_settings,
    choose,
    epoch_record,
    on_device,
    shuffled,
)
from d2lpar.workers.group import Workers


def build(
    params: Sequence[numpy.ndarray], devices: Sequence[mx.Context], lr: float
) -> tuple[LeNet, gluon.Trainer, gluon.loss.Loss]:
    """The network with `params` on every device, its trainer and its loss, compiled."""
    net, loss = LeNet(), gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(ctx=devices)
    for block in (net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    for device in devices:
        net(np.zeros((1, 1, 28, 28), ctx=device))  # Gluon infers the shapes now
    set_params(net, params)
    trainer = gluon.Trainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": lr},
        kvstore="local",
        update_on_kvstore=False,  # as fast, and gradients and update can be told apart
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
    workers: Workers | None = None,
) -> Iterator[EpochRecord]:
    """Train in Gluon, yielding one record an epoch; see :func:`d2lpar.lenet.train`.

    Same arguments, records, errors and `state` as from scratch, so that a run may go on
    in the other implementation. As one of several `workers` it trains and evaluates its
    part, with its own devices; loss and accuracy are of all.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    state = start(seed) if state is None else state

    net, trainer, loss = build(state.params, devices, lr)
    X_train, y_train, X_test, y_test = on_device(data, devices[0])
    if workers is not None:
        workers.check_batch(global_batch_size)
        trainer = workers.trainer(net.collect_params(), lr)
        X_test, y_test = workers.test_part(X_test, y_test)

    for _ in range(num_epochs):
        npx.waitall()
        begin = time.perf_counter()
        loss_sums, in_flight = [], deque()
        order = shuffled(len(data.y_train), state.rng, devices[0])
        for X, y in datasets.batches(X_train, y_train, global_batch_size, order):
            losses = train_batch(X, y, net, devices, trainer, loss, workers)
            loss_sums += [l.sum() for l in losses]
            in_flight += loss_sums[-1:]
            if len(in_flight) > BATCHES_IN_FLIGHT:
                in_flight.popleft().wait_to_read()
        npx.waitall()
        trained = time.perf_counter()
        test_acc = evaluate_accuracy(
            X_test,
            y_test,
            [None] * len(devices),  # Gluon finds the replica by the shard's device
            devices,
            net=lambda X, _: net(X),
        )
        train_loss = sum(float(s) for s in loss_sums) / len(data.y_train)
        if workers is not None:
            share = len(y_test) / len(data.y_test)
            train_loss, test_acc = workers.epoch_means(train_loss, test_acc, share)
        evaluated = time.perf_counter()
        state.params = get_host_params(net)
        state.epoch += 1
        yield epoch_record(
            state.epoch,
            trained - begin,
            evaluated - trained,
            train_loss,
            test_acc,
            len(data.y_train),
            lr,
        )


def train_batch(
    X: numpy.ndarray,
    y: numpy.ndarray,
    net: LeNet,
    devices: Sequence[mx.Context],
    trainer: gluon.Trainer,
    loss: gluon.loss.Loss,
    workers: Workers | None = None,
) -> list[np.ndarray]:
    """One step: split, record, backward; `trainer` all-reduces and updates.

    As one of several `workers` it splits its part of the batch (X, y). Returns the
    losses, (n_k,) a device that had samples, without waiting for them.
    """
    batch_size = X.shape[0]
    if workers is not None:
        batch_size = workers.divisor(batch_size)
        X, y = workers.batch_part(X, y)
    X_shards, y_shards = split_batch(X, y, devices) if X.shape[0] else ([], [])
    busy = [k for k, shard in enumerate(X_shards) if shard.shape[0] > 0]
    with autograd.record():
        losses = [loss(net(X_shards[k]), y_shards[k]) for k in busy]
    for l in losses:
        l.backward()
    if len(busy) < len(devices):
        for p in net.collect_params().values():
            for data, grad in list(zip(p.list_data(), p.list_grad()))[len(busy) :]:
                grad[:] = 0  # an idle device still holds the last step's gradient
                data._fresh_grad = True  # else the trainer would not update its replica
    trainer.step(batch_size)
    return losses
