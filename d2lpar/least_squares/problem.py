"""The arrays A and b, wherever they are stored: checked, and read row by row.

A is anything with a shape, a dtype and rows that can be sliced: a NumPy array or
memmap, the path of an ``.npy`` file, a Zarr or HDF5 array, or MXNet's. It need not fit
in memory.
"""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy

from d2lpar._mxnet import mx


def open_problem(A, b):
    """A as something that can be sliced, b as a host array (m,) or (m, k).

    Raises ValueError, naming what is wrong, for arrays that are empty, not real
    numbers, not of matching shapes, or shorter on disk than they claim.
    """
    A, b = _open(A, "A"), numpy.asarray(_open(b, "b"))
    for name, array in (("A", A), ("b", b)):
        dtype = numpy.dtype(array.dtype)
        if dtype.kind not in "fiub":
            raise ValueError(f"{name} is of dtype {dtype}: write real numbers")
    if len(A.shape) != 2:
        raise ValueError(f"A is of shape {tuple(A.shape)}: write a matrix (m, n)")
    if 0 in A.shape or 0 in b.shape:
        raise ValueError(f"A {tuple(A.shape)} or b {tuple(b.shape)} is empty")
    if b.ndim not in (1, 2) or b.shape[0] != A.shape[0]:
        turned = b.ndim == 2 and b.shape[1] == A.shape[0]
        raise ValueError(
            f"b is of shape {b.shape}, A of shape {tuple(A.shape)}: b needs "
            f"{A.shape[0]} rows" + (", as b.T has" if turned else "")
        )
    return A, b


def _open(array, name: str):
    if isinstance(array, (str, Path)):
        try:
            return numpy.load(array, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: {array} cannot be opened ({error})") from None
    if isinstance(array, numpy.ma.MaskedArray):
        raise ValueError(f"{name} is masked: leave out the rows that do not count")
    if isinstance(array, mx.nd.NDArray):  # mx.np's are, too
        return array.asnumpy()
    if not hasattr(array, "dtype"):
        return numpy.asarray(array)
    if isinstance(array, numpy.memmap):
        _check_file_is_whole(array, name)
    return array


def _check_file_is_whole(array: numpy.memmap, name: str) -> None:
    """Raise ValueError for a mapping that is longer than its file.

    Access beyond the end does not raise: it kills the process.
    """
    mapping = array
    while isinstance(mapping, numpy.ndarray):
        mapping = mapping.base
    if not isinstance(mapping, mmap.mmap):
        return  # a copy of a part, in memory
    begins = array.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    needed = begins + len(mapping)
    if mapping.size() < needed:
        raise ValueError(
            f"{name}: {array.filename} is {mapping.size()} bytes long, not {needed}: "
            "truncated, or not yet completely written"
        )


def rows_of(A, start: int, stop: int, dtype: numpy.dtype) -> numpy.ndarray:
    """Rows start:stop of A as an array of its own.

    Those of a whole memmap are read from its file, because the pages of a mapping would
    stay in memory. (A part of a memmap does not know where in the file it begins.)
    """
    whole = isinstance(A, numpy.memmap) and isinstance(A.base, mmap.mmap)
    if not whole or not A.flags.c_contiguous:
        return numpy.ascontiguousarray(A[start:stop], dtype=dtype)
    with open(A.filename, "rb") as f:
        f.seek(A.offset + start * A.strides[0])
        rows = numpy.fromfile(f, A.dtype, (stop - start) * A.shape[1])
    if rows.size < (stop - start) * A.shape[1]:
        raise ValueError(f"{A.filename}: ends before row {stop} of {A.shape[0]}")
    return rows.reshape(stop - start, A.shape[1]).astype(dtype, copy=False)


def find_not_finite(A, b: numpy.ndarray) -> str | None:
    """The first NaN or infinity of A (m, n) or b (m, k) and its place, in words."""
    for name, array in (("A", A), ("b", b)):
        m, width = array.shape
        step = max(1, 2**23 // width)  # 64 MB at a time
        for start in range(0, m, step):
            stop = min(start + step, m)
            rows = rows_of(array, start, stop, numpy.dtype("float64"))
            bad = numpy.argwhere(~numpy.isfinite(rows))
            if len(bad):
                row, column = bad[0]
                value = rows[row, column]
                return f"{name} is {value} in row {start + row}, column {column}"
    return None
