"""LeNet in Gluon, with the same losses as :mod:`d2lpar.lenet.scratch`.

`train` takes its steps by `train_shards`, on row numbers; `train_batch` is one step on
a batch, as d2l's. What only GPUs take is in :mod:`d2lpar.on_gpus`.
Source: the book (d2l), "Concise Implementation for Multiple GPUs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy

from d2lpar import datasets, epochs
from d2lpar._mxnet import autograd, gluon, gluon_block, mx, np
from d2lpar.devices import check_distinct
from d2lpar.epochs import batch_slices, on_device
from d2lpar.lenet import network
from d2lpar.lenet.scratch import accuracy, check_images
from d2lpar.lenet.state import TrainingState, setup
from d2lpar.on_gpus import BucketTrainer, bias_as_weight_from
from d2lpar.padding import CHANNELS, lenet_channels
from d2lpar.parallel import shares, split_batch, zero
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import check_dtypes, check_losses
from d2lpar.workers.group import Trainer, Workers


def build(
    params: Sequence[numpy.ndarray],
    devices: Sequence[mx.Context],
    lr: float,
    per_device_batch_size: int = 1,
    channels: tuple[int, int] = CHANNELS,
) -> tuple[network.LeNet, gluon.Trainer | BucketTrainer, gluon.loss.Loss]:
    """Return the compiled network, with `params` on every device, trainer and loss."""
    check_distinct(devices)
    kind = devices[0].device_type
    is_large = per_device_batch_size >= bias_as_weight_from()
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
    workers: Workers | None = None,
) -> Iterator[EpochRecord]:
    """Train in Gluon, yielding one record per epoch; see :func:`d2lpar.lenet.train`.

    Arguments, records and errors are the same, and either continues the other's
    `state`. Every device holds all images. `workers` is for
    :func:`d2lpar.lenet.workers.train`.
    """
    epochs.check_settings(global_batch_size, lr, num_epochs)
    devices, data, state = setup(num_devices, devices, seed, data, state)
    n = len(data.y_train)
    copies = [on_device((data.X_train, data.y_train), device) for device in devices]
    X_test, y_test = on_device((data.X_test, data.y_test), devices[0])
    # Workers take the book's: hosts with other processors would pad differently.
    channels = CHANNELS if workers else lenet_channels(devices[0].device_type)
    per_device = global_batch_size // (len(devices) * (workers.count if workers else 1))
    net, trainer, loss = build(state.params, devices, lr, per_device, channels)
    if workers:
        trainer = Trainer(net.collect_params(), lr, workers)
    losses_of = ShardLosses(net, loss)

    def steps(order):
        orders = [np.array(order, dtype="int32", ctx=device) for device in devices]
        for batch in batch_slices(n, global_batch_size):
            part = workers.part(batch) if workers else batch
            shards = row_shards(copies, orders, part)
            yield train_shards(shards, losses_of, trainer, batch.stop - batch.start)

    yield from epochs.run(
        state, num_epochs, n, lr, steps,
        evaluate=lambda: evaluate(net, X_test, y_test, devices),
        params=lambda: network.get_host_params(net),
        over_all=lambda loss: workers.total([loss])[0] if workers else loss,
    )  # fmt: skip


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
    (n_k,) per busy device, not waited for. Errors: :func:`d2lpar.parallel.train_batch`;
    also ValueError for a trainer with kvstore=None, which sums nothing.
    """
    check_distinct(devices)
    if isinstance(net, network.LeNet):
        check_images(X, (1, 28, 28))
    store = getattr(trainer, "_kvstore_params", {}).get("kvstore", "of a bucket")
    if store is None and len(devices) > 1:
        raise ValueError("the trainer has kvstore=None, which sums nothing: omit it")
    net.apply(check_dense)
    X_shards, y_shards = split_batch(X, y, devices[: max(1, len(X))])
    check_dtypes(X_shards[0], y_shards[0], trainer._params[0])

    def losses_of(X_shard, y_shard):
        y_hat = net(X_shard)
        losses = loss(y_hat, y_shard)
        check_losses([losses], [y_shard], loss, [y_hat], y)
        return losses

    return train_shards(list(zip(X_shards, y_shards)), losses_of, trainer, len(X))


def check_dense(block: gluon.Block) -> None:
    """Raise ValueError for a layer that gets a wrong gradient on CPUs in MXNet 1.9.1.

    oneDNN's dense layer gives a bias the gradient 0 where the weight has none.
    """
    if isinstance(block, gluon.nn.Dense) and block.bias is not None:
        if block.weight.grad_req == "null" != block.bias.grad_req:
            raise ValueError(
                f"{block.weight.name} is frozen, and its bias would get no gradient: "
                'write grad_req="write", and leave the weight out of the trainer'
            )


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
    with autograd.record():
        losses = [losses_of(*shard) for shard in shards]
    if upto == "forward":
        return losses
    # An unused layer and an idle device would keep their last gradients.
    learned = [p for p in trainer._params if p.grad_req != "null"]
    for grads in zip(*(p.list_grad() for p in learned)):
        zero(grads)
    for p in learned:
        for data in p.list_data():
            data._fresh_grad = True  # Gluon's trainer would refuse or skip others
    for l in losses:
        l.backward()
    if upto == "all-reduce":
        trainer.allreduce_grads()
    if upto == "update":
        trainer.step(global_batch_size)
    return losses


@gluon_block
class ShardLosses(gluon.HybridBlock):
    """Compute in one graph the losses (k,) of k rows of X uint8 (n, 28, 28), y (n,).

    Outside a graph each operation is a call from Python: half an epoch's time.
    """

    def __init__(self, net: network.LeNet, loss: gluon.loss.Loss) -> None:
        super().__init__()
        self.net, self.loss = net, loss
        self.hybridize(static_alloc=True, static_shape=True)

    def compute(self, F, X, y, rows):
        # The row numbers are in range: the mode "clip" changes none.
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


def evaluate(
    net: network.LeNet, X: np.ndarray, y: np.ndarray, devices: Sequence[mx.Context]
) -> float:
    """Return the accuracy of `net` on images X uint8 (n, 28, 28) of classes y (n,)."""
    # Gluon finds the replica by the shard's device.
    no_params: list[tuple] = [()] * len(devices)
    return accuracy(X, y, no_params, devices, net=lambda X, _: net(X))
