"""The training of :mod:`d2lpar.lenet_concise` on several workers.

Compare the two files: the difference is what several workers change. Each worker trains
and evaluates its part of every batch and of the test set, with its own devices; the
servers sum the gradients of all workers. Loss and accuracy are of all workers, and
:mod:`d2lpar.workers` has what lies underneath.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy

from d2lpar import datasets
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.lenet import TrainingState, start
from d2lpar.lenet_concise import build, clear_gradients, evaluate
from d2lpar.networks import LeNet, get_host_params
from d2lpar.parallel import split_batch
from d2lpar.records.kinds import EpochRecord
from d2lpar.training import Epoch, check_settings, choose, on_device, shuffled_batches
from d2lpar.workers.group import Workers


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
    workers: Workers,
) -> Iterator[EpochRecord]:
    """Train as one of `workers`, yielding one record per epoch.

    The other arguments, the records, the errors and `state` are the same as on one
    worker; all workers must be given the same data and the same state.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices = choose(devices, num_devices)
    data = datasets.fashion_mnist() if data is None else data
    state = start(seed) if state is None else state
    n = len(data.y_train)
    X, y, X_test, y_test = on_device(data, devices[0])
    X_test, y_test = workers.test_part(X_test, y_test)
    net, _, loss = build(state.params, devices, lr)
    trainer = workers.trainer(net.collect_params(), lr)
    for _ in range(num_epochs):
        epoch = Epoch()
        for batch in shuffled_batches(X, y, global_batch_size, state.next_rng()):
            losses = train_batch(
                *batch, net, devices, trainer, loss=loss, workers=workers
            )
            epoch.add(losses)
        train_loss = epoch.end_training(n)
        acc = evaluate(net, X_test, y_test, devices)
        share = len(y_test) / len(data.y_test)
        train_loss, acc = workers.epoch_means(train_loss, acc, share)
        record = epoch.record(state.epoch + 1, train_loss, acc, num_samples=n, lr=lr)
        state.finish_epoch(get_host_params(net), lr)
        yield record


def train_batch(
    X: numpy.ndarray,
    y: numpy.ndarray,
    net: LeNet,
    devices: Sequence[mx.Context],
    trainer: gluon.Trainer,
    *,
    loss: gluon.loss.Loss,
    workers: Workers,
) -> list[np.ndarray]:
    """One step on this worker's part of the global batch (X, y), which may be empty.

    Returns the losses, (n_k,) per busy device, without waiting for them.
    """
    batch_size = workers.divisor(X.shape[0])
    X, y = workers.part(X, y)
    X_shards, y_shards = split_batch(X, y, devices) if len(y) else ([], [])
    busy = [k for k, X_shard in enumerate(X_shards) if X_shard.shape[0] > 0]
    with autograd.record():
        losses = [loss(net(X_shards[k]), y_shards[k]) for k in busy]
    for l in losses:
        l.backward()
    if len(busy) < len(devices):
        clear_gradients(net, len(busy))
    trainer.step(batch_size)
    return losses
