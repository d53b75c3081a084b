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
        self.shards, self.reference = shards, reference
        self.history: list[PointRecord] = []
        self.seconds = 0.0
        self.column_norms = numpy.empty(0)  # (k,), of the last residual
        self._begin = time.perf_counter()

    def record(self, iteration: int, x: numpy.ndarray, device_xs=None) -> None:
        """Add the host array `x` (n, k) to the history.

        `device_xs` are the devices' own (n, k), where they differ. Norms are Frobenius
        norms over all right-hand sides; the distance to a reference of 0 is ||x||.
        """
        npx.waitall()
        self.seconds += time.perf_counter() - self._begin
        squares = self.shards.residual_squares(x)
        self.column_norms = numpy.sqrt(squares.sum(axis=0))
        per_device = squares.sum(axis=1)
        if device_xs is not None:
            per_device = [self.shards.residual_squares(x_k).sum() for x_k in device_xs]
        distance = None
        if self.reference is not None:
            best = numpy.reshape(self.reference, x.shape)
            size = numpy.linalg.norm(best)
            distance = float(numpy.linalg.norm(x - best) / (size if size > 0 else 1))
        point = PointRecord(
            iteration=iteration,
            seconds=self.seconds,
            residual_norm=float(numpy.sqrt(squares.sum())),
            device_residual_norms=[float(numpy.sqrt(s)) for s in per_device],
            distance=distance,
        )
        self.history.append(point)
        npx.waitall()
        self._begin = time.perf_counter()
