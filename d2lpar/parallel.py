"""Synchronous data parallelism in four functions, named as in the book.

Every device holds a replica of the parameters. A step splits the batch into one shard
per device, computes the gradients of each shard on its device, sums them over the
devices (all-reduce), and updates every replica alike with the sum divided by the size
of the global batch. So N devices compute what one device would.

Source: the book (d2l), "Training on Multiple GPUs",
https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from __future__ import annotations

import ctypes
import numbers
from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.devices import check_contexts
from d2lpar.networks import lenet
from d2lpar.shards import shares

_softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
_softmax_cross_entropy.hybridize()  # one call from Python instead of five


def get_params(params: Sequence[np.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy the parameters to a device and attach gradients: a new replica.

    `params` are MXNet or NumPy arrays of any shape. Each is copied even if it already
    lives on `device`, so that a replica never shares memory with its source. Raises
    TypeError for a device that is no context, and for dtypes that MXNet lacks.

    >>> from d2lpar._mxnet import mx, np
    >>> W1, b1 = np.ones((2, 3)), np.zeros(3)
    >>> new_params = get_params([W1, b1], mx.cpu(0))
    >>> print('b1 weight:', new_params[1])
    b1 weight: [0. 0. 0.]
    >>> print('b1 grad:', new_params[1].grad)
    b1 grad: [0. 0. 0.]
    """
    check_contexts([device])
    new_params = [_copy(p, device) for p in map(_as_np, params)]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data: Sequence[np.ndarray]) -> None:
    """Replace the arrays of all devices by their sum, in place.

    `data` holds one array per device, all of one shape and one dtype. Raises ValueError
    for an empty list, for arrays that differ in shape or dtype, and for two arrays that
    share memory, which would be counted twice; TypeError for what is not MXNet's.

    >>> from d2lpar._mxnet import mx, np
    >>> data = [np.ones((1, 2), ctx=mx.cpu(i)) * (i + 1) for i in range(2)]
    >>> print('before allreduce:', data[0], data[1])
    before allreduce: [[1. 1.]] [[2. 2.]]
    >>> allreduce(data)
    >>> print('after allreduce:', data[0], data[1])
    after allreduce: [[3. 3.]] [[3. 3.]]
    >>> print('still on:', data[0].ctx, data[1].ctx)
    still on: cpu(0) cpu(1)
    """
    _check_reducible(data)
    total = data[0]
    for other in data[1:]:
        total += other.copyto(total.ctx)  # in place
    for other in data[1:]:
        total.copyto(other)


def split_batch(
    X: np.ndarray, y: np.ndarray, devices: Sequence[mx.Context]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split features and labels over the devices, in order.

    `X` and `y` are (n, ...) with the same n >= 1: NumPy or MXNet arrays (legacy
    ``mx.nd`` too) of any dtype, which is kept. Returns ``(X_shards, y_shards)``, one
    shard per device. The lengths of the shards differ by at most one; with
    n < len(devices) the last ones are empty. A shard of an MXNet array that stays on
    its device may share its memory. Raises ValueError if X and y differ in length or
    are empty, or if there is no device; TypeError for devices that are no contexts, and
    for dtypes that MXNet lacks.

    >>> from d2lpar._mxnet import mx, np
    >>> X, y = np.arange(24).reshape((4, 6)), np.arange(4)
    >>> X_shards, y_shards = split_batch(X, y, [mx.cpu(0), mx.cpu(1)])
    >>> print(X_shards[0].ctx, X_shards[0])
    cpu(0) [[ 0.  1.  2.  3.  4.  5.]
     [ 6.  7.  8.  9. 10. 11.]]
    >>> print(X_shards[1].ctx, X_shards[1])
    cpu(1) [[12. 13. 14. 15. 16. 17.]
     [18. 19. 20. 21. 22. 23.]]
    """
    check_contexts(devices)
    X, y = _as_np(X), _as_np(y)
    if not devices:
        raise ValueError("split_batch: the list of devices is empty")
    if X.ndim == 0 or y.ndim == 0 or X.shape[0] != y.shape[0]:
        raise ValueError(
            f"split_batch: X of shape {X.shape} and y of shape {y.shape} differ in "
            "length"
        )
    if X.shape[0] == 0:
        raise ValueError("split_batch: the batch is empty")
    return _split(X, devices), _split(y, devices)


def allreduce_gradients(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each parameter's gradient over the replicas, in place, one by one."""
    for i in range(len(device_params[0])):
        allreduce([params[i].grad for params in device_params])


def sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """Minibatch stochastic gradient descent in place: p -= lr * p.grad / batch_size."""
    for p in params:
        p -= lr / batch_size * p.grad


def train_batch(
    X: np.ndarray,
    y: np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    lr: float,
    *,
    net: Callable = lenet,
    loss: Callable = _softmax_cross_entropy,
    reduce: Callable = allreduce_gradients,
    update: Callable = sgd,
) -> list[np.ndarray]:
    """One step of synchronous data-parallel SGD on the global batch (X, y).

    `X` is (n, 1, 28, 28) and `y` (n,) for the default `net`, LeNet; any
    ``net(X, params)`` will do, and any ``loss(y_hat, y)`` with one value per sample.
    ``device_params[k]`` is the replica on ``devices[k]``; ``reduce(device_params)``
    sums their gradients and ``update(params, lr, n)`` takes the step on each. A device
    without a sample contributes zero. Returns the losses, (n_k,) per busy device,
    without waiting for them. Raises ValueError for replicas and devices, or X and y,
    that differ in number, for a replica on another device or without gradients, for a
    loss that is a mean, for an `lr` that is not finite and, with the default `net`
    and `loss`, for labels on the host that are no classes; TypeError for dtypes.
    """
    check_contexts(devices)
    if not (isinstance(lr, numbers.Real) and abs(lr) < 1e300):
        raise ValueError(f"train_batch: lr {lr!r}: write a finite number")
    X, y = _as_np(X), _as_np(y)
    _check_replicas(X, device_params, devices)
    if net is lenet and loss is _softmax_cross_entropy:
        _check_labels(y, classes=device_params[0][-1].size)
    X_shards, y_shards = split_batch(X, y, devices)
    busy = [k for k, X_shard in enumerate(X_shards) if X_shard.shape[0] > 0]
    # The loss of each shard on its own device ...
    with autograd.record():
        losses = [loss(net(X_shards[k], device_params[k]), y_shards[k]) for k in busy]
    _check_losses(losses, X_shards)
    # ... then its gradients; nothing here waits for a device
    for l in losses:
        l.backward()
    for params in device_params[len(busy) :]:
        for p in params:
            p.grad[:] = 0  # an idle device still holds the gradient of the last step
    # Sum the gradients over the devices
    reduce(device_params)
    # Every replica takes the same step, divided by the size of the global batch
    for params in device_params:
        update(params, lr, X.shape[0])
    return losses


def _as_np(array):
    """NumPy and mx.np arrays as they are, legacy mx.nd arrays as mx.np views."""
    if isinstance(array, mx.nd.NDArray) and not isinstance(array, np.ndarray):
        return array.as_np_ndarray()
    return array if hasattr(array, "dtype") else numpy.asarray(array)


def _split(array, devices: Sequence[mx.Context]) -> list[np.ndarray]:
    parts = [array[part] for part in shares(array.shape[0], len(devices))]
    if isinstance(array, np.ndarray):
        return [part.as_in_ctx(device) for part, device in zip(parts, devices)]
    return [_copy(part, device) for part, device in zip(parts, devices)]


def _copy(array, device: mx.Context) -> np.ndarray:
    try:
        return np.array(array, dtype=array.dtype, ctx=device)
    except KeyError:  # what MXNet's table of dtypes raises
        raise TypeError(
            f"an array of dtype {array.dtype}: MXNet has float16, float32, float64, "
            "uint8, int8, int32, int64 and bool; convert it by astype"
        ) from None


def _check_replicas(X, device_params: Sequence, devices: Sequence) -> None:
    if not devices:
        raise ValueError("train_batch: the list of devices is empty")
    if len(device_params) != len(devices):
        raise ValueError(
            f"train_batch: {len(device_params)} replicas for {len(devices)} devices"
        )
    lengths = [len(params) for params in device_params]
    if len(set(lengths)) > 1 or not lengths[0]:
        raise ValueError(
            f"train_batch: the replicas have {lengths} parameters: give each as many"
        )
    for k, (params, device) in enumerate(zip(device_params, devices)):
        if any(getattr(p, "grad", None) is None for p in params):
            raise ValueError(
                f"train_batch: replica {k} has no gradients: make it by get_params"
            )
        here = params[0].ctx
        if here != device:  # one GPU may silently read another's memory
            raise ValueError(
                f"train_batch: replica {k} is on {here}, its device is {device}"
            )
    dtype, of_params = map(numpy.dtype, (X.dtype, device_params[0][0].dtype))
    if dtype != of_params:
        raise TypeError(f"train_batch: X is {dtype}, the parameters are {of_params}")


def _check_labels(y, classes: int) -> None:
    """MXNet would take the nearest class, in place of an error.

    Labels on a device are not checked: that would wait for it.
    """
    if y.ndim > 1 and y.size != y.shape[0]:
        raise ValueError(
            f"train_batch: labels of shape {y.shape}: write one class for each sample"
        )
    if isinstance(y, numpy.ndarray) and y.dtype.kind in "iuf":
        wrong = y[~((y >= 0) & (y < classes) & (y == numpy.floor(y)))]
        if wrong.size:
            raise ValueError(
                f"train_batch: label {wrong[0]}: write classes from 0 to {classes - 1}"
            )


def _check_losses(losses: Sequence[np.ndarray], X_shards: Sequence) -> None:
    """A mean would be divided by the number of samples once more, in the update."""
    for l, X in zip(losses, X_shards):
        if not isinstance(l, mx.nd.NDArray):
            raise TypeError(f"train_batch: the loss is {l!r}: return an array of MXNet")
        if l.size != X.shape[0]:
            raise ValueError(
                f"train_batch: the loss of {X.shape[0]} samples is of shape {l.shape}: "
                "return one value per sample, not their mean or sum"
            )


def _check_reducible(data: Sequence[np.ndarray]) -> None:
    if not isinstance(data, (list, tuple)):
        kind = type(data).__name__
        raise TypeError(f"allreduce: {kind}: write a list with one array per device")
    if not data:
        raise ValueError("allreduce: the list of arrays is empty")
    for array in data:
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(
                f"allreduce: {type(array).__module__}.{type(array).__name__} lies on "
                "no device: make it MXNet's, by np.array(a, ctx=device)"
            )
    if len({(array.shape, array.dtype) for array in data}) > 1:
        kinds = [f"{numpy.dtype(array.dtype)}{array.shape}" for array in data]
        raise ValueError(f"allreduce: the arrays differ: {', '.join(kinds)}")
    # Arrays on different devices cannot share memory. On one device their addresses
    # must be compared, which waits for the arrays: do so only if it is needed.
    if len({a.ctx for a in data}) < len(data):
        spans = sorted(_memory_span(a) for a in data)
        for (device, _, end), (next_device, start, _) in zip(spans, spans[1:]):
            if device == next_device and start < end:
                raise ValueError("allreduce: two of the arrays share their memory")


def _memory_span(array: np.ndarray) -> tuple[str, int, int]:
    """Device, address of the first byte, and address after the last byte."""
    address, get_data = ctypes.c_void_p(), mx.base._LIB.MXNDArrayGetData
    mx.base.check_call(get_data(array.handle, ctypes.byref(address)))
    start = address.value or 0
    size = array.size * numpy.dtype(array.dtype).itemsize
    return str(array.ctx), start, start + size
