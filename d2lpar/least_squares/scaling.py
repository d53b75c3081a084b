"""Powers of two that bring A and b to unit size, where their squares would not fit.

The square of 1e200 overflows float64, that of 1e-200 underflows to 0; in float32, 1e20
is enough. Multiplying by a power of two is exact, so a method that works on A 2^-e and
b 2^-f loses nothing. Ordinary data is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

# Numbers between 2^-limit and 2^limit: products of four of them, summed over many rows,
# stay far from the limits of the dtype.
NEEDS_NO_SCALING = {"float64": 100, "float32": 13}


class Scale(NamedTuple):
    """What methods work on is A 2^-e and b 2^-f; f (k,) has one per right-hand side."""

    e: int
    f: numpy.ndarray
    dtype: numpy.dtype

    @classmethod
    def choose(cls, size: float, b_sizes: Sequence[float], dtype: numpy.dtype) -> Scale:
        """The scale for an A, and columns of b, whose largest numbers are these."""

        def exponent(size: float, of_zero: int = 0) -> int:
            if size == 0:
                return of_zero
            power = int(numpy.frexp(size)[1])  # 0 for NaN and infinities
            return power if abs(power) > NEEDS_NO_SCALING[dtype.name] else 0

        e = exponent(size)
        # Where b is 0, x is wherever it starts: leave that as it is.
        return cls(e, numpy.array([exponent(s, of_zero=e) for s in b_sizes]), dtype)

    def fit_A(self, rows: numpy.ndarray) -> numpy.ndarray:
        """Rows of A, scaled, in the computation's dtype."""
        if self.e:
            rows = numpy.ldexp(rows.astype("float64", copy=False), -self.e)
        return rows.astype(self.dtype, copy=False)

    def fit_b(self, rows: numpy.ndarray) -> numpy.ndarray:
        """Rows of b (.., k), scaled, in the computation's dtype."""
        if self.f.any():
            rows = numpy.ldexp(rows.astype("float64", copy=False), -self.f)
        return rows.astype(self.dtype)

    def fit_x(self, x: numpy.ndarray) -> numpy.ndarray:
        """An x (n, k) of the given problem as one of the scaled problem."""
        return numpy.ldexp(x, self.e - self.f)

    def fit_lr(self, lr: float) -> float:
        """A step size for the scaled problem."""
        return float(numpy.ldexp(lr, 2 * self.e))

    def x(self, x: numpy.ndarray) -> numpy.ndarray:
        """The inverse of :meth:`fit_x`, in the computation's dtype.

        Raises ValueError for an x that this dtype cannot hold.
        """
        with numpy.errstate(over="ignore", under="ignore"):
            result = numpy.ldexp(x.astype("float64"), self.f - self.e)
            result = result.astype(self.dtype)
        was, largest = abs(x).max(axis=0), abs(result).max(axis=0)
        vanished = (largest < numpy.finfo(self.dtype).tiny) & (was > 0)
        if vanished.any() or not numpy.isfinite(largest).all():
            raise ValueError(
                f"x is too {'small' if vanished.any() else 'large'} for {self.dtype}: "
                "scale A or b" + (", or use float64" * (self.dtype == "float32"))
            )
        return result

    def norms(self, squares: numpy.ndarray) -> numpy.ndarray:
        """Norms of columns of the given problem, by squares (.., k) of the scaled one.

        Raises ValueError for one that is too large for float64.
        """
        with numpy.errstate(over="ignore"):
            norms = numpy.ldexp(numpy.sqrt(squares), self.f)
        if numpy.isinf(norms).any():
            raise ValueError("||A x - b|| is too large for float64: scale b")
        return norms


def largest(arrays) -> float:
    """The largest absolute value in arrays of numbers; NaN if one is NaN."""
    sizes = [max(float(a.max()), -float(a.min())) for a in arrays]
    return float(numpy.max(sizes)) if sizes else 0.0
