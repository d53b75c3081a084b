"""LeNet from scratch. Source: the book (d2l), "Training on Multiple GPUs"."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy

from d2lpar import datasets
from d2lpar._mxnet import mx, np
from d2lpar.book_lenet import lenet
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.datasets.fashion import check_scaled, to_float
from d2lpar.devices import check_contexts, for_chunks
from d2lpar.epochs import Epoch, batch_slices, check_settings, on_device
from d2lpar.errors import DivergedError
from d2lpar.lenet.network import padded, unpadded
from d2lpar.lenet.state import TrainingState, setup
from d2lpar.parallel import (
    allreduce_in_tree,
    busy,
    pushed_together,
    split_batch,
    train_batch,
)
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import as_array, check_classes, check_dtype


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
    """Train from scratch, yielding one record per epoch.

    `devices` is a device string or contexts, of which the first `num_devices` are used
    (None: all). `data` defaults to the real Fashion-MNIST. `state` is updated after
    every epoch; None starts from `seed`. Raises :class:`SettingError`,
    :class:`DeviceError`, and :class:`DivergedError` after an epoch whose loss or
    parameters are not finite; the `state` stays as before it.

    `same_bits` trains a replica for each of a batch's 8 chunks: no bit depends on the
    number of devices, on GPUs with the variables of `d2lpar run --deterministic`.
    """
    check_settings(global_batch_size, lr, num_epochs)
    devices, data, state = setup(num_devices, devices, seed, data, state)
    n = len(data.y_train)
    X, y, X_test, y_test = on_device(data, devices[0])
    params, step = padded(state.params, devices[0].device_type), BUCKETS
    if same_bits:
        devices, step = for_chunks(devices), {**BUCKETS, "reduce": allreduce_in_tree}
    replicas = [Bucket(params, device) for device in devices]
    for _ in range(num_epochs):
        epoch = Epoch()
        order = np.array(state.order(state.epoch + 1, n), dtype="int32", ctx=devices[0])
        with pushed_together(devices[0]):
            for X_batch, y_batch in datasets.batches(X, y, global_batch_size, order):
                losses = train_batch(X_batch, y_batch, replicas, devices, lr, **step)
                epoch.add(losses)
        loss = epoch.end_training(n)
        copies = [replica.copies() for replica in replicas]
        acc = accuracy(X_test, y_test, copies, devices)
        record = epoch.record(state.epoch + 1, loss, acc, num_samples=n, lr=lr)
        state.finish_epoch(unpadded(replicas[0]), lr)
        yield state.with_sha256(record) if same_bits else record


def evaluate_accuracy(
    X: numpy.ndarray | np.ndarray,
    y: numpy.ndarray | np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    *,
    net: Callable = lenet,
    batch_size: int = 1000,
) -> float:
    """Return the share of the samples X that `net` assigns to their class y (n,).

    X of three axes are images (n, h, w): integers in 0..255, which are divided by 255,
    or floats; `net` gets them as float32 (n, 1, h, w). LeNet, the default, takes images
    (n, 28, 28), of which floats are in [0, 1]. Your own `net` gets an X of other axes
    as it is. ``net(X, params)`` returns scores (n, classes). Every device evaluates its
    shard of each batch with its own replica. Raises ValueError for other shapes, no
    samples, a missing replica, other pixels and a label on the host that is no class;
    TypeError for images of bools and an X of another dtype than the parameters; and
    :class:`DivergedError` for parameters that are not finite, which a CPU's relu hides.
    """
    check_contexts(devices)
    if len(device_params) != len(devices):
        raise ValueError(f"{len(device_params)} replicas for {len(devices)} devices")
    X, y = as_array("X", X), as_array("y", y)
    if X.ndim == 0 or y.shape != X.shape[:1] or X.size == 0:
        raise ValueError(f"X {X.shape}, y {y.shape}: write samples (n, ...), y (n,)")
    if net is lenet:
        if X.shape[1:] != (28, 28):
            raise ValueError(f"X {X.shape}: LeNet takes images (n, 28, 28)")
        check_scaled(X)
    if X.ndim != 3 and device_params[0]:
        check_dtype(X.dtype, device_params[0][0].dtype)
    arrays = [p.asnumpy() for params in device_params for p in params or ()]
    if not all(numpy.isfinite(array).all() for array in arrays):
        raise DivergedError("training diverged: a parameter is not finite")
    return accuracy(X, y, device_params, devices, net=net, batch_size=batch_size)


def accuracy(
    X: np.ndarray,
    y: np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    *,
    net: Callable = lenet,
    batch_size: int = 1000,
) -> float:
    """Do the work of :func:`evaluate_accuracy`, whose arguments are checked."""
    hits = []
    for part in batch_slices(len(y), batch_size):
        X_batch = to_float(X[part]) if X.ndim == 3 else X[part]
        y_batch = y[part]
        shards = split_batch(X_batch, y_batch, busy(devices, X_batch))
        for X_k, y_k, params in zip(*shards, device_params):
            scores = net(X_k, params)
            y_hat = scores.argmax(axis=1).astype("int32")
            hits.append((y_hat == y_k.astype("int32")).sum())
        check_classes(y_batch, scores.shape[1])
    return sum(float(h) for h in hits) / len(y)
