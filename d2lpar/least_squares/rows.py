"""The rows of A and b, shared over devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx, np
from d2lpar.parallel import shares
from d2lpar.step_checks import as_array


class Answer(NamedTuple):
    """One iterate of a solver; what follows `device_xs` is known with the last one."""

    x: numpy.ndarray  # (n,), on the host
    iteration: int = 1
    device_xs: Sequence[numpy.ndarray] = ()  # the devices' own, where they differ
    norm_of_A: float | None = None  # from the exact methods
    condition: float | None = None
    rank: int | None = None


class RowShards:
    """Rows of A (m, n) and b (m,), shared in order over devices."""

    def __init__(self, A, b, devices: Sequence[mx.Context], dtype: str) -> None:
        self.A, b = _on_host("A", A), _on_host("b", b)
        if self.A.ndim != 2 or b.shape != self.A.shape[:1] or 0 in self.A.shape:
            raise ValueError(
                f"A is of shape {self.A.shape}, b of shape {b.shape}: write (m, n) and "
                "(m,)"
            )
        self.dtype = numpy.dtype(dtype)
        if self.dtype not in ("float64", "float32"):
            raise ValueError(f"dtype {dtype}: write float64 or float32")
        self.eps = float(numpy.finfo(self.dtype).eps)
        self.m, self.n = self.A.shape
        # Of singular values, over the largest: rounding of a QR does not grow like m.
        self.rank_cut = (self.n + self.m**0.5) * self.eps
        self.devices = list(devices)
        b = _finite("b", b)[:, None].astype(self.dtype)
        self.norm_of_b = float(numpy.linalg.norm(b.astype("float64")))
        # MXNet's copies from the host queue behind all work of cpu(0): it comes last.
        self.shards = [
            (self._place(self.A[part], device), self._place(b[part], device))
            for device, part in zip(self.devices, shares(self.m, len(devices)))
            if part.start < part.stop
        ][::-1]

    def vector(self, name: str, array) -> numpy.ndarray:
        """Return an array of n finite numbers in float64; ValueError for any other."""
        array = _on_host(name, array)
        if array.size != self.n:
            raise ValueError(f"{name} {array.shape}: write ({self.n},), as x")
        return _finite(name, array.reshape(self.n))

    def __iter__(self) -> Iterator[tuple[mx.nd.NDArray, mx.nd.NDArray]]:
        """Yield A (rows, n) and b (rows, 1) of each device with rows, last first."""
        return iter(self.shards)

    def _place(self, array: numpy.ndarray, device: mx.Context) -> mx.nd.NDArray:
        array = numpy.ascontiguousarray(array, self.dtype)
        if device == mx.cpu(0):
            # Read where it is; a view, because MXNet makes it read-only.
            return mx.nd.from_numpy(array.view(), zero_copy=True)
        placed = mx.nd.empty(array.shape, device, self.dtype)
        placed[:] = array  # mx.nd.array would make another copy on the host
        return placed

    def copies(self, x: numpy.ndarray) -> dict[mx.Context, mx.nd.NDArray]:
        """Return a host array (n,) as (n, 1) on each device."""
        return {d: mx.nd.array(x[:, None], d, self.dtype) for d in self.devices}

    def residual(self, x: numpy.ndarray) -> tuple[float, numpy.ndarray]:
        """Return ||r|| and A^T r (n,) of r = b - A x."""
        xs = self.copies(x)
        return self.products([b - matmul(A, xs[A.context]) for A, b in self])

    def products(self, qs: list[mx.nd.NDArray]) -> tuple[float, numpy.ndarray]:
        """Return ||q|| and A^T q (n,) of a q in shards (rows, 1), summed over devices.

        This is one all-reduce of n + 1 numbers.
        """
        parts = []
        for (A, _), q in zip(self, qs):
            square = (q * q).sum().reshape((1, 1))
            parts.append(mx.nd.concat(square, matmul(A, q, transpose=True), dim=0))
        sums = sum(part.asnumpy()[:, 0].astype("float64") for part in parts)
        return math.sqrt(sums[0]), sums[1:]

    def check_finite(self, *results) -> None:
        """Raise ValueError, which names A if it is the cause, for NaN and infinity."""
        if all(numpy.isfinite(result).all() for result in results):
            return
        _finite("A", self.A)
        raise ValueError(f"products of A and b overflow {self.dtype}: scale them")


def _on_host(name: str, array) -> numpy.ndarray:
    array = as_array(name, array)
    return array.asnumpy() if isinstance(array, np.ndarray) else array


def _finite(name: str, array: numpy.ndarray) -> numpy.ndarray:
    array = array.astype("float64")
    if not numpy.isfinite(array).all():
        raise ValueError(
            f"{name} holds NaN or infinity: numpy.isfinite({name}) shows where"
        )
    return array


def matmul(A: mx.nd.NDArray, x: mx.nd.NDArray, transpose: bool = False):
    """A x, or A^T x without forming A^T; x is (n, k) or (rows, k)."""
    # MXNet's BLAS is up to twice as fast with the long matrix on the right.
    product = mx.nd.linalg.gemm2(x, A, transpose_a=True, transpose_b=not transpose)
    if x.shape[1] == 1:
        return product.reshape((-1, 1))
    return product.T
