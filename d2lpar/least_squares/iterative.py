"""Gradient descent and conjugate gradients, which all-reduce one vector per step.

r is b - A x, and the gradient A^T r, the direction of descent.
"""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Any

import numpy

from d2lpar._mxnet import mx
from d2lpar.epochs import check_whole
from d2lpar.least_squares.rows import Answer, Residual, RowShards, matmul

log = logging.getLogger("d2lpar")

STILL = 3  # conjugate steps in a row that leave ||r|| nearly as it is
# Iterations that become points of the history: 1, 2, 3, 5, 8, 12, 18, ...
POINTS = set(accumulate([1] * 40, lambda n, _: math.ceil(1.5 * n)))


def gradient(
    shards: RowShards,
    *,
    tol: float = 1e-8,
    max_iterations: int = 10_000,
    x0: numpy.ndarray | None = None,
) -> Iterator[Answer]:
    """Descend along the gradient: one all-reduce per step.

    Starts at `x0` (None is 0), and stops when the gradient's norm is `tol` times that
    at x = 0 (or less, where A x is nearly b), at rounding errors, or with a warning
    after `max_iterations`. Conjugate steps then look for an overlooked small singular
    value.
    """
    search = _Search(shards, tol, max_iterations, x0)
    v, largest = numpy.random.default_rng(0).normal(size=shards.n), 0.0
    for _ in range(20):
        v, largest = search.normal_product(v / (numpy.linalg.norm(v) or 1))
    # The estimate is a lower bound: keep some distance.
    step = first_step = 0.95 / largest if largest else 0.0
    iteration = 0
    while iteration < max_iterations and step > first_step / 100:
        if search.is_found():
            break
        x = search.best.x + step * search.best.gradient
        iteration += 1
        if iteration in POINTS:
            yield Answer(x, iteration)
        if not search.take(x):
            step /= 2
    if iteration < max_iterations:
        steps = islice(_conjugate_steps(search), 2 * STILL)
        x, _, _ = min(steps, key=lambda step: step[1], default=(search.best.x, 0, 0))
        square = shards.residual(x, gradient=False).norm ** 2
        if search.matters(search.best.norm**2 - square, square):
            log.warning("conjugate steps still lower ||A x - b||: use method tsqr")
    yield search.answer(iteration)


def cgls(
    shards: RowShards,
    *,
    tol: float = 1e-10,
    max_iterations: int | None = None,
    x0: numpy.ndarray | None = None,
) -> Iterator[Answer]:
    """Solve by conjugate gradients: one all-reduce of n + 1 numbers per iteration.

    As :func:`gradient`, but goes on while its steps lower ||r||, for 20 n iterations by
    default. From x0 = None, x is the minimum-norm solution if A is rank-deficient.
    """
    if max_iterations is None:
        max_iterations = 20 * shards.n
    search, iteration = _Search(shards, tol, max_iterations, x0), 0
    # The gradient is updated from step to step. Where the true one is too large at the
    # end, because of rounding errors, the search begins once more from there.
    for _ in range(2):
        found, least, since, still = search.best.x, math.inf, 0, 0
        square = search.best.norm**2
        # Rounding errors of the size of the start's are in all that is updated.
        noise = shards.eps * search.norm_of_A * search.best.norm
        left = max_iterations - iteration
        for x, size, fall in islice(_conjugate_steps(search), left):
            iteration += 1
            if iteration in POINTS:
                yield Answer(x, iteration)
            square = max(square - fall, 0.0)
            still = 0 if search.matters(fall, square) else still + 1
            since += 1
            if size < least:  # later steps follow rounding errors
                found, least, since = x, size, 0
            small = least <= max(noise, search.small_gradient(square**0.5))
            settled = still >= STILL
            if since > shards.n or (small and (settled or since >= 2 * STILL)):
                break
        if not search.take(found) or (still >= STILL and search.is_found()):
            break
    yield search.answer(iteration)


def _conjugate_steps(search: _Search) -> Iterator[tuple[numpy.ndarray, float, float]]:
    """Yield x after each CGLS step, ||A^T r|| and the fall of ||r||^2."""
    x, descent = search.best.x, search.best.gradient
    p, gamma = descent, descent @ descent
    while True:
        product, square_of_Ap = search.normal_product(p)
        if not 0 < square_of_Ap < math.inf:
            return
        search.least_square = min(search.least_square, square_of_Ap / (p @ p))
        alpha = gamma / square_of_Ap
        x, descent = x + alpha * p, descent - alpha * product
        fall, before, gamma = alpha * gamma, gamma, descent @ descent
        yield x, gamma**0.5, fall
        p = descent + gamma / before * p


class _Search:
    """Keep the best x so far with its residual and gradient; decide when to stop."""

    def __init__(self, shards: RowShards, tol: Any, max_iterations: int, x0) -> None:
        if not isinstance(tol, numbers.Real) or not 0 < float(tol) < 1:
            raise ValueError(f"tol {tol!r}: write a number between 0 and 1")
        check_whole("max_iterations", max_iterations)
        self.shards, self.max_iterations = shards, max_iterations
        self.tol = float(tol)
        at_0, self.lengths = _first_pass(shards)
        shards.check_finite(at_0)
        if at_0.any() and not 0 < at_0 @ at_0 < math.inf:
            raise ValueError(f"A^T b leaves the range of {shards.dtype}: scale A")
        # Of ||r||^2: `tol` allows this at a condition of 30.
        self.small = max(shards.eps**0.5, 1e3 * self.tol**2)
        self.norm_of_A = float(numpy.linalg.norm(self.lengths))
        self.asked_for = self.tol * float(numpy.linalg.norm(at_0))
        self.least_square = math.inf  # of ||A p|| / ||p||, over conjugate steps
        zero = numpy.zeros(shards.n)
        self.best: Residual = Residual(zero, shards.norm_of_b, at_0)
        if x0 is not None:
            self.best = shards.residual(shards.vector("x0", x0))

    def small_gradient(self, norm: float) -> float:
        """Return the ||A^T r|| at which to stop, where ||r|| is `norm`."""
        share = 10 * norm / (self.shards.norm_of_b or 1)
        rounding = self.shards.eps * self.norm_of_A * norm
        return max(self.asked_for * min(1.0, share), rounding)

    def is_found(self) -> bool:
        best = self.best
        solves = best.norm <= self.shards.rounding(best.x, self.lengths)  # A x = b
        return solves or best.size <= self.small_gradient(best.norm)

    def matters(self, fall: float, square: float) -> bool:
        """Return whether a fall of ||r||^2 to `square` counts as progress."""
        return fall > self.small * max(square, self.small * self.shards.norm_of_b**2)

    def take(self, x: numpy.ndarray) -> bool:
        """Keep `x` if it lowers ||r||, or ||A^T r|| at about the same ||r||."""
        new, old = self.shards.residual(x), self.best
        no_higher = new.norm <= (1 + self.shards.eps**0.5) * old.norm
        better = new.norm < old.norm or (new.size < old.size and no_higher)
        if better:
            self.best = new
        return better

    def normal_product(self, p: numpy.ndarray) -> tuple[numpy.ndarray, float]:
        """Return A^T A p (n,) and ||A p||^2, summed over the devices."""
        # The devices get a p of about ||A p|| = 1: a square soon overflows float32.
        length = float(numpy.linalg.norm(p)) * self.norm_of_A or 1.0
        norm, product = self.shards.products(p / length, lambda b, Ap: Ap)
        return length * product, numpy.square(length * norm)

    def answer(self, iteration: int) -> Answer:
        """Return the best x; warn if `max_iterations` came before it was found."""
        best, answer = self.best, Answer(self.best.x, iteration, self.best)
        if iteration < self.max_iterations or self.is_found():
            # The error that maps to this gradient, if A^T A shrinks it as it did the
            # steps; what rounding hides in the gradient belongs to it.
            hidden = self.shards.eps * self.norm_of_A * best.norm
            error = (best.size + hidden) / self.least_square
            norm = float(numpy.linalg.norm(best.x)) or 1.0
            return answer._replace(
                lengths=self.lengths, tol=self.tol, may_be_off=error / norm
            )
        log.warning(
            "not converged after %d iterations: ||A^T (A x - b)|| is %.1e, not %.1e as "
            "tol asks",
            iteration, best.size, self.small_gradient(best.norm),
        )  # fmt: skip
        return answer


def _first_pass(shards: RowShards) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return A^T b (n,), and about the lengths of A's columns (n,)."""
    # Within a factor of about 3: products of the columns with random normal numbers.
    rng, parts = numpy.random.default_rng(0), []
    for blocks in shards.rounds():
        for _, A, b in blocks:
            normal = rng.standard_normal((A.shape[0], 8))
            normal = mx.nd.array(normal, ctx=A.context, dtype=A.dtype)
            parts.append(matmul(A, mx.nd.concat(b, normal, dim=1), transpose=True))
    sums = sum(part.asnumpy().astype("float64") for part in parts)
    return sums[:, 0], abs(sums[:, 1:]).max(axis=1)
