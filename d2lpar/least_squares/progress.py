"""What a method reports while it works, and its answer."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy

from d2lpar._mxnet import npx
from d2lpar.least_squares.rows import RowShards
from d2lpar.records.kinds import PointRecord


class Answer(NamedTuple):
    """A method's x (n, k) on the host; for condition and rank see ``Solution``."""

    x: numpy.ndarray
    condition: float | None = None
    rank: int | None = None


class Progress:
    """The history of a run, and its clock, which stands still while x is measured.

    Raises ValueError if the size of `reference` is not that of x.
    """

    def __init__(self, shards: RowShards, reference=None) -> None:
        if reference is not None and numpy.size(reference) != shards.n * shards.num_rhs:
            raise ValueError(
                f"reference is of shape {numpy.shape(reference)}: write one of x's, "
                f"{shards.n} x {shards.num_rhs}"
            )
        try:
            self.reference = (
                None if reference is None else numpy.array(reference, float)
            )
        except (TypeError, ValueError):
            raise ValueError(f"reference {reference!r}: write numbers") from None
        self.shards = shards
        self.history: list[PointRecord] = []
        self.seconds = 0.0
        self.column_norms = numpy.empty(0)  # (k,), of the last residual
        self._begin = time.perf_counter()

    def record(self, iteration: int, x: numpy.ndarray, device_xs=None) -> None:
        """Add the host array `x` (n, k), of the scaled problem, to the history.

        `device_xs` are the devices' own (n, k), where they differ. Norms are Frobenius
        norms over all right-hand sides; the distance to a reference of 0 is ||x||.
        """
        npx.waitall()
        self.seconds += time.perf_counter() - self._begin
        norms = self._residual_norms(x)
        self.column_norms = numpy.hypot.reduce(norms, axis=0)
        per_device = numpy.hypot.reduce(norms, axis=1)
        if device_xs is not None:
            per_device = [_norm(self._residual_norms(x_k)) for x_k in device_xs]
        distance = None
        if self.reference is not None:
            best = numpy.reshape(self.reference, x.shape)
            size = _norm(best)
            off = _norm(self.shards.scale.x(x).astype("float64") - best)
            distance = off / (size if size > 0 else 1)
        point = PointRecord(
            iteration=iteration,
            seconds=self.seconds,
            residual_norm=_norm(self.column_norms),
            device_residual_norms=[float(norm) for norm in per_device],
            distance=distance,
        )
        self.history.append(point)
        npx.waitall()
        self._begin = time.perf_counter()

    def _residual_norms(self, x: numpy.ndarray) -> numpy.ndarray:
        """||A x - b|| (devices, k) of each device's rows, for an x that is scaled."""
        return self.shards.scale.norms(self.shards.residual_squares(x))


def _norm(array: numpy.ndarray) -> float:
    """The Frobenius norm, also of numbers whose squares over- or underflow."""
    return float(numpy.hypot.reduce(numpy.ravel(array)))
