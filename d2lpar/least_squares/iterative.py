"""Iterative least-squares solvers: gradient descent and conjugate gradients.

Both all-reduce one vector per step, as data-parallel training does. r is b - A x.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import Residual, RowShards, check_between, times
from d2lpar.training import check_whole

log = logging.getLogger("d2lpar")

STILL = 3  # conjugate steps in a row that leave ||r|| nearly as it is


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
    that at x = 0 (or less, where A x is nearly b), or at rounding errors, or with a
    warning after `max_iterations`. A few conjugate steps then show whether it has
    overlooked a small singular value.
    """
    search = _Search(shards, progress, tol, max_iterations, x0)
    v, largest = numpy.random.default_rng(0).normal(size=shards.n), 0.0
    for _ in range(20):
        v, largest = _normal_product(search, v / (numpy.linalg.norm(v) or 1))
    # The estimate is a lower bound: keep some distance.
    step = first_step = 0.95 / largest if largest else 0.0
    while progress.iteration < max_iterations and step > first_step / 100:
        if search.is_found():
            break
        x = search.best.x + step * search.best.gradient
        progress.count(x)
        if not search.take(x):
            step /= 2
    if progress.iteration < max_iterations:
        x, _ = _conjugate_steps(search, 2 * STILL, lambda x: None)
        if search.lowers(shards.residual(x, gradient=False)):
            log.warning(
                "conjugate steps still lower ||A x - b||: A is ill-conditioned, use "
                "method tsqr"
            )
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
    ever formed. Starts and stops as :func:`gradient` does, but not while its steps
    lower ||r||; `max_iterations` is 20 n by default. From x0 = None, x is the
    minimum-norm solution if A is rank-deficient. If A is ill-conditioned, ||r|| reaches
    its minimum long before x is right: "tsqr" and "normal" estimate the condition.

    Rounding errors let the gradient, which is updated from step to step, drift away
    from the true one. Where that is too large at the end, the search begins once more.
    """
    if max_iterations is None:
        max_iterations = 20 * shards.n
    search = _Search(shards, progress, tol, max_iterations, x0)
    for _ in range(2):
        left = max_iterations - progress.iteration
        x, settled = _conjugate_steps(search, left, progress.count)
        if not search.take(x) or (settled and search.is_found()):
            break
    return search.end()


def _conjugate_steps(
    search: _Search, most: int, count: Callable[[numpy.ndarray], object]
) -> tuple[numpy.ndarray, bool]:
    """Take steps of CGLS from the best x; returns the x of the least gradient.

    Steps after that follow rounding errors, often into A's null space. Also returns
    whether ||r|| has settled: a gradient may be small because a singular value is.
    """
    x, descent, square = search.best.x, search.best.gradient, search.best.norm**2
    p, gamma = descent, descent @ descent
    # Rounding errors of the size of the start's are in all that is updated.
    noise = search.shards.eps * search.norm_of_A * search.best.norm
    found, least, since, still = x, math.inf, 0, 0
    for _ in range(most):
        small = least**0.5 <= max(noise, search.small_gradient(max(square, 0.0) ** 0.5))
        if since > len(x) or (small and (still >= STILL or since >= 2 * STILL)):
            break
        product, square_of_Ap = _normal_product(search, p)
        if not 0 < square_of_Ap < math.inf:
            break
        alpha = gamma / square_of_Ap
        x, descent = x + alpha * p, descent - alpha * product
        fall, before, gamma = alpha * gamma, gamma, descent @ descent
        p = descent + gamma / before * p
        count(x)
        square -= fall
        still = 0 if search.matters(fall, square) else still + 1
        since += 1
        if gamma < least:
            found, least, since = x, gamma, 0
    return found, still >= STILL


class _Search:
    """The best x so far with its residual and true gradient, and when to stop."""

    def __init__(
        self,
        shards: RowShards,
        progress: Progress,
        tol: float,
        max_iterations: int,
        x0: numpy.ndarray | None,
    ) -> None:
        check_between("tol", tol, 1)
        check_whole("max_iterations", max_iterations)
        self.shards, self.progress = shards, progress
        self.tol, self.max_iterations = float(tol), max_iterations
        at_0, self.lengths = _first_pass(shards)
        shards.check_finite(at_0)
        if at_0.any() and not 0 < at_0 @ at_0 < math.inf:
            raise ValueError(f"A^T b leaves the range of {shards.dtype}: scale A")
        # Of ||r||^2: `tol` allows this at a condition of 30.
        self.small = max(shards.eps**0.5, 1e3 * tol**2)
        self.norm_of_A = float(numpy.linalg.norm(self.lengths))
        self.asked_for = tol * float(numpy.linalg.norm(at_0))
        self.best = Residual(numpy.zeros(shards.n), [shards.norm_of_b], at_0)
        if x0 is not None:
            self.best = shards.residual(shards.shaped("x0", x0))

    def small_gradient(self, norm: float) -> float:
        """The ||A^T r|| that will do for an r of this norm."""
        share = 10 * norm / (self.shards.norm_of_b or 1)
        rounding = self.shards.eps * self.norm_of_A * norm
        return max(self.asked_for * min(1.0, share), rounding)

    def is_found(self) -> bool:
        best = self.best
        if best.norm <= self.shards.rounding(best.x, self.lengths):
            return True  # A x is b
        size = float(numpy.linalg.norm(best.gradient))
        return size <= self.small_gradient(best.norm)

    def matters(self, fall: float, square: float) -> bool:
        """Whether a fall of ||r||^2 to `square` has made a difference."""
        return fall > self.small * max(square, self.small * self.shards.norm_of_b**2)

    def lowers(self, new: Residual) -> bool:
        return self.matters(self.best.norm**2 - new.norm**2, new.norm**2)

    def take(self, x: numpy.ndarray) -> bool:
        """Keep `x` if its ||r|| is clearly lower, or only its true gradient is."""
        new, old = self.shards.residual(x), self.best
        smaller = numpy.linalg.norm(new.gradient) < numpy.linalg.norm(old.gradient)
        no_higher = new.norm <= (1 + self.shards.eps**0.5) * old.norm
        better = self.lowers(new) or bool(smaller and no_higher)
        if better:
            self.best = new
        return better

    def end(self) -> Answer:
        """Record the best x; warn if it was not found within `max_iterations`."""
        best, iteration = self.best, self.progress.iteration
        self.progress.record(iteration, best.x, best if iteration else None)
        if self.is_found() or iteration < self.max_iterations:
            return Answer(best.x, best, self.lengths, self.tol)
        log.warning(
            "after %d iterations ||A^T (A x - b)|| is %.1e, not %.1e as tol asks for",
            iteration, numpy.linalg.norm(best.gradient), self.small_gradient(best.norm),
        )  # fmt: skip
        return Answer(best.x, best)


def _first_pass(shards: RowShards) -> tuple[numpy.ndarray, numpy.ndarray]:
    """A^T b (n,), and the lengths of A's columns (n,) within a factor of about 3.

    A column's product with random normal numbers is about as large as the column.
    """
    rng = numpy.random.default_rng(shards.bounds[0][0])  # other numbers on each worker
    parts = []
    for blocks in shards.rounds():
        for _, A, b in blocks:
            normal = rng.standard_normal((A.shape[0], 8))
            normal = mx.nd.array(normal, ctx=A.context, dtype=A.dtype)
            parts.append(times(A, mx.nd.concat(b, normal, dim=1), transpose=True))
    sums = shards.total(sum(part.asnumpy().astype("float64") for part in parts))
    return sums[:, 0], abs(sums[:, 1:]).max(axis=1)


def _normal_product(search: _Search, p: numpy.ndarray) -> tuple[numpy.ndarray, float]:
    """A^T A p (n,) and ||A p||^2, summed over the devices.

    The devices get a p for which ||A p|| is about 1 or less: in float32 its square
    would soon overflow.
    """
    length = float(numpy.linalg.norm(p)) * search.norm_of_A or 1.0
    norms, product = search.shards.products(p / length, lambda b, Ap: Ap)
    return length * product, float(numpy.linalg.norm(length * norms)) ** 2
