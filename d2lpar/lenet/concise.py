"""LeNet in Gluon, with the same losses as :mod:`d2lpar.lenet.scratch`.

Source: the book (d2l), "Concise Implementation for Multiple GPUs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy

from d2lpar import datasets
from d2lpar._mxnet import autograd, gluon, gluon_block, mx, np
from d2lpar.book_lenet import check_images
from d2lpar.buckets import BucketTrainer
from d2lpar.datasets.fashion import check_scaled
from d2lpar.devices import check_distinct, for_chunks
from d2lpar.epochs import Epoch, batch_slices, check_settings, on_device
from d2lpar.lenet import network
from d2lpar.lenet.scratch import accuracy
from d2lpar.lenet.state import TrainingState, setup
from d2lpar.parallel import busy, shares, split_batch, sum_in_tree
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import check_dtype, check_labels, check_losses


def build(
    params: Sequence[numpy.ndarray],
    devices: Sequence[mx.Context],
    lr: float,
    per_device_batch_size: int = 1,
    channels: tuple[int, int] = network.CHANNELS,
) -> tuple[network.LeNet, gluon.Trainer | BucketTrainer, gluon.loss.Loss]:
    """Return the compiled network, with `params` on every device, trainer and loss."""
    check_distinct(devices)
    kind = devices[0].device_type
    is_large = per_device_batch_size >= network.bias_as_weight_from()
    net = network.LeNet(kind == "gpu" and is_large, channels)
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    net.initialize(ctx=devices)
    for block in (net, loss):
        block.hybridize(static_alloc=True, static_shape=True)
    for device in devices:
        net(np.zeros((1, 1, 28, 28), ctx=device))  # Gluon infers the shapes now
    network.set_params(net, params)
    if kind == "gpu":
        return net, BucketTrainer(net, lr), loss
    # Updates outside the kvstore are as fast, and separate from the all-reduce.
    stores = {"kvstore": "local", "update_on_kvstore": False}
    rate = {"learning_rate": lr}
    return net, gluon.Trainer(net.collect_params(), "sgd", rate, **stores), loss


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
    same_bits: bool = False,
) -> Iterator[EpochRecord]:
    """Train in Gluon, yielding one record per epoch; see :func:`d2lpar.lenet.train`.

    Arguments, records and errors are the same, and either continues the other's
    `state`. Every device holds all images.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices, data, state = setup(num_devices, devices, seed, data, state)
    n = len(data.y_train)
    copies = [on_device((data.X_train, data.y_train), device) for device in devices]
    X_test, y_test = on_device((data.X_test, data.y_test), devices[0])
    shared_by, step = devices, cast(Callable, train_shards)
    if same_bits:
        shared_by, copies, step = for_chunks(devices), for_chunks(copies), train_chunks
    per_device, kind = global_batch_size // len(shared_by), devices[0].device_type
    net, trainer, loss_of = build(
        state.params, devices, lr, per_device, network.device_channels(kind)
    )
    losses_of = ShardLosses(net, loss_of)
    order = state.order(state.epoch + 1, n)
    for _ in range(num_epochs):
        epoch = Epoch()
        orders = [np.array(order, dtype="int32", ctx=device) for device in shared_by]
        for batch in batch_slices(n, global_batch_size):
            shards = row_shards(copies, orders, batch)
            size = batch.stop - batch.start
            epoch.add(step(shards, losses_of, trainer, size))
        # Drawn while the devices work: a millisecond, 2 % of a fast epoch on GPUs.
        order = state.order(state.epoch + 2, n)
        loss = epoch.end_training(n)
        acc = evaluate(net, X_test, y_test, shared_by)
        record = epoch.record(state.epoch + 1, loss, acc, num_samples=n, lr=lr)
        state.finish_epoch(network.get_host_params(net), lr)
        yield state.with_sha256(record) if same_bits else record


def train_batch(
    X: numpy.ndarray,
    y: numpy.ndarray,
    net: gluon.Block,
    devices: Sequence[mx.Context],
    trainer: gluon.Trainer | BucketTrainer,
    *,
    loss: gluon.loss.Loss,
) -> list[np.ndarray]:
    """Take one step on the global batch (X, y): `trainer` all-reduces and updates.

    `X` is float32 (n, 1, 28, 28) or what `net` takes, `y` (n,). Returns the losses,
    (n_k,) per busy device, not waited for. Errors: :func:`d2lpar.parallel.train_batch`.
    Devices listed several times, in turn, as by ``d2lpar.devices.for_chunks(devices)``,
    compute a shard for each time: :func:`train_chunks`.
    """
    count = len(set(devices))
    if any(device != devices[k % count] for k, device in enumerate(devices)):
        raise ValueError(f"devices {devices}: list each once, or all of them in turn")
    store = getattr(trainer, "_kvstore_params", {}).get("kvstore", "of a bucket")
    if store is None and 1 < count == len(devices):
        raise ValueError("the trainer has kvstore=None, which sums nothing: omit it")
    X_shards, y_shards = split_batch(X, y, busy(devices, X))
    check_dtype(X_shards[0].dtype, trainer._params[0].dtype)
    if isinstance(net, network.LeNet):
        check_images(X_shards[0])
        if isinstance(X, numpy.ndarray):
            check_scaled(X)

    def losses_of(X_shard, y_shard):
        y_hat = net(X_shard)
        check_labels(y, loss, y_hat)
        losses = loss(y_hat, y_shard)
        check_losses(loss, [losses], [y_hat], [y_shard])
        return losses

    step = train_shards if count == len(devices) else train_chunks
    return step(list(zip(X_shards, y_shards)), losses_of, trainer, len(X))


def train_shards(
    shards: Sequence[tuple[np.ndarray, ...]],
    losses_of: Callable,
    trainer: gluon.Trainer | BucketTrainer,
    global_batch_size: int,
    upto: str = "update",
) -> list[np.ndarray]:
    """Take one step on the shards of a batch, one shard per busy device.

    Returns the losses ``losses_of(*shard)``, (n_k,) each, not waited for. A study ends
    the step early: after the "forward" pass, the "backward" pass or the "all-reduce".
    """
    forget_gradients(trainer._params)
    with autograd.record():
        losses = [losses_of(*shard) for shard in shards]
    if upto == "forward":
        return losses
    for l in losses:
        l.backward()
    clear_unused(trainer._params)
    if upto == "all-reduce":
        trainer.allreduce_grads()
    if upto == "update":
        trainer.step(global_batch_size)
    return losses


def train_chunks(
    chunks: Sequence[tuple[np.ndarray, ...]],
    losses_of: Callable,
    trainer: gluon.Trainer | BucketTrainer,
    global_batch_size: int,
) -> list[np.ndarray]:
    """Take the step of :func:`train_shards` on chunks, which devices take in turn.

    Its bits depend on the chunks alone, whose gradients are summed in a fixed order.
    """
    if isinstance(trainer, BucketTrainer):
        replicas = [[flat] for flat in trainer._grads]
    else:
        trained = [p.list_grad() for p in trainer._params if p.grad_req != "null"]
        replicas = list(map(list, zip(*trained)))
    losses, of_chunks = [], []
    for first in range(0, len(chunks), len(replicas)):
        some = chunks[first : first + len(replicas)]
        losses += train_shards(some, losses_of, trainer, global_batch_size, "backward")
        of_chunks += [[g.copy() for g in grads] for grads in replicas[: len(some)]]
    totals = [sum_in_tree(grads) for grads in zip(*of_chunks)]
    for grads in replicas:
        for total, grad in zip(totals, grads):
            total.copyto(grad)
    trainer.update(global_batch_size)
    return losses


@gluon_block
class ShardLosses(gluon.HybridBlock):
    """Compute X uint8 (n, 28, 28), y (n,), rows int32 (k,) to losses (k,) in one graph.

    Outside a graph, slicing costs a call from Python per operation: half an epoch.
    """

    def __init__(self, net: network.LeNet, loss: gluon.loss.Loss) -> None:
        super().__init__()
        self.net, self.loss = net, loss
        self.hybridize(static_alloc=True, static_shape=True)

    def compute(self, F, X, y, rows):
        # The row numbers are in range; "clip" is the one mode that MXNet has.
        X_shard = F.np.take(X, rows, axis=0, mode="clip").astype("float32") / 255
        y_shard = F.np.take(y, rows, axis=0, mode="clip")
        return self.loss(self.net(F.np.expand_dims(X_shard, axis=1)), y_shard)


def row_shards(
    copies: Sequence[Sequence[np.ndarray]], orders: Sequence[np.ndarray], batch: slice
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Split a batch over the devices as row numbers: (X, y, rows) per busy device."""
    parts = shares(batch.stop - batch.start, len(orders))
    return [
        (X, y, order[batch.start + part.start : batch.start + part.stop])
        for (X, y), order, part in zip(copies, orders, parts)
        if part.start < part.stop
    ]


def forget_gradients(parameters: Sequence[gluon.Parameter]) -> None:
    """Mark the gradients of all replicas as old; set those to 0 that are added to."""
    for p in parameters:
        if p.grad_req == "add":
            for grad in p.list_grad():
                grad[:] = 0
        if p.grad_req != "null":
            for data in p.list_data():
                data._fresh_grad = False


def clear_unused(parameters: Sequence[gluon.Parameter]) -> None:
    """Set the gradients to zero that no backward pass has written in this step."""
    for p in parameters:
        if p.grad_req != "null":  # frozen, or a running average
            for data, grad in zip(p.list_data(), p.list_grad()):
                if not data._fresh_grad:
                    grad[:] = 0
                    data._fresh_grad = True  # or the trainer skips this replica


def evaluate(
    net: network.LeNet, X: np.ndarray, y: np.ndarray, devices: Sequence[mx.Context]
) -> float:
    """Return the accuracy of `net` on images X uint8 (n, 28, 28) of classes y (n,)."""
    # Gluon finds the replica by the shard's device.
    no_params: list[tuple] = [()] * len(devices)
    return accuracy(X, y, no_params, devices, net=lambda X, _: net(X))
