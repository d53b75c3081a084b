"""Iterative least-squares solvers: gradient descent and conjugate gradients.

Both all-reduce one vector per step, as data-parallel training does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

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
    return _iterate(_gradient_descent, shards, progress, x0, (tol, max_iterations))


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
    and no transpose is ever formed. Each right-hand side has its own step lengths. It
    starts and stops as :func:`gradient` does; `max_iterations` is 20 n by default.
    """
    most = 20 * shards.n if max_iterations is None else max_iterations
    return _iterate(_conjugate_gradients, shards, progress, x0, (tol, most))


def _iterate(method, shards: RowShards, progress: Progress, x0, limits) -> Answer:
    """Iterate until the gradient is small, recording about 20 points of history."""
    tol, max_iterations = limits
    if not (math.isfinite(tol) and tol > 0) or max_iterations < 1:
        raise ValueError(
            f"tol {tol}, max_iterations {max_iterations}: write numbers above 0"
        )
    x = shards.starting_point(x0)
    at_zero, _ = _products(shards, numpy.zeros_like(x), residual=True)
    shards.check_finite(at_zero)
    descent, _ = _products(shards, x, residual=True)
    norms = numpy.linalg.norm(at_zero, axis=0)
    # Where 0 is the solution (b is 0), reduce the gradient at x0 instead.
    norms = numpy.where(norms > 0, norms, numpy.linalg.norm(descent, axis=0))
    next_point = 1
    points = method(shards, x, descent, tol * norms)
    for iteration, (x, now) in enumerate(points):
        if iteration == next_point:
            next_point = math.ceil(1.5 * iteration)
            progress.record(iteration, x)
        if (now <= tol * norms).all():
            break
        if iteration == max_iterations:
            log.warning(
                "%d iterations brought the gradient to %.1e of its start, not to %g",
                max_iterations, _ratio(now, norms).max(), tol,
            )  # fmt: skip
            break
    progress.record(iteration, x)
    return Answer(x)


def _gradient_descent(
    shards: RowShards, x: numpy.ndarray, descent: numpy.ndarray, goal: numpy.ndarray
) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """x and the norms (k,) of its gradients, before the first step and after each."""
    v = numpy.random.default_rng(0).normal(size=x.shape)
    for _ in range(20):
        v, squares = _products(shards, _ratio(v, numpy.linalg.norm(v, axis=0)))
    # The estimate is a lower bound: keep some distance.
    step = 0.95 / max(squares.max(), numpy.finfo(float).tiny)
    while True:
        yield x, numpy.linalg.norm(descent, axis=0)
        x = x + step * descent
        descent, _ = _products(shards, x, residual=True)


def _conjugate_gradients(
    shards: RowShards, x: numpy.ndarray, descent: numpy.ndarray, goal: numpy.ndarray
) -> Iterator[tuple[numpy.ndarray, numpy.ndarray]]:
    """As :func:`_gradient_descent`; a gradient below `goal` is a true one."""
    direction, gamma, exact = descent, (descent**2).sum(axis=0), True
    while True:
        if not exact and (numpy.sqrt(gamma) <= goal).all():
            # The recurrence drifts away from the true gradient: begin again with that.
            descent, _ = _products(shards, x, residual=True)
            direction, gamma, exact = descent, (descent**2).sum(axis=0), True
        yield x, numpy.sqrt(gamma)
        products, squares = _products(shards, direction)
        alpha = _ratio(gamma, squares)
        x = x + alpha * direction
        descent = descent - alpha * products
        previous, gamma = gamma, (descent**2).sum(axis=0)
        direction = descent + _ratio(gamma, previous) * direction
        exact = False


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
    total = shards.total(sum(part.asnumpy().astype("float64") for part in parts))
    return total[:-1], total[-1]


def _ratio(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """a / b, and 0 where b is 0: that right-hand side is solved."""
    return numpy.divide(a, b, out=numpy.zeros_like(a), where=b > 0)
