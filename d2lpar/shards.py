"""Contiguous parts of nearly equal length, and arrays on a device.

:func:`d2lpar.parallel.split_batch` cuts a batch with them. Workers, blocks of a linear
system and ring all-reduces are cut into the same parts.
"""

from __future__ import annotations

import numpy

from d2lpar._mxnet import mx, np


def shares(n: int, parts: int) -> list[slice]:
    """Cut range(n) into contiguous parts, whose lengths differ by at most one.

    With n < parts the last ones are empty.

    >>> shares(10, 3)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, parts)
    starts = [k * size + min(k, extra) for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]


def as_array(array) -> numpy.ndarray | np.ndarray:
    """Return NumPy and mx.np arrays as they are, legacy mx.nd arrays as mx.np views.

    Anything else becomes a NumPy array. Raises TypeError for a masked array.
    """
    if isinstance(array, np.ndarray):
        return array
    if isinstance(array, mx.nd.NDArray):
        return array.as_np_ndarray()
    if isinstance(array, numpy.ma.MaskedArray):
        raise TypeError("a masked array, whose mask would be lost: fill it first")
    return numpy.asarray(array)


def copy_to(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return a copy of the array on a device, of the same dtype."""
    return np.array(array, dtype=array.dtype, ctx=device)


def on_device(array: numpy.ndarray | np.ndarray, device: mx.Context) -> np.ndarray:
    """Return the array on a device: a copy, unless it is an MXNet array there."""
    if isinstance(array, np.ndarray):
        return array.as_in_ctx(device)
    return copy_to(array, device)
