"""Checks of a step's inputs: MXNet would compute wrongly, or name another cause."""

from __future__ import annotations

import ctypes
import itertools
import math
import numbers
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.book_lenet import lenet
from d2lpar.datasets.fashion import check_scaled
from d2lpar.errors import SettingError

# Numbers that MXNet takes: no Fraction. A float16 over the batch size would be inexact.
REALS = (int, float, numpy.integer, numpy.float32)
# Dtypes of MXNet.
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")


def as_array(name: str, array) -> numpy.ndarray | np.ndarray:
    """Return NumPy and mx.np arrays as they are, mx.nd arrays as views, others copied.

    Raises TypeError for masked and sparse arrays, and for a dtype that MXNet lacks.
    """
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, mx.nd.NDArray):
        if array.stype != "default":
            raise TypeError(f"{name} is sparse: write array.tostype('default')")
        return array.as_np_ndarray()
    check_unmasked(name, array)
    array = numpy.asarray(array)
    if array.dtype.name not in DTYPES:
        raise TypeError(
            f"{name} is {array.dtype}: convert it by astype to one of MXNet's dtypes, "
            + ", ".join(DTYPES)
        )
    return array


def check_unmasked(name: str, array) -> None:
    """Raise TypeError for a masked array."""
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: fill it")


def parameters(params: Iterable) -> tuple[list, list[numpy.ndarray | np.ndarray]]:
    """Return the parameters as a list, and as arrays; one may be listed twice.

    Raises TypeError unless a list of float arrays, ValueError for two views of one
    array.
    """
    if hasattr(params, "shape") or isinstance(params, dict):
        raise TypeError(f"params is one {type(params).__name__}: write a list")
    # Python shares equal constants, so only arrays can be tied on purpose.
    plain = (numbers.Number, list, tuple)
    params = [numpy.array(p) if isinstance(p, plain) else p for p in params]
    arrays = [as_array("a parameter", p) for p in params]
    for array in arrays:
        if numpy.dtype(array.dtype).kind != "f":
            raise TypeError(f"a parameter is {array.dtype}: write floats")
    distinct = {id(p): a for p, a in zip(params, arrays)}.values()
    on_devices = [a for a in distinct if isinstance(a, np.ndarray)]
    on_host = [a for a in distinct if isinstance(a, numpy.ndarray)]
    if share_memory(on_devices) or share_host_memory(on_host):
        raise ValueError(
            "two parameters are views of one array: copies would be trained apart; "
            "list the same array twice, or copy one"
        )
    return params, arrays


def _byte_bounds(array: numpy.ndarray) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of that after its last."""
    first = last = array.__array_interface__["data"][0]
    for n, stride in zip(array.shape, array.strides):
        first, last = first + min(0, (n - 1) * stride), last + max(0, (n - 1) * stride)
    return first, last + array.itemsize


def share_memory(arrays: Sequence[np.ndarray]) -> bool:
    """Return whether two of the arrays overlap, as views of one array may."""
    if len({array.ctx for array in arrays}) == len(arrays):
        return False
    spans = []
    for array in arrays:
        address = ctypes.c_void_p()
        call = mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address))
        mx.base.check_call(call)
        begin = address.value or 0
        spans.append((begin, begin + array.size * numpy.dtype(array.dtype).itemsize))
    spans.sort()
    return any(begin < end for (_, end), (begin, _) in zip(spans, spans[1:]))


def share_host_memory(arrays: Sequence[numpy.ndarray]) -> bool:
    """Return whether two of the NumPy arrays have an element in common."""
    spans = sorted((*_byte_bounds(a), k) for k, a in enumerate(arrays) if a.size)
    for i, (_, end, k) in enumerate(spans):
        for begin, _, other in itertools.islice(spans, i + 1, None):
            if begin >= end:
                break
            if numpy.shares_memory(arrays[k], arrays[other]):
                return True
    return False


def check_rate(lr: float) -> None:
    """Raise :class:`SettingError` unless `lr` is a finite float or int above 0."""
    if not (isinstance(lr, REALS) and 0 < lr < math.inf):
        shown = " ".join(repr(lr).split())  # an array's has lines
        raise SettingError(f"lr {shown}: write a finite float greater than 0")


def check_replicas(device_params: Sequence, devices: Sequence, dtype) -> None:
    """Raise unless ``device_params[k]`` is the replica on ``devices[k]``."""
    if len(device_params) != len(devices):
        raise ValueError(f"{len(device_params)} replicas for {len(devices)} devices")
    listed = [{id(p) for p in params} for params in device_params]
    if len({*map(len, listed)}) > 1 or len({*map(len, device_params)}) > 1:
        raise ValueError(
            f"replicas of {', '.join(str(len(r)) for r in device_params)} parameters: "
            "get_params makes equal ones"
        )
    if not listed[0]:
        raise ValueError("the replicas are empty: get_params makes them")
    if len(set().union(*listed)) < sum(map(len, listed)):
        raise ValueError("a parameter is in two replicas: get_params makes each")
    if _is_new(device_params[0][0], "shapes"):
        shapes = [[getattr(p, "shape", ()) for p in params] for params in device_params]
        for i, of_all in enumerate(zip(*shapes)):
            if len({*of_all}) > 1:
                found = ", ".join(map(str, of_all))
                raise ValueError(f"parameter {i} has shapes {found} in the replicas")
    for k, (params, device) in enumerate(zip(device_params, devices)):
        where = getattr(params[0], "ctx", "the host")
        if where != device:  # one GPU may silently read another's memory
            raise ValueError(f"replica {k} is on {where}, its device is {device}")
    check_dtype(dtype, device_params[0][0].dtype)


def check_dtype(of_X, of_params) -> None:
    """Raise TypeError unless the data has the dtype of the parameters."""
    found, expected = numpy.dtype(of_X), numpy.dtype(of_params)
    if found != expected:
        raise TypeError(f"X is {found}, the parameters are {expected}: convert one")


def check_net(net: Callable, X: numpy.ndarray | np.ndarray) -> None:
    """Raise TypeError for a Gluon block, ValueError for host pixels that LeNet refuses.

    Pixels on a device are not read.
    """
    if isinstance(net, gluon.Block):
        raise TypeError("net is a Gluon block: call lenet_concise.train_batch")
    if net is lenet and isinstance(X, numpy.ndarray):
        check_scaled(X)


def check_labels(y, loss: Callable, y_hat: np.ndarray) -> None:
    """Raise unless `y` are labels for scores such as `y_hat`.

    MXNet clips class numbers silently. Labels on a device are not read.
    """
    y = as_array("y", y)
    if y.dtype == bool:  # MXNet would fail in a later step
        raise TypeError("y is bool: write labels as integers, y.astype('int32')")
    softmax = gluon.loss.SoftmaxCrossEntropyLoss
    if not isinstance(loss, softmax) or not loss._sparse_label:
        return
    num_classes = y_hat.shape[loss._axis]
    if y_hat.ndim == 2 and y.shape not in (y.shape[:1], (len(y), 1)):
        raise ValueError(f"y {y.shape}: write class numbers (n,), not one-hot vectors")
    check_classes(y, num_classes)


def check_classes(y, num_classes: int) -> None:
    """Raise ValueError for a label on the host that is no class."""
    if isinstance(y, numpy.ndarray):
        wrong = y[~numpy.isin(y, numpy.arange(num_classes))]
        if wrong.size:
            raise ValueError(f"label {wrong[0]}: classes are 0 to {num_classes - 1}")


_losses_seen: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def check_losses(
    loss: Callable,
    losses: Sequence[np.ndarray],
    y_hats: Sequence[np.ndarray],
    y_shards: Sequence[np.ndarray],
) -> None:
    """Raise ValueError unless there is one loss per sample: a mean is divided twice.

    Warn, once for a loss and these axes, if the first loss depends on other samples.
    """
    for l, shard in zip(losses, y_shards):
        if l.size != len(shard):
            raise ValueError(f"loss {l.shape}: return one value per sample")
    if type(loss).__module__ == gluon.loss.__name__:
        return
    y_hat, y = y_hats[0], y_shards[0]
    seen = _losses_seen.setdefault(getattr(loss, "__code__", loss), set())
    axes = (y_hat.ndim, y.ndim)
    if len(y) > 1 and axes not in seen:
        seen.add(axes)
        with autograd.pause():
            alone = loss(y_hat[:1], y[:1]).reshape(-1).asnumpy()
        among = losses[0].reshape(-1).asnumpy()
        limit = 0.001 * numpy.abs(among).max()
        if not numpy.allclose(alone, among[:1], 0.01, limit, equal_nan=True):
            warnings.warn(
                "the loss of a sample depends on the other samples (y_hat "
                f"{y_hat.shape}, y {y.shape}): several devices will differ from one. "
                "Give both one shape, as by y.reshape(y_hat.shape)",
                stacklevel=3,
            )


def check_in_place(name: str, returned: object) -> None:
    """Raise TypeError if a function that changes arrays in place returned a value."""
    if returned is not None:
        raise TypeError(
            f"{name} returned a {type(returned).__name__}, which train_batch ignores: "
            "change the arrays in place, as by p[:] = ..., and return None"
        )


def assert_equal_replicas(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise AssertionError unless all replicas are equal, up to rounding.

    ``device_params[k]`` is the replica on device k, as of :func:`get_params`. Waits for
    the devices and copies all parameters to the host, so it is not for every step.

    >>> from d2lpar import get_params, mx
    >>> replicas = [get_params([[1.0, 2.0]], mx.cpu(k)) for k in range(2)]
    >>> assert_equal_replicas(replicas)
    """
    first, *others = ([p.asnumpy() for p in params] for params in device_params)
    for k, replica in enumerate(others, start=1):
        if [p.shape for p in replica] != [p.shape for p in first]:
            raise AssertionError(f"replicas 0 and {k} differ in their shapes")
        for i, (p, q) in enumerate(zip(first, replica)):
            largest = numpy.abs(p[numpy.isfinite(p)]).max(initial=0)
            rounding = 8 * numpy.finfo(p.dtype).eps * largest
            if not numpy.allclose(p, q, rtol=0, atol=rounding, equal_nan=True):
                difference = numpy.fmax.reduce(abs(p - q), axis=None)
                raise AssertionError(
                    f"replicas 0 and {k} differ by {difference:.3g} in "
                    f"parameter {i}: an update is called once per replica, so its "
                    "state needs one entry per replica (by params[0].ctx)"
                )


def check_after_two_steps(device_params: Sequence[Sequence[np.ndarray]]) -> None:
    """Call :func:`assert_equal_replicas` in the second call with these replicas."""
    first = device_params[0][0]
    if not _is_new(first, "step") and _is_new(first, "second step"):
        assert_equal_replicas(device_params)


_seen: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def _is_new(array: np.ndarray, check: str) -> bool:
    """Return whether this is the first call for an array and a check: some are slow."""
    if _seen.get((id(array), check)) is array:
        return False
    if isinstance(array, np.ndarray):
        _seen[id(array), check] = array
    return True
