"""Synchronous data parallelism in four functions, named as in the book.

Every device holds a replica of the parameters. A step splits the batch into one shard
per device, computes the gradients of each shard on its device, sums them over the
devices (all-reduce), and updates every replica alike with the sum divided by the size
of the global batch. So N devices compute what one device would.

Source: the book (d2l), "Training on Multiple GPUs",
https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.devices import check_contexts
from d2lpar.networks import lenet

_softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
_softmax_cross_entropy.hybridize()  # one call from Python instead of five


def get_params(params: Sequence[np.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy the parameters to a device and attach gradients: a new replica.

    `params` are MXNet or NumPy arrays of any shape. Each is copied even if it already
    is on `device`, so that a replica never shares memory with its source. Raises
    TypeError if `device` is not an MXNet context.

    >>> from d2lpar._mxnet import mx, np
    >>> W1, b1 = np.ones((2, 3)), np.zeros(3)
    >>> new_params = get_params([W1, b1], mx.cpu(0))
    >>> print('b1 weight:', new_params[1])
    b1 weight: [0. 0. 0.]
    >>> print('b1 grad:', new_params[1].grad)
    b1 grad: [0. 0. 0.]
    """
    check_contexts([device])
    new_params = [_copy(_as_array(p), device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data: Sequence[np.ndarray]) -> None:
    """Replace the arrays of all devices by their sum, in place.

    `data` is a list of one MXNet array per device, all of one shape and one dtype, no
    two of which share memory. Raises ValueError if they differ or if an array is listed
    twice.

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
    kinds = {(array.shape, numpy.dtype(array.dtype).name) for array in data}
    if len(kinds) != 1:
        raise ValueError(f"allreduce: expected arrays of one shape and dtype: {kinds}")
    if len({id(array) for array in data}) < len(data):
        raise ValueError("allreduce: an array is listed twice and would count twice")
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
    are empty, or if `devices` is empty, and TypeError if it is not a list of contexts.

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
    X, y = _as_array(X), _as_array(y)
    if X.shape[:1] != y.shape[:1]:
        raise ValueError(f"X {X.shape} and y {y.shape} differ in length")
    if X.shape[0] == 0:
        raise ValueError(f"the batch is empty: X {X.shape}")
    return _split(X, devices), _split(y, devices)


def allreduce_gradients(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each parameter's gradient over the replicas, in place.

    One by one on CPU contexts; on GPUs a kvstore sums all float32 gradients in one
    call.
    """
    grads = [[p.grad for p in params] for params in device_params]
    if len(grads) > 1 and all(map(_on_gpu_in_float32, device_params)):
        return _allreduce_at_once(grads)
    for i in range(len(grads[0])):
        allreduce([of_one[i] for of_one in grads])
    return None


def sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """Minibatch stochastic gradient descent in place: p -= lr * p.grad / batch_size.

    On a GPU one kernel updates all float32 parameters.
    """
    if _on_gpu_in_float32(params):
        return _sgd_at_once(params, lr / batch_size)
    for p in params:
        p -= lr / batch_size * p.grad
    return None


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
    ``device_params[k]`` is the replica on ``devices[k]``, with gradients that are
    overwritten by each backward pass (``grad_req="write"``, the default of
    ``attach_grad``); ``reduce(device_params)`` sums them over the replicas and
    ``update(params, lr, n)`` takes the step on each. A device without a sample
    contributes zero. Returns the losses, (n_k,) per busy device, without waiting for
    them.

    Raises ValueError if the replicas do not match the devices, if X and y differ in
    length or are empty, if the loss is a mean and, with the default `net` and `loss`,
    if a label on the host is not a class index. Raises TypeError if the dtypes of X and
    of the parameters differ, and for labels of dtype bool. Not checked, because it
    would wait for the devices: that the replicas hold the same values.
    """
    X_shards, y_shards = split_batch(X, y, devices)
    _check_replicas(device_params, devices, X_shards[0].dtype)
    if y_shards[0].dtype == bool:  # MXNet would fail in a later step
        raise TypeError("y is bool: write labels as integers, y.astype('int32')")
    if net is lenet and loss is _softmax_cross_entropy:
        _check_labels(y, num_classes=device_params[0][-1].size)
    busy = [k for k, X_shard in enumerate(X_shards) if len(X_shard) > 0]
    with pushed_together(devices[0]):
        # The loss of each shard on its own device ...
        with autograd.record():
            losses = [
                loss(net(X_shards[k], device_params[k]), y_shards[k]) for k in busy
            ]
        for l, X_shard in zip(losses, X_shards):
            if l.size != len(X_shard):
                raise ValueError(
                    f"loss of shape {l.shape}: return one value per sample"
                )
        # ... then its gradients; nothing here waits for a device
        for l in losses:
            l.backward()
        for params in device_params[len(busy) :]:
            for p in params:
                p.grad[:] = 0  # an idle device still holds those of the last step
        # Sum the gradients over the devices
        reduce(device_params)
        # Every replica takes the same step, divided by the size of the global batch
        for params in device_params:
            update(params, lr, len(X))
    return losses


# MXNet's engine waits for a GPU after each operation that is pushed to it.
OPERATIONS_AT_ONCE = 100


def pushed_together(device: mx.Context) -> contextlib.AbstractContextManager:
    """Within this context, operations of a GPU are pushed to the engine in groups.

    Two H200s that train from scratch with batches of 256 gain a quarter of the time.
    A compiled network gains nothing, and neither does a CPU context.
    """
    if device.device_type == "gpu":
        return mx.engine.bulk(OPERATIONS_AT_ONCE)
    return contextlib.nullcontext()


def _on_gpu_in_float32(params: Sequence[np.ndarray]) -> bool:
    """Whether one operation on all `params` beats one on each.

    On a GPU starting a small operation takes longer than doing it; on a CPU context
    grouping gains nothing.
    """
    on_gpu = params[0].ctx.device_type == "gpu"
    return on_gpu and all(p.dtype == numpy.float32 for p in params)


def _allreduce_at_once(grads: Sequence[Sequence[np.ndarray]]) -> None:
    """All-reduce ``grads[k]``, the gradients of replica k, by one call of a kvstore."""
    shapes = {tuple(g.shape for g in of_one) for of_one in grads}
    if len(shapes) != 1:
        raise ValueError(f"allreduce: expected replicas of the same shapes: {shapes}")
    devices = tuple(of_one[0].ctx for of_one in grads)
    keys, store = _kvstore(shapes.pop(), devices, threading.get_ident())
    store.pushpull(keys, list(map(list, zip(*grads))))


@functools.lru_cache(maxsize=8)
def _kvstore(shapes: tuple, devices: tuple, thread: int) -> tuple:
    """A kvstore that sums arrays of these shapes on GPUs, and their keys.

    One per thread: its buffers hold a sum until all devices have copied it.
    """
    keys, store = list(range(len(shapes))), mx.kv.create("device")
    store.init(keys, [np.zeros(shape, ctx=devices[0]) for shape in shapes])
    return keys, store


MOST_AT_ONCE = 45  # arrays that one kernel of MXNet's updates


def _sgd_at_once(params: Sequence[np.ndarray], lr: float) -> None:
    """p -= lr * p.grad for all `params` on one device, by one operation."""
    for first in range(0, len(params), MOST_AT_ONCE):
        some = [p.as_nd_ndarray() for p in params[first : first + MOST_AT_ONCE]]
        mx.nd.multi_sgd_update(
            *(array for p in some for array in (p, p.grad)),
            lrs=[lr] * len(some),
            wds=[0] * len(some),
            num_weights=len(some),
            out=some,
        )


def _as_array(array):
    """NumPy and mx.np arrays as they are, legacy mx.nd arrays as mx.np views."""
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, mx.nd.NDArray):
        return array.as_np_ndarray()
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("a masked array, whose mask would be lost: fill it first")
    return numpy.asarray(array)


def _copy(array, device: mx.Context) -> np.ndarray:
    return np.array(array, dtype=array.dtype, ctx=device)


def shares(n: int, parts: int) -> list[slice]:
    """The contiguous parts of range(n), whose sizes differ by at most one.

    With n < parts the last ones are empty.

    >>> shares(10, 3)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, parts)
    starts = [k * size + min(k, extra) for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def _split(array, devices: Sequence[mx.Context]) -> list[np.ndarray]:
    shards = [array[part] for part in shares(len(array), len(devices))]
    if isinstance(array, np.ndarray):
        return [shard.as_in_ctx(device) for shard, device in zip(shards, devices)]
    return [_copy(shard, device) for shard, device in zip(shards, devices)]


def _check_replicas(device_params: Sequence, devices: Sequence, dtype) -> None:
    if len(device_params) != len(devices):
        raise ValueError(f"{len(device_params)} replicas for {len(devices)} devices")
    for k, (params, device) in enumerate(zip(device_params, devices)):
        where = getattr(params[0], "ctx", "the host")
        if where != device:  # one GPU may silently read another's memory
            raise ValueError(f"replica {k} is on {where}, its device is {device}")
    expected, dtype = numpy.dtype(device_params[0][0].dtype), numpy.dtype(dtype)
    if dtype != expected:
        raise TypeError(f"X is {dtype}, but the parameters are {expected}")


def _check_labels(y, num_classes: int) -> None:
    """MXNet clips invalid labels silently. On a device, checking would wait for it."""
    if not isinstance(y, mx.nd.NDArray):
        y = numpy.asarray(y)
        wrong = y[~numpy.isin(y, numpy.arange(num_classes))]
        if wrong.size:
            raise ValueError(f"label {wrong[0]}: classes are 0 to {num_classes - 1}")
