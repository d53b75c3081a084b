"""What a method returns, and the history of its run."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy

from d2lpar._mxnet import npx
from d2lpar.least_squares.rows import Residual, RowShards
from d2lpar.records.kinds import PointRecord


class Answer(NamedTuple):
    """A method's x (n,) on the host, and what it takes to examine it.

    `residual` is that of x, `lengths` (n,) are those of A's columns, and `tol` is that
    of an iterative method; for condition and rank see ``Solution``.
    """

    x: numpy.ndarray
    residual: Residual | None = None
    lengths: numpy.ndarray | None = None
    tol: float = 0.0
    condition: float | None = None
    rank: int | None = None


class Progress:
    """The history of a run, with a timer that stops while residuals are computed."""

    def __init__(self, shards: RowShards, reference, residual: bool) -> None:
        self.shards, self.with_residual = shards, residual
        self.reference = reference
        if reference is not None:
            self.reference = shards.shaped("reference", reference)
        self.history: list[PointRecord] = []
        self.seconds, self.iteration, self._next_point = 0.0, 0, 1
        self._begin = time.perf_counter()

    def count(self, x: numpy.ndarray) -> None:
        """Count an iteration; about 20 of them become points of the history."""
        self.iteration += 1
        if self.iteration == self._next_point:
            self._next_point = math.ceil(1.5 * self.iteration)
            self.record(self.iteration, x)

    def record(
        self,
        iteration: int,
        x: numpy.ndarray,
        residual: Residual | None = None,
        device_xs=None,
        gradient: bool = False,
    ) -> Residual | None:
        """Add x (n,) to the history with its residual, which is measured if not given.

        `device_xs` are the devices' own x, if they differ. The distance to a reference
        of 0 is ||x||. Returns the residual, with its `gradient` if that is asked for.
        """
        npx.waitall()
        self.seconds += time.perf_counter() - self._begin
        if self.with_residual:
            residual = residual or self.shards.residual(x, gradient)
            norms = [float(norm) for norm in residual.norms]
            if device_xs is not None:
                norms = [self.shards.residual(x_k, False).norm for x_k in device_xs]
            distance = None
            if self.reference is not None:
                size = numpy.linalg.norm(self.reference) or 1
                distance = float(numpy.linalg.norm(x - self.reference) / size)
            point = PointRecord(
                iteration=iteration,
                seconds=self.seconds,
                residual_norm=residual.norm,
                device_residual_norms=norms,
                distance=distance,
            )
            self.history.append(point)
        self._begin = time.perf_counter()
        return residual
