"""The four helpers of synchronous data parallelism, with the book's names and order.

Each device holds a replica of the parameters. A step splits the batch into one shard a
device, computes each shard's gradients on its device, sums them over the devices
(all-reduce) and updates every replica alike, dividing once by the global batch.

Source: d2l, "Multi-GPU Computation Implementation from Scratch" (seed 001).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np

_softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
_softmax_cross_entropy.hybridize()  # one call for Python to make, not five


def get_params(params: Sequence[np.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy parameters to a device, as a new replica, and attach gradients.

    `params` are MXNet or NumPy arrays of any shape; each is copied, also when it
    already lives on `device`, so that a replica never shares memory with its source.

    >>> from d2lpar._mxnet import mx, np
    >>> W1, b1 = np.ones((2, 3)), np.zeros(3)
    >>> new_params = get_params([W1, b1], mx.cpu(0))
    >>> print('b1 weight:', new_params[1])
    b1 weight: [0. 0. 0.]
    >>> print('b1 grad:', new_params[1].grad)
    b1 grad: [0. 0. 0.]
    """
    new_params = [np.array(p, dtype=p.dtype, ctx=device) for p in map(_as_np, params)]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data: Sequence[np.ndarray]) -> None:
    """Sum the arrays of all devices in place; afterwards each holds the same sum.

    `data` is one array a device, of one shape and one dtype. Raises ValueError for an
    empty list, for arrays that differ in shape or dtype, and for two that share memory
    (the sum would be counted twice).

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

    `X` is (n, ...) and `y` (n, ...), n >= 1, as NumPy or MXNet arrays (legacy ``mx.nd``
    too) of any dtype, which is kept. Returns ``(X_shards, y_shards)``, one a device;
    their lengths differ by at most one, and with n < len(devices) the last ones are
    empty. A shard of an MXNet array that stays on its device may share its memory.
    Raises ValueError when X and y differ in length, are empty, or there is no device.

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
    net: Callable | None = None,
    loss: Callable = _softmax_cross_entropy,
    update: Callable = sgd,
) -> list[np.ndarray]:
    """One step of synchronous data-parallel SGD on the batch (X, y).

    `X` (n, 1, 28, 28) and `y` (n,) for the default `net`, :func:`d2lpar.networks.lenet`;
    any ``net(X, params)`` and ``loss(y_hat, y)`` with one value a sample will do.
    ``device_params[k]`` is the replica on ``devices[k]``, updated in place. A device
    without a sample (n < len(devices)) contributes nothing and stays in step.
    ``update(params, lr, batch_size)`` takes the step on a replica, :func:`sgd` unless
    another one is given (:func:`d2lpar.kernels.fused_sgd`). Returns the losses, (n_k,)
    a device, without waiting for them.

    Raises ValueError when replicas and devices differ in number or X and y in length,
    and TypeError when X and the parameters differ in dtype.
    """
    if net is None:
        from d2lpar.networks import lenet as net
    if len(device_params) != len(devices):
        raise ValueError(
            f"train_batch: {len(device_params)} replicas for {len(devices)} devices"
        )
    X, y = _as_np(X), _as_np(y)
    if X.dtype != device_params[0][0].dtype:
        raise TypeError(
            f"train_batch: X is {numpy.dtype(X.dtype)}, the parameters are "
            f"{numpy.dtype(device_params[0][0].dtype)}"
        )
    X_shards, y_shards = split_batch(X, y, devices)
    busy = [k for k, shard in enumerate(X_shards) if shard.shape[0] > 0]
    # The loss is calculated on each device on its own ...
    with autograd.record():
        losses = [loss(net(X_shards[k], device_params[k]), y_shards[k]) for k in busy]
    # ... and so is its gradient; nothing here waits for a device.
    for l in losses:
        l.backward()
    for params in device_params[len(busy) :]:
        for p in params:
            p.grad[:] = 0  # an idle device still holds the last step's gradient
    # Sum every gradient over the devices
    for i in range(len(device_params[0])):
        allreduce([params[i].grad for params in device_params])
    # Every replica takes the same step, divided by the size of the global batch
    for params in device_params:
        update(params, lr, X.shape[0])
    return losses


def _as_np(array):
    """NumPy and mx.np arrays as they are, legacy mx.nd ones through a view."""
    if isinstance(array, mx.nd.NDArray) and not isinstance(array, np.ndarray):
        return array.as_np_ndarray()
    return array if hasattr(array, "dtype") else numpy.asarray(array)


def _split(array, devices: Sequence[mx.Context]) -> list[np.ndarray]:
    size, extra = divmod(array.shape[0], len(devices))
    shards, start = [], 0
    for k, device in enumerate(devices):
        stop = start + size + (k < extra)
        shard = array[start:stop]
        if isinstance(shard, np.ndarray):
            shards.append(shard.as_in_ctx(device))
        else:
            shards.append(np.array(shard, dtype=shard.dtype, ctx=device))
        start = stop
    return shards


def _check_reducible(data: Sequence[np.ndarray]) -> None:
    if not data:
        raise ValueError("allreduce: the list of arrays is empty")
    first = data[0]
    for k, other in enumerate(data[1:], 1):
        if other.shape != first.shape or other.dtype != first.dtype:
            raise ValueError(
                f"allreduce: array 0 is {numpy.dtype(first.dtype)}{first.shape}, array "
                f"{k} is {numpy.dtype(other.dtype)}{other.shape}"
            )
    # Arrays on different devices cannot share memory. Within one device the addresses
    # must be compared, which waits for the arrays: only then pay for it.
    if len({a.ctx for a in data}) < len(data):
        spans = sorted(_span(a) for a in data)
        for (device, _, end), (next_device, start, _) in zip(spans, spans[1:]):
            if device == next_device and start < end:
                raise ValueError("allreduce: two of the arrays share their memory")


def _span(array: np.ndarray) -> tuple[str, int, int]:
    """Device and the addresses of the array's first byte and of the byte after it."""
    address = ctypes.c_void_p()
    mx.base.check_call(
        mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address))
    )
    start = address.value or 0
    size = array.size * numpy.dtype(array.dtype).itemsize
    return str(array.ctx), start, start + size
