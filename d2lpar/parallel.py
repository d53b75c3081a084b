"""Synchronous data parallelism in four functions, named as in the book.

Every device holds a replica of the parameters. A step splits the batch into one shard
per device, computes the gradients of each shard on its device, sums them over the
devices (all-reduce), and updates every replica alike with the sum divided by the size
of the global batch. So N devices compute what one device would.

The checks of arguments are in :mod:`d2lpar.step_checks`; :mod:`d2lpar.buckets` sums all
gradients at once; :mod:`d2lpar.lenet.scratch` trains by these steps.

Source: the book (d2l), "Training on Multiple GPUs",
https://d2l.ai/chapter_computational-performance/multiple-gpus.html
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy

from d2lpar import step_checks
from d2lpar._mxnet import autograd, mx, np
from d2lpar.devices import check_contexts, check_exists


def get_params(params: Sequence[np.ndarray], device: mx.Context) -> list[np.ndarray]:
    """Copy the parameters to a device and attach gradients: a new replica.

    `params` are MXNet or NumPy arrays of floats; one that is listed twice stays one:
    tied weights. Frozen arrays belong in the `net` of :func:`train_batch`. Raises
    TypeError for anything else, and :class:`~d2lpar.errors.DeviceError` for a GPU where
    there is none.

    >>> W1, b1 = np.ones((2, 3)), np.zeros(3)
    >>> new_params = get_params([W1, b1], mx.cpu(0))
    >>> print('b1 grad:', new_params[1].grad)
    b1 grad: [0. 0. 0.]
    """
    check_exists(device)
    arrays = zip(params, step_checks.as_params(params))
    copies = {id(p): np.array(a, dtype=a.dtype, ctx=device) for p, a in arrays}
    for p in copies.values():
        p.attach_grad()
    return [copies[id(p)] for p in params]


def allreduce(data: Sequence[np.ndarray]) -> None:
    """Replace the arrays of all devices by their sum, in place.

    `data` has one MXNet array of numbers per device, all of one shape and dtype; they
    may not overlap. Pass whole arrays or rows: MXNet copies a column, as a[:, 0], and
    the copy would be summed. Call it outside of ``autograd.record()``. Raises
    ValueError if the arrays differ, TypeError for bools and other libraries' arrays.

    >>> data = [np.ones((1, 2), ctx=mx.cpu(i)) * (i + 1) for i in range(2)]
    >>> allreduce(data)
    >>> print('after allreduce:', data[0], data[1])
    after allreduce: [[3. 3.]] [[3. 3.]]
    """
    step_checks.check_alike(data)
    total, *others = data
    for other in others:
        total += other.copyto(total.ctx)  # in place
    for other in others:
        total.copyto(other)


def split_batch(
    X: np.ndarray, y: np.ndarray, devices: Sequence[mx.Context]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Split features and labels over the devices, in order.

    `X` and `y` are (n, ...) with the same n: NumPy or MXNet arrays (``mx.nd`` too) of a
    dtype that MXNet has, which is kept. Returns ``(X_shards, y_shards)``, one per
    device, whose lengths differ by at most one. A shard of an MXNet array that stays on
    its device may share its memory. Raises ValueError if X and y differ in length or
    are empty, and with n < len(devices), as d2l's does: MXNet cannot compute on an
    empty shard. Raises TypeError unless `devices` is a list of contexts.

    >>> X, y = np.arange(24).reshape((4, 6)), np.arange(4)
    >>> X_shards, y_shards = split_batch(X, y, [mx.cpu(0), mx.cpu(1)])
    >>> print(X_shards[1].ctx, X_shards[1])
    cpu(1) [[12. 13. 14. 15. 16. 17.]
     [18. 19. 20. 21. 22. 23.]]
    """
    check_contexts(devices)
    X, y = step_checks.as_array("X", X), step_checks.as_array("y", y)
    step_checks.check_batch(X, y, devices)
    parts = shares(len(X), len(devices))
    X_shards = [on_device(X[part], device) for part, device in zip(parts, devices)]
    y_shards = [on_device(y[part], device) for part, device in zip(parts, devices)]
    return X_shards, y_shards


def allreduce_gradients(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each parameter's gradient over the replicas, in place."""
    for replicas in zip(*map(distinct, device_params)):
        allreduce([p.grad for p in replicas])


def sgd(params: Sequence[np.ndarray], lr: float, batch_size: int) -> None:
    """Take a step of minibatch SGD in place: p -= lr * p.grad / batch_size."""
    step_checks.check_rate(lr)
    for p in distinct(params):
        p -= lr / batch_size * p.grad


def train_batch(
    X: np.ndarray,
    y: np.ndarray,
    device_params: Sequence[Sequence[np.ndarray]],
    devices: Sequence[mx.Context],
    lr: float,
    *,
    net: Callable,
    loss: Callable,
    reduce: Callable = allreduce_gradients,
    update: Callable = sgd,
) -> list[np.ndarray]:
    """Take one step of synchronous data-parallel SGD on the global batch (X, y).

    ``loss(net(X, params), y)`` has one value per sample, which depends on no other one.
    ``device_params[k]`` is the replica on ``devices[k]``. ``reduce(device_params)``
    sums the gradients over the replicas, ``update(params, lr, n)`` takes the step: it
    is called once per replica, so keep its state, and a count of steps, by
    ``params[0].ctx``. Both work in place. Parameters that are not used and devices
    without a sample contribute zero. Returns the losses, (n_k,) per busy device,
    without waiting for them.

    Raises ValueError or TypeError for replicas on other devices, an empty batch, a mean
    loss, an `lr` that is not above 0, bool labels, a label on the host that is no class
    of Gluon's softmax loss, an X of another dtype than the parameters, and a `reduce`
    or `update` that returns a value; AssertionError if after 2, 4, 8, 16, ... steps
    with your own `update` the replicas differ. A step does not check for NaN;
    :func:`d2lpar.lenet.scratch.evaluate_accuracy` does.
    """
    X_shards, y_shards = split_batch(X, y, devices[: max(1, len(X))])
    step_checks.check_replicas(device_params, devices)
    step_checks.check_dtypes(X_shards[0], y_shards[0], device_params[0][0])
    for params in device_params:  # an unused parameter would keep its last gradient
        zero([p.grad for p in params])
    with autograd.record():  # each shard's loss, on its own device
        y_hats = [net(X_k, params) for X_k, params in zip(X_shards, device_params)]
        losses = [loss(y_hat, y_k) for y_hat, y_k in zip(y_hats, y_shards)]
    step_checks.check_losses(losses, y_shards, loss, y_hats, y)
    for l in losses:
        l.backward()
    # Sum over the devices; then every replica takes the same step.
    results = [reduce(device_params)]
    results += [update(params, lr, len(X)) for params in device_params]
    step_checks.check_results(results, device_params, update)
    return losses


# What the functions above use, and an all-reduce of the same bits on any devices.


def shares(n: int, parts: int) -> list[slice]:
    """Cut range(n) into contiguous parts, whose lengths differ by at most one.

    >>> shares(10, 3)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, parts)
    starts = [k * size + min(k, extra) for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def distinct(params: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the distinct arrays of a replica: tied weights are listed twice."""
    return list({id(p): p for p in params}.values())


def on_device(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return the array on a device: a copy, unless it is an MXNet array there."""
    if isinstance(array, np.ndarray):
        return array.as_in_ctx(device)
    return np.array(array, dtype=array.dtype, ctx=device)


def zero(arrays: Sequence[np.ndarray]) -> None:
    """Set the arrays of one device to 0, by one call."""
    if any(array is None for array in arrays):
        raise ValueError("a parameter has no gradient: get_params attaches one")
    # To MXNet's older operations () is no shape.
    older = [(a if a.shape else a.reshape_view((1,))).as_nd_ndarray() for a in arrays]
    mx.nd.reset_arrays(*older, num_arrays=len(older))


def allreduce_in_tree(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Sum each gradient over the replicas in place, in an order that is a tree.

    Eight are summed as ``((0+4) + (2+6)) + ((1+5) + (3+7))``, so that devices which
    take turns add their own first. With replicas on ``devices.for_chunks(devices)`` it
    is a `reduce` of `train_batch` whose bits do not depend on the number of devices.
    """
    for replicas in zip(*map(distinct, device_params)):
        sum_in_tree([p.grad for p in replicas])


def sum_in_tree(data: Sequence[np.ndarray]) -> None:
    """Replace the arrays by their sum, in place: 2 log2(N) rounds of N arrays."""
    rest, rounds = data, []
    while len(rest) > 1:
        half = (len(rest) + 1) // 2
        rounds.append([*zip(rest, rest[half:])])
        for total, other in rounds[-1]:
            total += other.as_in_ctx(total.ctx)
        rest = rest[:half]
    for total, other in (pair for pairs in reversed(rounds) for pair in pairs):
        total.copyto(other)
