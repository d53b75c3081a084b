"""Checks of a step's inputs: MXNet would compute wrongly, or name another cause."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy

from d2lpar._mxnet import gluon, mx, np

# Dtypes of MXNet.
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")


def as_array(name: str, array) -> numpy.ndarray | np.ndarray:
    """Return NumPy and mx.np arrays as they are, mx.nd arrays as views, others copied.

    Raises TypeError for a masked array and a dtype that MXNet does not have.
    """
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, mx.nd.NDArray):
        return array.as_np_ndarray()
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: fill it")
    array = numpy.asarray(array)
    if array.dtype.name not in DTYPES:
        raise TypeError(
            f"{name} is {array.dtype}: convert it by astype to one of MXNet's dtypes, "
            + ", ".join(DTYPES)
        )
    return array


def parameters(params: Iterable) -> tuple[list, list[numpy.ndarray | np.ndarray]]:
    """Return the parameters as a list, and as arrays; one may be listed twice.

    Raises TypeError unless a list of float arrays, ValueError for two views of one
    array.
    """
    if hasattr(params, "shape") or isinstance(params, dict):
        raise TypeError(f"params is one {type(params).__name__}: write a list")
    params = list(params)
    arrays = [as_array("a parameter", p) for p in params]
    for array in arrays:
        if numpy.dtype(array.dtype).kind != "f":
            raise TypeError(f"a parameter is {array.dtype}: write floats")
    distinct = {id(p): a for p, a in zip(params, arrays)}.values()
    on_devices = [a for a in distinct if isinstance(a, np.ndarray)]
    on_host = [a for a in distinct if isinstance(a, numpy.ndarray)]
    pairs = itertools.combinations(on_host, 2)
    if share_memory(on_devices) or any(numpy.shares_memory(a, b) for a, b in pairs):
        raise ValueError(
            "two parameters are views of one array: copies would be trained apart; "
            "list the same array twice, or copy one"
        )
    return params, arrays


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


def check_replicas(device_params: Sequence, devices: Sequence, dtype) -> None:
    """Raise unless ``device_params[k]`` is the replica on ``devices[k]``."""
    if len(device_params) != len(devices):
        raise ValueError(f"{len(device_params)} replicas for {len(devices)} devices")
    listed = [{id(p) for p in params} for params in device_params]
    if len(set().union(*listed)) < sum(map(len, listed)):
        raise ValueError("a parameter is in two replicas: get_params makes each")
    for k, (params, device) in enumerate(zip(device_params, devices)):
        where = getattr(params[0], "ctx", "the host")
        if where != device:  # one GPU may silently read another's memory
            raise ValueError(f"replica {k} is on {where}, its device is {device}")
    check_dtype(dtype, device_params[0][0].dtype)


def check_dtype(of_X, of_params) -> None:
    """Raise TypeError unless the data has the dtype of the parameters."""
    found, expected = numpy.dtype(of_X), numpy.dtype(of_params)
    if found != expected:
        raise TypeError(f"X is {found}, the parameters are {expected}: convert X")


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
    if y_hat.ndim == 2 and y.size != y.shape[0]:
        raise ValueError(f"y {y.shape}: write class numbers (n,), not one-hot vectors")
    if not isinstance(y, np.ndarray):
        wrong = y[~numpy.isin(y, numpy.arange(num_classes))]
        if wrong.size:
            raise ValueError(f"label {wrong[0]}: classes are 0 to {num_classes - 1}")


def check_losses(losses: Sequence[np.ndarray], shards: Sequence) -> None:
    """Raise ValueError unless there is one loss per sample: a mean is divided twice."""
    for l, shard in zip(losses, shards):
        if l.size != len(shard):
            raise ValueError(f"loss {l.shape}: return one value per sample")
