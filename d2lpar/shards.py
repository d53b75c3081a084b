"""Contiguous parts of nearly equal length, and arrays on a device.

:func:`d2lpar.parallel.split_batch` cuts a batch with them. Workers, blocks of a linear
system and ring all-reduces are cut into the same parts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import mx, np

# Of MXNet.
DTYPES = ("float16", "float32", "float64", "uint8", "int8", "int32", "int64", "bool")


def shares(n: int, parts: int) -> list[slice]:
    """Cut range(n) into contiguous parts, whose lengths differ by at most one.

    With n < parts the last ones are empty.

    >>> shares(10, 3)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, parts)
    starts = [k * size + min(k, extra) for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def as_array(name: str, array) -> numpy.ndarray | np.ndarray:
    """Return NumPy and mx.np arrays as they are, legacy mx.nd arrays as mx.np views.

    Anything else becomes a NumPy array. Raises TypeError for a masked array, and for a
    dtype that MXNet does not have.
    """
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, mx.nd.NDArray):
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
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost: fill it first"
        )


def copy_to(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return a copy of the array on a device, of the same dtype."""
    return np.array(array, dtype=array.dtype, ctx=device)


def on_device(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return the array on a device: a copy, unless it is an MXNet array there."""
    if isinstance(array, np.ndarray):
        return array.as_in_ctx(device)
    return copy_to(array, device)


def share_memory(arrays: Sequence[np.ndarray]) -> bool:
    """Return whether two of the arrays overlap, as views of one array may.

    Arrays on different devices do not: only where two are on one device are addresses
    compared. MXNet knows the address before it has computed the array, unless oneDNN
    keeps the array in its own layout (a convolution's weights on a CPU context): then
    this call waits for that array.
    """
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
