"""Synchronous data parallelism in four functions, named as in the book.

Every device holds a replica of the parameters. A step splits the batch into one shard
per device, computes the gradients of each shard on its device, sums them over the
devices (all-reduce), and updates every replica alike with the sum divided by the size
of the global batch. So N devices compute what one device would.

Source: the book (d2l), "Training on Multiple GPUs",
https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.device_arrays import (
    as_array,
    check_replicas,
    copy_to,
    kvstore_for,
    on_device,
    on_gpu_in_float32,
    pushed_together,
    share_memory,
    shares,
)
from d2lpar.devices import check_contexts
from d2lpar.networks import lenet

softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
softmax_cross_entropy.hybridize()  # one call from Python instead of five


def get_params(params: Sequence[np.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy the parameters to a device and attach gradients: a new replica.

    `params` are MXNet or NumPy arrays of any shape; a replica shares no memory with
    them. Raises TypeError for one array, not a list, for a masked array or a dtype that
    MXNet lacks, and if `device` is not an MXNet context.

    >>> W1, b1 = np.ones((2, 3)), np.zeros(3)
    >>> new_params = get_params([W1, b1], mx.cpu(0))
    >>> print('b1 grad:', new_params[1].grad)
    b1 grad: [0. 0. 0.]
    """
    check_contexts([device])
    if hasattr(params, "shape"):
        raise TypeError(f"params is one array {params.shape}: write a list of arrays")
    new_params = [copy_to(as_array("a parameter", p), device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data: Sequence[np.ndarray]) -> None:
    """Replace the arrays of all devices by their sum, in place.

    `data` has one MXNet array per device, all of one shape and dtype, no two of which
    share memory. Raises ValueError if they differ, or if two on one device overlap.

    >>> data = [np.ones((1, 2), ctx=mx.cpu(i)) * (i + 1) for i in range(2)]
    >>> allreduce(data)
    >>> print('after allreduce:', data[0], data[1])
    after allreduce: [[3. 3.]] [[3. 3.]]
    """
    kinds = {(array.shape, numpy.dtype(array.dtype).name) for array in data}
    if len(kinds) != 1:
        raise ValueError(f"allreduce: expected arrays of one shape and dtype: {kinds}")
    if share_memory(data):
        raise ValueError("allreduce: an array is listed twice, or two share memory")
    total, *others = data
    for other in others:
        total += other.copyto(total.ctx)  # in place
    for other in others:
        total.copyto(other)


def split_batch(
    X: np.ndarray, y: np.ndarray, devices: Sequence[mx.Context]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split features and labels over the devices, in order.

    `X` and `y` are (n, ...) with the same n >= 1: NumPy or MXNet arrays (``mx.nd`` too)
    of a dtype that MXNet has, which is kept. Returns ``(X_shards, y_shards)``, one per
    device, whose lengths differ by at most one; with n < len(devices) the last ones are
    empty. A shard of an MXNet array that stays on its device may share its memory.
    Raises ValueError if X and y differ in length or are empty; TypeError unless
    `devices` is a list of contexts, and for a masked array or any other dtype.

    >>> X, y = np.arange(24).reshape((4, 6)), np.arange(4)
    >>> X_shards, y_shards = split_batch(X, y, [mx.cpu(0), mx.cpu(1)])
    >>> print(X_shards[1].ctx, X_shards[1])
    cpu(1) [[12. 13. 14. 15. 16. 17.]
     [18. 19. 20. 21. 22. 23.]]
    """
    check_contexts(devices)
    X, y = as_array("X", X), as_array("y", y)
    if X.shape[:1] != y.shape[:1]:
        raise ValueError(f"X {X.shape} and y {y.shape} differ in length")
    if X.shape[0] == 0:
        raise ValueError(f"the batch is empty: X {X.shape}")
    parts = shares(len(X), len(devices))
    X_shards = [on_device(X[part], device) for part, device in zip(parts, devices)]
    y_shards = [on_device(y[part], device) for part, device in zip(parts, devices)]
    return X_shards, y_shards


def allreduce_gradients(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each parameter's gradient over the replicas, in place."""
    grads = [[p.grad for p in params] for params in device_params]
    if len(grads) > 1 and all(map(on_gpu_in_float32, device_params)):
        keys, store = kvstore_for(grads)  # one call, because each has a fixed cost
        store.pushpull(keys, [list(of_all) for of_all in zip(*grads)])
    else:
        for i in range(len(grads[0])):
            allreduce([of_one[i] for of_one in grads])


def sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """Take a step of minibatch SGD in place: p -= lr * p.grad / batch_size."""
    if not on_gpu_in_float32(params):
        for p in params:
            p -= lr / batch_size * p.grad
        return
    for first in range(0, len(params), 45):  # one call for at most 45 parameters
        some = [p.as_nd_ndarray() for p in params[first : first + 45]]
        n = len(some)
        mx.nd.multi_sgd_update(
            *(array for p in some for array in (p, p.grad)),
            lrs=[lr / batch_size] * n, wds=[0] * n, num_weights=n, out=some,
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
    reduce: Callable = allreduce_gradients,
    update: Callable = sgd,
) -> list[np.ndarray]:
    """Take one step of synchronous data-parallel SGD on the global batch (X, y).

    `X` is (n, 1, 28, 28) and `y` (n,) for the default `net`, LeNet; any
    ``net(X, params)`` will do, and any ``loss(y_hat, y)`` with one value per sample.
    ``device_params[k]`` is the replica on ``devices[k]``, with gradients that backward
    passes overwrite, as ``attach_grad`` makes them; ``reduce(device_params)`` sums them
    over the replicas, ``update(params, lr, n)`` takes the step on each. A device
    without a sample contributes zero. Returns the losses, (n_k,) per busy device,
    without waiting for them.

    Raises ValueError if replicas and devices do not match, X and y differ in length or
    are empty, the loss is a mean or, with the default `net` and `loss`, a label on the
    host is not a class index; TypeError for bool labels, and for an X of another dtype
    than the parameters. Unequal replicas are not noticed.
    """
    X_shards, y_shards = split_batch(X, y, devices)
    check_replicas(device_params, devices, X_shards[0].dtype)
    if y_shards[0].dtype == bool:  # MXNet would fail in a later step
        raise TypeError("y is bool: write labels as integers, y.astype('int32')")
    if net is lenet and loss is softmax_cross_entropy:
        _check_labels(y, num_classes=device_params[0][-1].size)
    with pushed_together(devices[0]):
        # The loss of each shard and its gradients, on its own device
        with autograd.record():
            losses = [
                loss(net(X_shard, params), y_shard)
                for X_shard, y_shard, params in zip(X_shards, y_shards, device_params)
                if len(X_shard) > 0
            ]
        for l, X_shard in zip(losses, X_shards):
            if l.size != len(X_shard):
                raise ValueError(f"loss {l.shape}: return one value per sample")
        for l in losses:
            l.backward()
        for params in device_params[len(losses) :]:
            for p in params:
                p.grad[:] = 0  # an idle device still holds those of the last step
        # Sum the gradients over the devices
        reduce(device_params)
        # Every replica takes the same step, divided by the size of the global batch
        for params in device_params:
            update(params, lr, len(X))
    return losses


def _check_labels(y, num_classes: int) -> None:
    # MXNet clips invalid labels silently. On a device, checking would wait for it.
    if not isinstance(y, mx.nd.NDArray):
        y = numpy.asarray(y)
        wrong = y[~numpy.isin(y, numpy.arange(num_classes))]
        if wrong.size:
            raise ValueError(f"label {wrong[0]}: classes are 0 to {num_classes - 1}")
