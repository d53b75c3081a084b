"""Iterative least-squares solvers: gradient descent and conjugate gradients.

Both all-reduce one vector per step, as data-parallel training does.
"""

from __future__ import annotations

import logging
import math

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import RowShards, times

log = logging.getLogger("d2lpar")


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
    that at x = 0, or with a warning after `max_iterations`.
    """
    return _iterate(
        _GradientDescent,
        shards,
        progress,
        tol=tol,
        max_iterations=max_iterations,
        x0=x0,
    )


def cgls(
    shards: RowShards,
    progress: Progress,
    *,
    tol: float = 1e-10,
    max_iterations: int | None = None,
    x0: numpy.ndarray | None = None,
) -> Answer:
    """Conjugate gradients on the least-squares problem: one all-reduce per iteration.

    Every device sends n + 1 numbers per right-hand side, A_k^T A_k p and ||A_k p||^2,
    and no transpose is ever formed. It starts at `x0` (None is 0), and stops when the
    norm of the gradient is `tol` times that at x = 0, or with a warning after
    `max_iterations` (None: 20 n).
    """
    limit = 20 * shards.n if max_iterations is None else max_iterations
    return _iterate(
        _ConjugateGradients, shards, progress, tol=tol, max_iterations=limit, x0=x0
    )


def _iterate(
    method, shards: RowShards, progress: Progress, *, tol, max_iterations, x0
) -> Answer:
    """Iterate until the gradient is small, recording about 20 points of history."""
    if not (math.isfinite(tol) and tol > 0) or max_iterations < 1:
        raise ValueError(
            f"tol {tol}, max_iterations {max_iterations}: write numbers above 0"
        )
    start = shards.starting_point(x0)
    at_zero, _ = _products(shards, numpy.zeros_like(start), residual=True)
    shards.check_finite(at_zero)
    steps, iteration, next_point = method(shards, start), 0, 1
    norms = numpy.linalg.norm(at_zero, axis=0)
    # Where 0 is the solution (b is 0), reduce the gradient at x0 instead.
    norms = numpy.where(norms > 0, norms, steps.gradient_norms())
    while not steps.has_reached(tol * norms):
        if iteration == max_iterations:
            worst = _ratio(steps.gradient_norms(), norms).max()
            log.warning(
                "%d iterations brought the gradient to %.1e of its start, not to %g",
                max_iterations, worst, tol,
            )  # fmt: skip
            break
        steps.advance()
        iteration += 1
        if iteration == next_point:
            next_point = math.ceil(1.5 * iteration)
            progress.record(iteration, steps.x)
    progress.record(iteration, steps.x)
    return Answer(steps.x)


def _products(shards: RowShards, p: numpy.ndarray, residual: bool = False):
    """A^T A p (n, k) and ||A p||^2 (k,), summed over the devices; p is on the host.

    With `residual` they are A^T (b - A p) and ||b - A p||^2. All devices work at the
    same time and send n + 1 numbers per right-hand side, which are summed on the host:
    the iteration's one all-reduce.
    """
    ps, parts = shards.to_devices(p), []
    for blocks in shards.rounds():
        for k, A, b in blocks:
            q = times(A, ps[k])
            if residual:
                q = b - q
            product, square = times(A, q, transpose=True), (q * q).sum(axis=0)
            parts.append(mx.nd.concat(product, square.reshape((1, -1)), dim=0))
    total = sum(part.asnumpy().astype("float64") for part in parts)
    total = shards.total(total)
    return total[:-1], total[-1]


class _GradientDescent:
    """x -= gradient / largest eigenvalue, for each right-hand side."""

    def __init__(self, shards: RowShards, x: numpy.ndarray) -> None:
        self.shards, self.x = shards, x
        v = numpy.random.default_rng(0).normal(size=x.shape)
        for _ in range(20):
            v, squares = _products(shards, _ratio(v, numpy.linalg.norm(v, axis=0)))
        # The estimate is a lower bound: keep some distance.
        self.step = 0.95 / max(squares.max(), numpy.finfo(float).tiny)
        self.descent, _ = _products(shards, x, residual=True)

    def gradient_norms(self) -> numpy.ndarray:
        return numpy.linalg.norm(self.descent, axis=0)

    def has_reached(self, goal: numpy.ndarray) -> bool:
        return bool((self.gradient_norms() <= goal).all())

    def advance(self) -> None:
        self.x = self.x + self.step * self.descent
        self.descent, _ = _products(self.shards, self.x, residual=True)


class _ConjugateGradients:
    """CGLS for all right-hand sides at once, each with its own step lengths."""

    def __init__(self, shards: RowShards, x: numpy.ndarray) -> None:
        self.shards, self.x = shards, x
        self._restart()

    def _restart(self) -> None:
        self.descent, _ = _products(self.shards, self.x, residual=True)
        self.direction = self.descent.copy()
        self.gamma = (self.descent**2).sum(axis=0)
        self.exact = True

    def gradient_norms(self) -> numpy.ndarray:
        return numpy.sqrt(self.gamma)

    def has_reached(self, goal: numpy.ndarray) -> bool:
        if not (self.gradient_norms() <= goal).all():
            return False
        if not self.exact:  # the recurrence drifts away from the true gradient
            self._restart()
        return bool((self.gradient_norms() <= goal).all())

    def advance(self) -> None:
        products, squares = _products(self.shards, self.direction)
        alpha = _ratio(self.gamma, squares)
        self.x = self.x + alpha * self.direction
        self.descent = self.descent - alpha * products
        gamma = (self.descent**2).sum(axis=0)
        self.direction = self.descent + _ratio(gamma, self.gamma) * self.direction
        self.gamma, self.exact = gamma, False


def _ratio(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """a / b, and 0 where b is 0: that right-hand side is solved."""
    return numpy.divide(a, b, out=numpy.zeros_like(a), where=b > 0)
