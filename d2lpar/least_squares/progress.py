"""What a method returns, and the history of its run."""

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
    """The history of a run, with a timer that stops while residuals are computed."""

    def __init__(
        self, shards: RowShards, reference=None, *, residual: bool = True
    ) -> None:
        self.shards, self.reference, self.residual = shards, None, residual
        if reference is not None:
            self.reference = shards.shaped("reference", reference)
        self.history: list[PointRecord] = []
        self.seconds = 0.0
        self.column_norms = numpy.empty(0)  # (k,), of the last residual
        self._begin = time.perf_counter()

    def record(self, iteration: int, x: numpy.ndarray, device_xs=None) -> None:
        """Add the host array `x` (n, k) to the history.

        `device_xs` are the devices' own (n, k), if they differ. Norms are Frobenius
        norms over all right-hand sides; the distance to a reference of 0 is ||x||.
        Without `residual` there is no history, and no pass over A for it.
        """
        npx.waitall()
        self.seconds += time.perf_counter() - self._begin
        if not self.residual:
            self.column_norms = numpy.full(self.shards.num_rhs, numpy.nan)
            self._begin = time.perf_counter()
            return
        norms = self.shards.residual_norms(x)
        self.column_norms = numpy.linalg.norm(norms, axis=0)
        per_device = numpy.linalg.norm(norms, axis=1).tolist()
        if device_xs is not None:
            per_device = [self.shards.residual_norm(x_k) for x_k in device_xs]
        distance = None
        if self.reference is not None:
            size = numpy.linalg.norm(self.reference) or 1
            distance = float(numpy.linalg.norm(x - self.reference) / size)
        self.history.append(
            PointRecord(
                iteration=iteration,
                seconds=self.seconds,
                residual_norm=float(numpy.linalg.norm(self.column_norms)),
                device_residual_norms=per_device,
                distance=distance,
            )
        )
        npx.waitall()
        self._begin = time.perf_counter()
