"""Iterative least-squares solvers: gradient descent and conjugate gradients.

Both solve for one right-hand side and all-reduce one vector per step, as data-parallel
training does. They return the x whose gradient, computed again from A and b, is the
smallest.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import RowShards, times
from d2lpar.training import check_whole

log = logging.getLogger("d2lpar")

# A gradient `tol` times that at 0 allows x to be off by tol * condition^2.
WARN_IF_OFF_BY = 1e-3


def gradient(
    shards: RowShards,
    progress: Progress,
    *,
    tol: float = 1e-8,
    max_iterations: int = 10_000,
    x0: numpy.ndarray | None = None,
) -> Answer:
    """Synchronous gradient descent: one all-reduce of A^T (A x - b) per step.

    The step size is 1 / the largest eigenvalue of A^T A, found by power iteration (one
    all-reduce each): it converges for any A, but slowly for an ill-conditioned one. It
    starts at `x0` (None is 0), and stops when the norm of the gradient is `tol` times
    that at x = 0, or with a warning after `max_iterations`, or if rounding errors stop
    all progress. A `tol` below ten times the dtype's epsilon counts as that. Like
    :func:`cgls` it warns of an ill-conditioned A where its steps show it.
    """
    search = _Search(shards, progress, tol, max_iterations, x0)
    v = numpy.random.default_rng(0).normal(size=(shards.n, 1))
    for _ in range(20):
        v /= numpy.linalg.norm(v) or 1
        v, largest = _normal_product(shards, v)
    search.see(largest)
    # The estimate is a lower bound: keep some distance.
    step = first_step = 0.95 / max(largest, sys.float_info.min)
    while search.goes_on() and step > first_step / 100:
        descent = search.descent
        x = search.x + step * descent
        search.count(x)
        ratio = search.take(x)
        if ratio >= 1:
            step /= 2
        else:  # A^T A times the step is what the gradient has lost
            lost = float((descent * (descent - search.descent)).sum())
            search.see(lost / (step * float((descent**2).sum())))
    return search.end()


def cgls(
    shards: RowShards,
    progress: Progress,
    *,
    tol: float = 1e-10,
    max_iterations: int | None = None,
    x0: numpy.ndarray | None = None,
) -> Answer:
    """Conjugate gradients on the least-squares problem: one all-reduce per iteration.

    Every device sends n + 1 numbers, A_k^T A_k p and ||A_k p||^2, and no transpose is
    ever formed. Starts and stops as :func:`gradient` does; `max_iterations` is 20 n by
    default. From x0 = None, x is the minimum-norm solution if A is rank-deficient.

    If A is ill-conditioned, ||A x - b|| reaches its minimum long before x is right. The
    extremes of ||A p|| / ||p|| over the steps bound the condition from below. If that
    bound lets x be off by more than 1e-3, a warning names it. It sees only directions
    that the gradient contains, so silence is no proof: "tsqr" and "normal" estimate the
    condition itself.

    The gradient is updated from step to step, and rounding errors let it drift away
    from the true one. So once it is small enough, or no longer shrinks, the true one is
    computed, and the search begins again from there as long as that halves it.
    """
    if max_iterations is None:
        max_iterations = 20 * shards.n
    search = _Search(shards, progress, tol, max_iterations, x0)
    eps, shrinks = float(numpy.finfo(shards.dtype).eps), True
    while search.goes_on() and shrinks:
        x = best_x = search.x
        descent = direction = search.descent
        gamma = least = float((descent**2).sum())
        square, idle = search.square, 0  # ||A x - b||^2, as the steps have it
        while gamma**0.5 > search.goal and idle <= shards.n and search.may_count():
            product, stretch = _normal_product(shards, direction)
            if stretch == 0:
                break
            search.see(stretch)
            alpha = gamma / float((direction**2).sum()) / stretch
            x = x + alpha * direction
            descent = descent - alpha * product
            square -= alpha * gamma
            previous, gamma = gamma, float((descent**2).sum())
            direction = descent + gamma / previous * direction
            search.count(x)
            # Stop where the predicted residual is negative: rounding dominates.
            if not math.isfinite(gamma) or square < -(eps**0.5) * search.square:
                break
            if gamma < least:
                best_x, least, idle = x, gamma, 0
            else:
                idle += 1
        shrinks = search.take(best_x) <= 0.5
    return search.end()


class _Search:
    """The best x so far with its true gradient, and when to stop."""

    def __init__(
        self,
        shards: RowShards,
        progress: Progress,
        tol: float,
        max_iterations: int,
        x0: numpy.ndarray | None,
    ) -> None:
        if not 0 < tol < math.inf:
            raise ValueError(f"tol {tol!r}: write a finite number above 0")
        check_whole("max_iterations", max_iterations)
        self.shards, self.progress = shards, progress
        self.iteration, self.max_iterations, self._next_point = 0, max_iterations, 1
        self.tol = max(tol, 10 * float(numpy.finfo(shards.dtype).eps))
        self._smallest, self._largest = math.inf, 0.0  # of ||A p||^2 / ||p||^2
        self.goal = self.tol * self._begin(None)
        if x0 is not None:
            at_x0 = self._begin(x0)
            # If 0 is the solution (b is 0), reduce the gradient at x0 instead.
            self.goal = self.goal or self.tol * at_x0

    def _begin(self, x0: numpy.ndarray | None) -> float:
        """Begin at `x0`; returns the norm of its gradient."""
        self.x = self.shards.shaped("x0", x0)
        # A^T (b - A x), and ||b - A x||^2
        self.descent, self.square = _residual_product(self.shards, self.x)
        with numpy.errstate(over="ignore"):
            norm = float(numpy.linalg.norm(self.descent))
        self.shards.check_finite(norm)
        if norm < self.shards.too_small:  # b may be 0, or orthogonal to A
            self.shards.check_not_tiny()
        return norm

    def goes_on(self) -> bool:
        norm = float(numpy.linalg.norm(self.descent))
        return norm > self.goal and self.may_count()

    def may_count(self) -> bool:
        return self.iteration < self.max_iterations

    def count(self, x: numpy.ndarray) -> None:
        """Count an iteration; about 20 of them become points of the history."""
        self.iteration += 1
        if self.iteration == self._next_point:
            self._next_point = math.ceil(1.5 * self.iteration)
            self.progress.record(self.iteration, x)

    def see(self, stretch: float) -> None:
        """Note ||A p||^2 / ||p||^2 of a step p, for the bound of A's condition."""
        if stretch > 0:
            self._smallest = min(self._smallest, stretch)
            self._largest = max(self._largest, stretch)

    def take(self, x: numpy.ndarray) -> float:
        """Keep `x` if its true gradient is smaller and its residual no larger.

        Returns the ratio of its gradient to the best so far; 1 if it is not better.
        """
        descent, square = _residual_product(self.shards, x)
        before, after = numpy.linalg.norm(self.descent), numpy.linalg.norm(descent)
        slack = 1 + float(numpy.finfo(self.shards.dtype).eps) ** 0.5
        if not (after < before and square <= slack * self.square):
            return 1.0
        self.x, self.descent, self.square = x, descent, square
        return float(after / before)

    def end(self) -> Answer:
        """Record the best x; warn if its gradient is too large, or says too little."""
        self.progress.record(self.iteration, self.x)
        norm = float(numpy.linalg.norm(self.descent))
        enough = (WARN_IF_OFF_BY / min(self.tol, 1e-6)) ** 0.5
        if norm > self.goal:
            reached = norm / self.goal * self.tol if self.goal else math.inf
            log.warning(
                "%d iterations brought the gradient to %.1e of its start, not to %.1e",
                self.iteration, reached, self.tol,
            )  # fmt: skip
        elif self._largest > enough**2 * self._smallest:
            log.warning(
                "x may be off, A's condition is at least %.0e: method tsqr keeps the "
                "digits",
                (self._largest / self._smallest) ** 0.5,
            )
        return Answer(self.x)


def _normal_product(shards: RowShards, p: numpy.ndarray) -> tuple[numpy.ndarray, float]:
    """A^T A p (n, 1) and ||A p||^2 / ||p||^2, summed over the devices.

    The devices get p / ||p||: in float32 a gradient, which squares A's numbers, would
    overflow in ||A p||^2.
    """
    length = float(numpy.linalg.norm(p)) or 1.0
    sums = _products(shards, p / length, lambda b, Ap: Ap)
    stretch = float(sums[-1, 0])
    if not stretch < 1 / shards.too_small**2:
        shards.check_finite(numpy.inf)
    if stretch < shards.too_small**2:  # p may be in A's null space
        shards.check_not_tiny()
    return length * sums[:-1], stretch


def _residual_product(
    shards: RowShards, x: numpy.ndarray
) -> tuple[numpy.ndarray, float]:
    """A^T (b - A x) (n, 1) and ||b - A x||^2, summed over the devices."""
    sums = _products(shards, x, lambda b, Ax: b - Ax)
    return sums[:-1], float(sums[-1, 0])


def _products(shards: RowShards, x: numpy.ndarray, of_rows: Callable) -> numpy.ndarray:
    """A^T q over ||q||^2, (n + 1, 1) in float64 on the host, for q = of_rows(b, A x).

    All devices work at the same time and send n + 1 numbers, which are summed on the
    host: the iteration's one all-reduce.
    """
    xs, parts = shards.to_devices(x), []
    for blocks in shards.rounds():
        for k, A, b in blocks:
            q = of_rows(b, times(A, xs[k]))
            square = (q * q).sum(axis=0).reshape((1, 1))
            parts.append(mx.nd.concat(times(A, q, transpose=True), square, dim=0))
    return shards.total(sum(part.asnumpy().astype("float64") for part in parts))
