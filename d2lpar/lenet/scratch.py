"""LeNet's training from scratch: epochs of :func:`d2lpar.parallel.train_batch`.

The network is in :mod:`d2lpar.lenet.network`, the loop over the epochs in
:func:`d2lpar.epochs.run`, the parameters in flat arrays of :mod:`d2lpar.buckets`.
Source: the book (d2l), "Training on Multiple GPUs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy

from d2lpar import datasets, epochs, parallel
from d2lpar._mxnet import gluon, mx, np
from d2lpar.buckets import BUCKETS, Bucket
from d2lpar.datasets.fashion import check_scaled, to_float
from d2lpar.devices import check_contexts
from d2lpar.lenet.network import lenet
from d2lpar.lenet.state import TrainingState, setup
from d2lpar.padding import padded, unpadded
from d2lpar.records.kinds import EpochRecord
from d2lpar.step_checks import as_array, check_classes, check_dtypes

softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
softmax_cross_entropy.hybridize()  # one call from Python instead of five


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
    """Train from scratch, yielding one record per epoch.

    `devices` is a device string or contexts, of which the first `num_devices` are used
    (None: all). `data` defaults to the real Fashion-MNIST. `state` is updated after
    every epoch; None starts from `seed`. Raises :class:`SettingError`,
    :class:`DeviceError`, and :class:`DivergedError` after an epoch whose loss or
    parameters are not finite; the `state` stays as before it.
    """
    epochs.check_settings(global_batch_size, lr, num_epochs)
    devices, data, state = setup(num_devices, devices, seed, data, state)
    X, y, X_test, y_test = epochs.on_device(data, devices[0])
    params = padded(state.params, devices[0].device_type)  # for oneDNN's speed
    replicas = [Bucket(params, device) for device in devices]
    options = {"net": lenet, "loss": softmax_cross_entropy, **BUCKETS}

    def steps(order):
        order = np.array(order, dtype="int32", ctx=devices[0])
        for batch in datasets.batches(X, y, global_batch_size, order):
            yield parallel.train_batch(*batch, replicas, devices, lr, **options)

    yield from epochs.run(
        state, num_epochs, len(data.y_train), lr, steps,
        evaluate=lambda: accuracy(
            X_test, y_test, [replica.copies() for replica in replicas], devices
        ),
        params=lambda: unpadded(replicas[0]),
    )  # fmt: skip


def train_batch(
    X: np.ndarray,
    y: np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    lr: float,
    *,
    net: Callable = lenet,
    loss: Callable = softmax_cross_entropy,
    **options: Callable,
) -> list[np.ndarray]:
    """Take the step of :func:`d2lpar.parallel.train_batch`, by default of LeNet.

    `options` are its `reduce` and `update`. LeNet takes images X (n, 1, 28, 28), and
    raises ValueError for other shapes, and for pixels on the host that are NaN or above
    1; pixels on a device are not read.
    """
    if net is lenet:
        check_images(X, (1, 28, 28))
    return parallel.train_batch(
        X, y, device_params, devices, lr, net=net, loss=loss, **options
    )


def check_images(X, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless X are images (n, *shape), those on the host up to 1."""
    if X.shape[1:] != shape:
        raise ValueError(f"X {X.shape}: LeNet takes images (n, {str(shape)[1:-1]})")
    if isinstance(X, numpy.ndarray):
        check_scaled(X)


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
        check_images(X, (28, 28))
    if X.ndim != 3 and device_params[0]:
        check_dtypes(X, y, device_params[0][0])
    arrays = [p.asnumpy() for params in device_params for p in params or ()]
    epochs.check_finite("a parameter", arrays)
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
    for part in epochs.batch_slices(len(y), batch_size):
        X_batch, y_batch = to_float(X[part]) if X.ndim == 3 else X[part], y[part]
        shards = parallel.split_batch(X_batch, y_batch, devices[: len(y_batch)])
        for X_k, y_k, params in zip(*shards, device_params):
            scores = net(X_k, params)
            y_hat = scores.argmax(axis=1).astype("int32")
            hits.append((y_hat == y_k.astype("int32")).sum())
        hits[-1].wait_to_read()  # MXNet would keep the outputs of all batches ahead
        check_classes(y_batch, scores.shape[1])
    return sum(float(h) for h in hits) / len(y)
