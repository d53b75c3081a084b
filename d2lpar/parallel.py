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
from d2lpar.book_lenet import lenet
from d2lpar.devices import check_contexts, check_exists
from d2lpar.step_checks import (
    as_array,
    check_after_two_steps,
    check_in_place,
    check_labels,
    check_losses,
    check_net,
    check_rate,
    check_replicas,
    parameters,
    share_memory,
)

softmax_cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
softmax_cross_entropy.hybridize()  # one call from Python instead of five


def get_params(params: Sequence[np.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy the parameters to a device and attach gradients: a new replica.

    `params` are MXNet or NumPy arrays of floats of any shape, or numbers; a replica
    shares no memory with them. An array that is listed twice stays one: tied weights.
    Numbers, lists and tuples are not tied. Raises TypeError for one array, not a list,
    for a masked array or a dtype that MXNet lacks, and if `device` is not an MXNet
    context; ValueError for two views of one array; and
    :class:`~d2lpar.errors.DeviceError` for a GPU where there is none.

    >>> W1, b1 = np.ones((2, 3)), np.zeros(3)
    >>> new_params = get_params([W1, b1], mx.cpu(0))
    >>> print('b1 grad:', new_params[1].grad)
    b1 grad: [0. 0. 0.]
    """
    check_exists(device)
    params, arrays = parameters(params)
    copies = {id(p): _copy_to(a, device) for p, a in zip(params, arrays)}
    for p in copies.values():
        p.attach_grad()
    return [copies[id(p)] for p in params]


def allreduce(data: Sequence[np.ndarray]) -> None:
    """Replace the arrays of all devices by their sum, in place.

    `data` has one MXNet array per device, all of one shape and dtype, no two of which
    share memory. Raises ValueError if they differ, or if two on one device overlap, and
    TypeError for bools and for arrays of other libraries.

    >>> data = [np.ones((1, 2), ctx=mx.cpu(i)) * (i + 1) for i in range(2)]
    >>> allreduce(data)
    >>> print('after allreduce:', data[0], data[1])
    after allreduce: [[3. 3.]] [[3. 3.]]
    """
    data = list(data)
    for array in data:
        if not isinstance(array, mx.nd.NDArray):
            raise TypeError(f"allreduce: {type(array).__name__}: write MXNet arrays")
    kinds = {(array.shape, numpy.dtype(array.dtype).name) for array in data}
    if len(kinds) != 1:
        raise ValueError(
            f"allreduce: expected arrays of one shape and dtype: {kinds or 0}"
        )
    if numpy.dtype(data[0].dtype) == bool:  # MXNet's sum would be a bool of 2
        raise TypeError("allreduce: the arrays are bool: write integers or floats")
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
    device, whose lengths differ by at most one. A shard of an MXNet array that stays on
    its device may share its memory. Raises ValueError if X and y differ in length or
    are empty, and with n < len(devices), as d2l's does: MXNet cannot compute on an
    empty shard. Raises TypeError unless `devices` is a list of contexts, and for a
    masked array or any other dtype.

    >>> X, y = np.arange(24).reshape((4, 6)), np.arange(4)
    >>> X_shards, y_shards = split_batch(X, y, [mx.cpu(0), mx.cpu(1)])
    >>> print(X_shards[1].ctx, X_shards[1])
    cpu(1) [[12. 13. 14. 15. 16. 17.]
     [18. 19. 20. 21. 22. 23.]]
    """
    check_contexts(devices)
    X, y = as_array("X", X), as_array("y", y)
    if X.ndim == 0 or X.shape[:1] != y.shape[:1]:
        raise ValueError(f"X {X.shape} and y {y.shape} differ in length")
    if X.size == 0:
        raise ValueError(f"the batch is empty: X {X.shape}")
    if len(X) < len(devices):
        raise ValueError(
            f"{len(X)} samples for {len(devices)} devices: split them over "
            f"devices[:{len(X)}], or call train_batch, which does"
        )
    parts = shares(len(X), len(devices))
    X_shards = [_on_device(X[part], device) for part, device in zip(parts, devices)]
    y_shards = [_on_device(y[part], device) for part, device in zip(parts, devices)]
    return X_shards, y_shards


def allreduce_gradients(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each parameter's gradient over the replicas, in place."""
    grads = [[p.grad for p in _untied(params)] for params in device_params]
    if len(grads) > 1 and all(map(on_gpu_in_float32, device_params)):
        keys, store = _kvstore_for(grads)  # one call, because each has a fixed cost
        store.pushpull(keys, [list(of_all) for of_all in zip(*grads)])
    else:
        for i in range(len(grads[0])):
            allreduce([of_one[i] for of_one in grads])


def allreduce_in_tree(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each gradient over the replicas, in place, as :func:`sum_in_tree` does.

    With replicas on ``devices.for_chunks(devices)`` it is a `reduce` of `train_batch`
    that makes a step's bits independent of the number of devices.
    """

    def grads(params):
        flat = getattr(params, "grads", None)  # of a bucket
        return [p.grad for p in _untied(params)] if flat is None else [flat]

    for of_all in zip(*map(grads, device_params)):
        total = sum_in_tree(of_all)
        for other in of_all[1:]:
            total.copyto(other)


def sum_in_tree(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Add equal-shaped arrays into the first one, which is returned, in a fixed order.

    Eight are summed as ``((0+4) + (2+6)) + ((1+5) + (3+7))``, so that devices which
    take turns add their own arrays first. The other arrays change, too.
    """
    while len(arrays) > 1:
        half = (len(arrays) + 1) // 2
        for total, other in zip(arrays, arrays[half:]):
            total += other.as_in_context(total.ctx)
        arrays = arrays[:half]
    return arrays[0]


def sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """Take a step of minibatch SGD in place: p -= lr * p.grad / batch_size."""
    check_rate(lr)
    params = _untied(params)
    if not on_gpu_in_float32(params):
        for p in params:
            p -= lr / batch_size * p.grad
        return
    for first in range(0, len(params), 45):  # one call for at most 45 parameters
        params_and_grads = [
            (_legacy(p), _legacy(p.grad)) for p in params[first : first + 45]
        ]
        n = len(params_and_grads)
        mx.nd.multi_sgd_update(
            *(array for pair in params_and_grads for array in pair),
            lrs=[lr / batch_size] * n, wds=[0] * n, num_weights=n,
            out=[p for p, _ in params_and_grads],
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
    ``device_params[k]`` is the replica on ``devices[k]``; ``reduce(device_params)``
    sums the gradients over the replicas, ``update(params, lr, n)`` takes the step on
    each: it is called once per replica, so keep its state by ``params[0].ctx``. Both
    work in place. Parameters that are not used and devices without a sample contribute
    zero. Returns the losses, (n_k,) per busy device, without waiting for them.

    Raises ValueError if replicas and devices do not match, a parameter has no gradient,
    X and y differ in length or are empty, the loss is a mean or, with Gluon's softmax
    loss, a label on the host is not a class index; with the default `update`, if `lr`
    is not a number > 0; with the default `net`, for pixels on the host that are NaN or
    above 1. Raises TypeError for bool labels, sparse and masked arrays, for an
    X of another dtype than the parameters, a Gluon block as `net`, and a `reduce` or
    `update` that returns a value; AssertionError if after the second step with your own
    `update` the replicas differ: later call :func:`assert_equal_replicas`. Parameters
    that are not finite are noticed by :func:`evaluate_accuracy`.
    """
    X_shards, y_shards = split_batch(X, y, busy(devices, X))
    check_replicas(device_params, devices, X_shards[0].dtype)
    check_net(net, X)
    with pushed_together(devices[0]):
        _clear_gradients(device_params)
        # The loss of each shard and its gradients, on its own device
        with autograd.record():
            y_hats = [net(X_k, params) for X_k, params in zip(X_shards, device_params)]
            check_labels(y, loss, y_hats[0])
            losses = [loss(y_hat, y_k) for y_hat, y_k in zip(y_hats, y_shards)]
        check_losses(loss, losses, y_hats, y_shards)
        for l in losses:
            l.backward()
        _keep_frozen(device_params)
        # Sum the gradients over the devices
        check_in_place("reduce", reduce(device_params))
        # Every replica takes the same step, divided by the size of the global batch
        for params in device_params:
            check_in_place("update", update(params, lr, len(X)))
    if update is not sgd and reduce is allreduce_gradients:
        check_after_two_steps(device_params)
    return losses


# What the four functions use.


def shares(n: int, parts: int) -> list[slice]:
    """Cut range(n) into contiguous parts, whose lengths differ by at most one.

    >>> shares(10, 3)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, parts)
    starts = [k * size + min(k, extra) for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def busy(devices: Sequence[mx.Context], X: np.ndarray) -> Sequence[mx.Context]:
    """Return the devices that get a sample of the batch X; at least one."""
    return devices[: max(1, len(X) if numpy.ndim(X) else 0)]


def _untied(params: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """Return the distinct arrays of a replica: tied weights are listed twice."""
    distinct = {id(p): p for p in params}
    return params if len(distinct) == len(params) else list(distinct.values())


def _on_device(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return the array on a device: a copy, unless it is an MXNet array there."""
    if isinstance(array, np.ndarray):
        return array.as_in_ctx(device)
    return _copy_to(array, device)


def _copy_to(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return a copy of the array on a device, of the same dtype."""
    return np.array(array, dtype=array.dtype, ctx=device)


def _clear_gradients(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Set all gradients to 0: an unused parameter would keep its last."""
    for k, params in enumerate(device_params):
        flat = getattr(params, "grads", None)  # of a bucket
        grads = [p.grad for p in params] if flat is None else [flat]
        absent = [i for i, g in enumerate(grads) if g is None]
        if absent:
            raise ValueError(
                f"parameter {absent[0]} of replica {k} has no gradient: use get_params"
            )
        arrays = [_legacy(g) for g in grads]
        mx.nd.reset_arrays(*arrays, num_arrays=len(arrays))


def _legacy(array: np.ndarray) -> mx.nd.NDArray:
    """Return the array for MXNet's older operations, to which () is no shape."""
    return (array if array.shape else array.reshape_view((1,))).as_nd_ndarray()


def _keep_frozen(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Give parameters with ``grad_req="null"`` the zeros back that backward took."""
    for params in device_params:
        for p in params if not hasattr(params, "grads") else ():
            if p.grad is None:
                p.attach_grad("null")


# Starting a small operation on a GPU takes longer than computing it. So on GPUs there
# are fewer of them, each of which computes the same numbers as many small ones.


def on_gpu_in_float32(params: Sequence[np.ndarray]) -> bool:
    """Return whether one operation on all `params` is faster than one on each."""
    on_gpu = params[0].ctx.device_type == "gpu"
    return on_gpu and all(p.dtype == numpy.float32 for p in params)


def pushed_together(device: mx.Context) -> contextlib.AbstractContextManager:
    """Push a GPU's operations in groups of 100.

    The engine waits for the GPU after each group, a quarter of the time from scratch.
    """
    on_gpu = device.device_type == "gpu"
    return mx.engine.bulk(100) if on_gpu else contextlib.nullcontext()


def _kvstore_for(arrays: Sequence[Sequence[np.ndarray]]) -> tuple:
    """Return keys and a kvstore that sums ``arrays[k]``, of device k, over all k."""
    shapes = tuple(array.shape for array in arrays[0])
    devices = tuple(of_one[0].ctx for of_one in arrays)
    return _kvstore(shapes, devices, threading.get_ident())


@functools.lru_cache(maxsize=8)
def _kvstore(shapes: tuple, devices: tuple, thread: int) -> tuple:
    # One per thread: its buffers hold a sum until all devices have copied it.
    keys, store = list(range(len(shapes))), mx.kv.create("device")
    store.init(keys, [np.zeros(shape, ctx=devices[0]) for shape in shapes])
    return keys, store
