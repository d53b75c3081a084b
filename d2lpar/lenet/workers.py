"""The training of :mod:`d2lpar.lenet.concise` on several workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from d2lpar import datasets, epochs
from d2lpar._mxnet import mx, np
from d2lpar.epochs import batch_slices, on_device
from d2lpar.lenet import concise
from d2lpar.lenet.network import get_host_params
from d2lpar.lenet.state import TrainingState, setup
from d2lpar.records.kinds import EpochRecord
from d2lpar.workers.group import Trainer, Workers


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

    All workers need the same data and state. The loss is over all of them; each
    evaluates the whole test set, whose accuracy is therefore the same.
    """
    epochs.check_settings(global_batch_size, lr, num_epochs)
    devices, data, state = setup(num_devices, devices, seed, data, state)
    n = len(data.y_train)
    copies = [on_device((data.X_train, data.y_train), device) for device in devices]
    X_test, y_test = on_device((data.X_test, data.y_test), devices[0])
    per_device = global_batch_size // (len(devices) * workers.count)
    # The book's channels, because hosts with other processors would pad differently.
    net, _, loss = concise.build(state.params, devices, lr, per_device)
    trainer = Trainer(net.collect_params(), lr, workers)
    losses_of = concise.ShardLosses(net, loss)

    def steps(order):
        orders = [np.array(order, dtype="int32", ctx=device) for device in devices]
        for batch in batch_slices(n, global_batch_size):
            shards = concise.row_shards(copies, orders, workers.part(batch))
            size = batch.stop - batch.start
            yield concise.train_shards(shards, losses_of, trainer, size)

    yield from epochs.run(
        state, num_epochs, n, lr, steps,
        evaluate=lambda: concise.evaluate(net, X_test, y_test, devices),
        params=lambda: get_host_params(net),
        over_all=lambda loss: float(workers.total([loss])[0]),
    )  # fmt: skip
