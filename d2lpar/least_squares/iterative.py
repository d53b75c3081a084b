"""Iterative least-squares solvers: gradient descent and conjugate gradients.

Both all-reduce one vector per step, as data-parallel training does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy
import scipy.linalg

from d2lpar._mxnet import mx
from d2lpar.least_squares.checks import check_above_zero, check_count
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import RowShards, times

log = logging.getLogger("d2lpar")

WORTH_A_WARNING = {"float64": 3e4, "float32": 3e1}  # condition numbers of A


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
    and no transpose is ever formed. Each right-hand side has its own step lengths. One
    more, which costs about a fifth of the time, has a known random solution: where A is
    ill-conditioned, a small gradient is not yet a small error. So iterations go on
    until that solution is found with a relative error of sqrt(tol), too, but not much
    longer than three times what the gradient takes; then it warns. Otherwise it starts
    and stops as :func:`gradient` does; `max_iterations` is 20 n by default.
    """
    most = 20 * shards.n if max_iterations is None else max_iterations
    return _iterate(_conjugate_gradients, shards, progress, x0, (tol, most))


class _Step(NamedTuple):
    """Where a method stands after an iteration."""

    x: numpy.ndarray  # (n, k)
    gradient: numpy.ndarray  # its norms (k,)
    error: float = 0.0  # relative, of the solution that is known
    coefficients: tuple[list, list] = ([], [])  # see _condition


class _Goal(NamedTuple):
    """When to stop: `norms` (k,) are those of the gradients at x = 0."""

    tol: float
    norms: numpy.ndarray

    def is_near(self, step: _Step) -> bool:
        return bool((step.gradient <= self.tol * self.norms).all())

    def is_reached(self, step: _Step) -> bool:
        return self.is_near(step) and step.error <= math.sqrt(self.tol)


def _iterate(method, shards: RowShards, progress: Progress, x0, limits) -> Answer:
    """Iterate until the gradient is small, recording about 20 points of history."""
    tol, most = limits
    check_above_zero("tol", tol)
    check_count("max_iterations", most)
    zeros = numpy.zeros((shards.n, shards.num_rhs))
    at_zero, _ = _products(shards, zeros, residual=True)
    shards.check_finite(at_zero)
    x, descent = shards.starting_point(x0), at_zero
    if x0 is not None:
        descent, _ = _products(shards, x, residual=True)
        shards.check_finite(descent, otherwise="x0 is too large: A x0 overflows")
    norms = numpy.linalg.norm(at_zero, axis=0)
    # Where 0 is the solution (b is 0), reduce the gradient at x0 instead.
    norms = numpy.where(norms > 0, norms, numpy.linalg.norm(descent, axis=0))
    goal, next_point, best = _Goal(tol, norms), 1, None
    for iteration, step in enumerate(method(shards, x, descent, goal)):
        if iteration == next_point:
            next_point = math.ceil(1.5 * iteration)
            progress.record(iteration, step.x)
        if goal.is_near(step):
            if best is None:
                most = min(most, 3 * iteration + 10)
            if best is None or step.error <= best.error:
                best = step
        if goal.is_reached(step) or iteration >= most:
            break
    step = best or step  # rounding errors may have grown since
    progress.record(iteration, step.x)
    _warn(iteration, step, goal, shards.dtype.name)
    return Answer(step.x)


def _warn(iteration: int, step: _Step, goal: _Goal, dtype: str) -> None:
    """Warn of a goal that is not reached, and of a condition that costs digits."""
    if not goal.is_near(step):
        log.warning(
            "%d iterations brought the gradient to %.1e of its start, not to %g",
            iteration, _ratio(step.gradient, goal.norms).max(), goal.tol,
        )  # fmt: skip
    if step.error > math.sqrt(goal.tol):
        log.warning(
            "%d iterations found a known x with a relative error of %.0e: A is "
            "ill-conditioned or rank-deficient; method tsqr keeps the digits",
            iteration, step.error,
        )  # fmt: skip
    elif (condition := _condition(*step.coefficients)) > WORTH_A_WARNING[dtype]:
        log.warning(
            "A's condition is about %.0e: method tsqr keeps the digits", condition
        )


def _gradient_descent(
    shards: RowShards, x: numpy.ndarray, descent: numpy.ndarray, goal: _Goal
) -> Iterator[_Step]:
    """Where gradient descent stands before the first step and after each."""
    v = numpy.random.default_rng(0).normal(size=x.shape)
    for _ in range(20):
        v, squares = _products(shards, _ratio(v, numpy.linalg.norm(v, axis=0)))
    # The estimate is a lower bound: keep some distance.
    step = 0.95 / max(squares.max(), numpy.finfo(float).tiny)
    while True:
        yield _Step(x, numpy.linalg.norm(descent, axis=0))
        x = x + step * descent
        descent, _ = _products(shards, x, residual=True)


def _conjugate_gradients(
    shards: RowShards, x: numpy.ndarray, descent: numpy.ndarray, goal: _Goal
) -> Iterator[_Step]:
    """As :func:`_gradient_descent`; where the goal is reached, the gradient is true."""
    known = numpy.random.default_rng(0).normal(size=(shards.n, 1))
    if shards.m < shards.n:
        known = 0 * known  # no x can be found again: the minimum-norm one is the answer
    descent = numpy.hstack([descent, _products(shards, known)[0]])
    x = numpy.hstack([x, numpy.zeros_like(known)])
    direction, gamma, exact = descent, (descent**2).sum(axis=0), True
    lengths, ratios = [], []  # of the known solution's steps, and of its gradients
    while True:
        step = _progress_of(x, gamma, known)
        if not exact and goal.is_reached(step):
            # The recurrence drifts away from the true gradient: begin again with that.
            descent = descent.copy()
            descent[:, :-1], _ = _products(shards, x[:, :-1], residual=True)
            direction, gamma, exact = descent, (descent**2).sum(axis=0), True
            step = _progress_of(x, gamma, known)
        yield step._replace(coefficients=(lengths, ratios))
        products, squares = _products(shards, direction)
        alpha = _ratio(gamma, squares)
        x = x + alpha * direction
        descent = descent - alpha * products
        previous, gamma = gamma, (descent**2).sum(axis=0)
        beta = _ratio(gamma, previous)
        direction = descent + beta * direction
        lengths.append(alpha[-1])
        ratios.append(beta[-1])
        exact = False


def _progress_of(x: numpy.ndarray, gamma: numpy.ndarray, known: numpy.ndarray) -> _Step:
    """The step of x (n, k + 1), whose last column is to become the `known` x."""
    error = 0.0
    if gamma[-1] > 0 or x[:, -1].any():  # else A is 0: there is nothing to find
        error = numpy.linalg.norm(x[:, -1:] - known) / numpy.linalg.norm(known)
    return _Step(x[:, :-1], numpy.sqrt(gamma[:-1]), float(error))


def _condition(lengths: list[float], ratios: list[float]) -> float:
    """An estimate of A's condition, no larger than that, by steps of CG.

    Step lengths and ratios of squared gradients make the tridiagonal matrix of Lanczos'
    method, whose eigenvalues lie between those of A^T A (Golub and Van Loan, 11.3).
    """
    alpha, beta = numpy.array(lengths), numpy.array(ratios)
    if not (len(alpha) and alpha.all()):
        return 1.0
    diagonal = 1 / alpha
    diagonal[1:] += beta[:-1] / alpha[:-1]
    beside = numpy.sqrt(beta[:-1]) / alpha[:-1]
    t = scipy.linalg.eigvalsh_tridiagonal(diagonal, beside)
    return math.sqrt(t[-1] / t[0]) if t[0] > 0 else math.inf


def _products(shards: RowShards, p: numpy.ndarray, residual: bool = False):
    """A^T A p (n, k) and ||A p||^2 (k,), summed over the devices; p is on the host.

    With `residual` they are A^T (b - A p) and ||b - A p||^2. All devices work at the
    same time and send n + 1 numbers per right-hand side, which are summed on the host:
    the iteration's one all-reduce.
    """
    power = numpy.zeros(p.shape[1], int)
    if not residual:  # a gradient's size squares A's: keep ||A p||^2 within float32
        power = numpy.frexp(abs(p).max(axis=0))[1]
    ps, parts = shards.to_devices(numpy.ldexp(p, -power)), []
    for blocks in shards.rounds():
        for k, A, b in blocks:
            q = times(A, ps[k])
            if residual:
                q = b - q
            product, square = times(A, q, transpose=True), (q * q).sum(axis=0)
            parts.append(mx.nd.concat(product, square.reshape((1, -1)), dim=0))
    total = shards.total(sum(part.asnumpy().astype("float64") for part in parts))
    return numpy.ldexp(total[:-1], power), numpy.ldexp(total[-1], 2 * power)


def _ratio(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """a / b, and 0 where b is 0: that right-hand side is solved."""
    return numpy.divide(a, b, out=numpy.zeros_like(a), where=b > 0)
