"""Mistakes that MXNet would not report, or would report misleadingly."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence

import numpy

from d2lpar._mxnet import gluon, mx, np
from d2lpar.errors import SettingError

# Dtypes of MXNet.
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")


def as_array(name: str, array) -> numpy.ndarray | np.ndarray:
    """Return NumPy and mx.np arrays as they are, mx.nd arrays as views, others copied.

    Raises TypeError for a dtype that MXNet lacks.
    """
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, mx.nd.NDArray):
        return array.as_np_ndarray()
    array = numpy.asarray(array)
    if array.dtype.name not in DTYPES:
        known = ", ".join(DTYPES)
        raise TypeError(f"{name} is {array.dtype}: convert it by astype to {known}")
    return array


def as_params(params: Sequence) -> list[numpy.ndarray | np.ndarray]:
    """Return parameters as NumPy and mx.np arrays; TypeError unless float arrays."""
    if hasattr(params, "shape"):
        raise TypeError(f"params is one {type(params).__name__}: write a list")
    for p in params:
        if not isinstance(p, (numpy.ndarray, mx.nd.NDArray)):
            found = f"params holds a {type(p).__name__}: write arrays"
            raise TypeError(f"{found}, as p.data() of a Gluon parameter")
        if numpy.dtype(p.dtype).kind != "f":
            raise TypeError(f"a parameter is {p.dtype}: write floats")
    return [as_array("a parameter", p) for p in params]


def check_alike(arrays: Sequence[np.ndarray]) -> None:
    """Raise unless distinct MXNet arrays of one type, shape and dtype, of numbers."""
    kinds = {(type(array), array.shape, array.dtype) for array in arrays}
    if len(kinds) != 1:
        raise ValueError(f"allreduce: write arrays of one shape and dtype: {kinds}")
    ((of_type, _, dtype),) = kinds
    if not issubclass(of_type, mx.nd.NDArray) or numpy.dtype(dtype) == bool:
        raise TypeError(
            f"allreduce: {of_type} of {dtype}: write MXNet arrays, no bools"
        )
    if len({id(array) for array in arrays}) < len(arrays):
        raise ValueError("allreduce: an array is listed twice")


def check_batch(X, y, devices: Sequence[mx.Context]) -> None:
    """Raise ValueError unless X and y are samples enough for all devices."""
    if X.ndim == 0 or X.shape[:1] != y.shape[:1]:
        raise ValueError(f"X {X.shape} and y {y.shape} differ in length")
    if X.size == 0:
        raise ValueError(f"the batch is empty: X {X.shape}")
    if len(X) < len(devices):
        raise ValueError(
            f"{len(X)} samples for {len(devices)} devices: split them over "
            f"devices[:{len(X)}], or call train_batch, which does"
        )


def check_replicas(
    device_params: Sequence[Sequence[np.ndarray]], devices: Sequence[mx.Context]
) -> None:
    """Raise ValueError unless ``device_params[k]`` is the replica on ``devices[k]``.

    One GPU may silently read another's memory.
    """
    found = [getattr(params[0], "ctx", "the host") for params in device_params]
    if found != list(devices):
        raise ValueError(f"the replicas are on {found}, not on {devices}")
    if len({id(params[0]) for params in device_params}) < len(device_params):
        raise ValueError("a replica is listed twice: call get_params for each device")


def check_dtypes(X, y, param) -> None:
    """Raise TypeError unless X has the dtype of the parameters, and for bools y."""
    found, expected = numpy.dtype(X.dtype), numpy.dtype(param.dtype)
    if found != expected:
        remedy = f"write X.astype('{expected}')"
        raise TypeError(f"X is {found}, the parameters are {expected}: {remedy}")
    if y.dtype == bool:  # MXNet would fail in a later step
        raise TypeError("y is bool: write integers, as y.astype('int32')")


def check_rate(lr: float) -> None:
    """Raise :class:`SettingError` unless `lr` is a finite number above 0."""
    if not (isinstance(lr, numbers.Real) and 0 < lr < math.inf):
        raise SettingError(f"lr {lr!r}: write a finite number above 0")


def check_losses(
    losses: Sequence, y_shards: Sequence, loss: Callable, y_hats: Sequence, y
) -> None:
    """Raise unless there is one loss per sample, and the labels `y` are labels.

    A mean would be divided twice. MXNet clips class numbers silently; those on a device
    are not read.
    """
    for l, shard in zip(losses, y_shards):
        if l.size != len(shard):
            raise ValueError(f"loss {l.shape}: return one value per sample")
    if isinstance(loss, gluon.loss.SoftmaxCrossEntropyLoss) and loss._sparse_label:
        check_classes(y, y_hats[0].shape[loss._axis])


def check_classes(y, num_classes: int) -> None:
    """Raise ValueError for a label on the host that is no class: MXNet clips it."""
    if not isinstance(y, mx.nd.NDArray):
        y = numpy.asarray(y)
        wrong = y[~numpy.isin(y, numpy.arange(num_classes))]
        if wrong.size:
            raise ValueError(f"label {wrong[0]}: classes are 0 to {num_classes - 1}")


def check_results(results: Sequence, device_params: Sequence, update: Callable) -> None:
    """Raise if `reduce` or `update` has returned a value, or replicas differ.

    They are compared, which waits, after 2, 4, 8, 16, ... steps with an `update` that
    is not of this package.
    """
    for result in results:
        if result is not None:
            found = f"a {type(result).__name__} was returned, and would be ignored"
            raise TypeError(f"{found}: reduce and update change arrays in place")
    is_ours = str(update.__module__).startswith("d2lpar.")
    if len(device_params) > 1 and not is_ours:
        first = device_params[0][0]
        first.num_steps = steps = getattr(first, "num_steps", 0) + 1
        if steps > 1 and not steps & (steps - 1):
            assert_equal_replicas(device_params)


def assert_equal_replicas(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise AssertionError unless all replicas have the same bits.

    ``device_params[k]`` is the replica on device k, as of :func:`get_params`. On
    devices of one kind equal steps leave equal bits. Waits for the devices and copies
    all parameters to the host, so it is not for every step.

    >>> from d2lpar import get_params, mx, np
    >>> replicas = [get_params([np.ones(2)], mx.cpu(k)) for k in range(2)]
    >>> assert_equal_replicas(replicas)
    """
    first, *others = ([p.asnumpy() for p in params] for params in device_params)
    for k, replica in enumerate(others, start=1):
        for i, (p, q) in enumerate(zip(first, replica)):
            if not numpy.array_equal(p, q, equal_nan=True):
                raise AssertionError(
                    f"replicas 0 and {k} differ by {abs(p - q).max():.3g} in parameter "
                    f"{i}: an update is called once per replica, so its state needs "
                    "one entry per replica (by params[0].ctx)"
                )
