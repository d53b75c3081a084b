"""Iterative least-squares solvers: averaging, gradient descent, conjugate gradients.

They differ in how often the devices talk: once an epoch (averaging), or once a step
(an all-reduce of one vector, as in data-parallel training).
"""

from __future__ import annotations

import logging
import math

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.direct import Found
from d2lpar.least_squares.rows import RowShards, find_not_finite, times

log = logging.getLogger("d2lpar")


def _start(shards: RowShards, x0: numpy.ndarray | None) -> numpy.ndarray:
    """Where to start, (n, k) float64; None is 0."""
    size = (shards.n, shards.num_rhs)
    x0 = numpy.zeros(size) if x0 is None else numpy.array(x0, float)
    if x0.size != numpy.prod(size) or not numpy.isfinite(x0).all():
        raise ValueError(
            f"x0 is of shape {x0.shape} with {numpy.isfinite(x0).sum()} finite numbers:"
            f" write {size[0]} x {size[1]} finite numbers"
        )
    return x0.reshape(size)


def gradient(
    shards: RowShards,
    progress,
    *,
    tol: float = 1e-8,
    max_iterations: int = 10_000,
    x0: numpy.ndarray | None = None,
) -> Found:
    """Gradient descent, synchronous: one all-reduce of A^T (A x - b) a step.

    The step is 1 / the largest eigenvalue of A^T A, found by power iteration (one
    all-reduce each): it converges for any A, slowly for an ill-conditioned one. `x0` is
    where to start, None is 0. Stops when the norm of the gradient is `tol` of that at
    x = 0, and warns when `max_iterations` come first.
    """
    return _descend(shards, progress, _GradientDescent, tol, max_iterations, x0)


def cgls(
    shards: RowShards,
    progress,
    *,
    tol: float = 1e-10,
    max_iterations: int | None = None,
    x0: numpy.ndarray | None = None,
) -> Found:
    """Conjugate gradients on the least-squares problem: one all-reduce an iteration.

    Every device sends n + 1 numbers a right-hand side, A_k^T A_k p and ||A_k p||^2, and
    no transpose is ever made. `x0` is where to start, None is 0. Stops when the norm of
    the gradient is `tol` of that at x = 0, and warns when `max_iterations` (None: 20 n)
    come first.
    """
    limit = 20 * shards.n if max_iterations is None else max_iterations
    return _descend(shards, progress, _ConjugateGradients, tol, limit, x0)


def _descend(shards, progress, method, tol, max_iterations, x0) -> Found:
    """Iterate until the gradient is small, keeping about 20 points of history."""
    if not (math.isfinite(tol) and tol > 0) or max_iterations < 1:
        raise ValueError(
            f"tol {tol}, max_iterations {max_iterations}: write numbers above 0"
        )
    start = _start(shards, x0)
    at_zero, _ = _products(shards, numpy.zeros_like(start), residual=True)
    if not numpy.isfinite(at_zero).all():
        raise ValueError(find_not_finite(shards))
    steps, iteration, next_point = method(shards, start), 0, 1
    norms = numpy.linalg.norm(at_zero, axis=0)
    # Where 0 solves it (b is 0) an x0 elsewhere has its own gradient to bring down.
    norms = numpy.where(norms > 0, norms, steps.gradient_norms())
    goal = tol * norms
    while not steps.has_reached(goal):
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
            progress.pause()
            progress.point(iteration, steps.x)
            progress.resume()
    progress.pause()
    progress.point(iteration, steps.x)
    return Found(steps.x)


def _products(shards: RowShards, p: numpy.ndarray, residual: bool = False):
    """A^T A p (n, k) and ||A p||^2 (k,), summed over the devices; p is on the host.

    With `residual` it is A^T (b - A p) and ||b - A p||^2. All devices work at the same
    time; what they send is n + 1 numbers a right-hand side, summed on the host: the
    iteration's one all-reduce.
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
        # The estimate comes from below: stay a little clear of the bound.
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
    """CGLS, all right-hand sides at once; each with its own step lengths."""

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
        if not self.exact:  # the recurrence drifts off the gradient that it stands for
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
    """a / b, and 0 for a right-hand side that is solved: there b is 0."""
    return numpy.divide(a, b, out=numpy.zeros_like(a), where=b > 0)
