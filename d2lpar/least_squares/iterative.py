"""Iterative least-squares solvers: gradient descent and conjugate gradients.

Both all-reduce one vector per step, as data-parallel training does, and return the x
whose gradient, computed anew from A and b, is the smallest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.rows import Answer, Block, Progress, RowShards, times
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
    all progress. A `tol` below ten times the dtype's epsilon counts as that. A warning
    says so where A's condition lets x be off by more than 1e-3.
    """
    search = _Search(shards, progress, tol, max_iterations, x0)
    v = numpy.random.default_rng(0).normal(size=(shards.n, 1))
    for _ in range(20):
        v, squares = _products(shards, v / (numpy.linalg.norm(v) or 1))
    # The estimate is a lower bound: keep some distance.
    step = first_step = 0.95 / max(squares.max(), numpy.finfo(float).tiny)
    while search.goes_on() and step > first_step / 100:
        x = search.x + step * search.descent
        search.count(x)
        if search.take(x) >= 1:
            step /= 2
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

    Every device sends n + 1 numbers per right-hand side, A_k^T A_k p and ||A_k p||^2,
    and no transpose is ever formed. Each right-hand side has its own step lengths. A
    random vector beside them, for the first steps, tells of A's condition.
    Starts and stops as :func:`gradient` does; `max_iterations` is 20 n by default.
    From x0 = None, x is the minimum-norm solution if A is rank-deficient. If A is
    ill-conditioned, ||A x - b|| reaches its minimum long before x is right.

    The gradient is updated from step to step, and rounding errors let it drift away
    from the true one. So once it is small enough, or no longer shrinks, the true one is
    computed, and the search begins again from there as long as that halves it.
    """
    most = 20 * shards.n if max_iterations is None else max_iterations
    search = _Search(shards, progress, tol, most, x0)
    eps = numpy.finfo(shards.dtype).eps
    shrinks = True
    while search.goes_on() and shrinks:
        x = best_x = search.x
        descent = direction = search.descent
        gamma = least = (descent**2).sum(axis=0)
        left, idle = search.squares, 0  # ||A x - b||^2, as the steps have it
        active = numpy.sqrt(gamma) > search.goal
        while active.any() and idle <= shards.n and search.may_count():
            products, squares = search.probe.products(direction)
            shards.check_finite(products, squares)
            alpha = _ratio(gamma, squares)
            x = x + alpha * direction
            descent = descent - alpha * products
            left = left - alpha * gamma
            previous, gamma = gamma, (descent**2).sum(axis=0)
            beta = _ratio(gamma, previous)
            search.count(x)
            # Steps that claim to remove more than there is are rounding errors.
            active &= numpy.isfinite(gamma) & (left >= -(eps**0.5) * search.squares)
            smaller = active & (gamma < least)
            best_x = numpy.where(smaller, x, best_x)
            least = numpy.where(smaller, gamma, least)
            idle = 0 if smaller.any() else idle + 1
            active &= numpy.sqrt(gamma) > search.goal
            x = numpy.where(active, x, best_x)
            direction = numpy.where(active, descent + beta * direction, 0)
            descent = numpy.where(active, descent, 0)
            gamma = numpy.where(active, gamma, 0)
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
        self.x = shards.starting_point(None)
        # A^T (b - A x), and ||A x - b||^2 of each right-hand side
        self.descent, self.squares = _products(shards, self.x, residual_of=_given_b)
        with numpy.errstate(over="ignore"):
            self.goal = self.tol * numpy.linalg.norm(self.descent, axis=0)
        shards.check_finite(self.goal)
        self.probe = _Probe(shards, self.tol, max_iterations)
        if x0 is not None:
            self.x = shards.starting_point(x0)
            self.descent, self.squares = _products(shards, self.x, residual_of=_given_b)
            shards.check_finite(self.descent)
            # If 0 is the solution (b is 0), reduce the gradient at x0 instead.
            at_x0 = self.tol * numpy.linalg.norm(self.descent, axis=0)
            self.goal = numpy.where(self.goal > 0, self.goal, at_x0)

    def goes_on(self) -> bool:
        far = numpy.linalg.norm(self.descent, axis=0) > self.goal
        return self.may_count() and bool(far.any())

    def may_count(self) -> bool:
        return self.iteration < self.max_iterations

    def count(self, x: numpy.ndarray) -> None:
        """Count an iteration; about 20 of them become points of the history."""
        self.iteration += 1
        if self.iteration == self._next_point:
            self._next_point = math.ceil(1.5 * self.iteration)
            self.progress.record(self.iteration, x)

    def take(self, x: numpy.ndarray) -> float:
        """Keep the columns of `x` that are better than the best so far.

        Their true gradient must be smaller and their residual no larger. Returns the
        least ratio of a gradient to the best so far, of those not yet small enough; 1
        if none is better.
        """
        descent, squares = _products(self.shards, x, residual_of=_given_b)
        before = numpy.linalg.norm(self.descent, axis=0)
        after = numpy.linalg.norm(descent, axis=0)
        slack = 1 + float(numpy.finfo(self.shards.dtype).eps) ** 0.5
        better = (after < before) & (squares <= slack * self.squares)
        ratios = (after / before)[better & (before > self.goal)]
        self.x = numpy.where(better, x, self.x)
        self.descent = numpy.where(better, descent, self.descent)
        self.squares = numpy.where(better, squares, self.squares)
        return float(ratios.min()) if len(ratios) else 1.0

    def end(self) -> Answer:
        """Record the best x; warn if its gradient is too large, or says too little."""
        condition = self.probe.condition()
        self.progress.record(self.iteration, self.x)
        norms = numpy.linalg.norm(self.descent, axis=0)
        if (norms > self.goal).any():
            log.warning(
                "%d iterations brought the gradient to %.1e of its start, not to %.1e",
                self.iteration, _ratio(norms, self.goal).max() * self.tol, self.tol,
            )  # fmt: skip
        elif condition > self.probe.enough:
            log.warning(
                "x may be off, A's condition is at least %.0e: method tsqr keeps the "
                "digits",
                condition,
            )
        return Answer(self.x)


class _Probe:
    """A lower bound of A's condition, by conjugate gradients for a random vector.

    The gradient of ||A x - b|| hides a small singular value: it holds what x lacks
    there times the square of that. A random vector holds every direction until steps
    have removed it. For steps p and gradients r, ||A p||^2 / ||p||^2 lies between the
    squares of the smallest and the largest singular value. The vector is a gradient,
    or, if A is wide and has a null space, a residual.
    """

    def __init__(self, shards: RowShards, tol: float, max_steps: int) -> None:
        self.shards, self.enough = shards, (WARN_IF_OFF_BY / min(tol, 1e-6)) ** 0.5
        self.is_wide, shorter = shards.m < shards.n, min(shards.m, shards.n)
        if self.is_wide:
            zero = numpy.zeros((shards.n, 1))
            self.left, squares = _products(shards, zero, residual_of=_noise)
            self.gamma, self.remaining = (self.left**2).sum(), squares[0]
        else:
            self.left = numpy.random.default_rng(0).normal(size=(shards.n, 1))
            self.gamma = self.remaining = (self.left**2).sum()
        rounding = 100 * float(numpy.finfo(shards.dtype).eps)
        # One direction of `shorter` has 1 / shorter of the square, if seldom so little.
        fraction = max(1e-7 / shorter, rounding if self.is_wide else rounding**2)
        self.goal, self.direction = fraction * self.remaining, self.left
        self.steps_left = min(20 * shorter, max_steps)
        self.smallest, self.largest, self.carried = math.inf, 0.0, 0.0

    def products(self, p: numpy.ndarray) -> tuple[numpy.ndarray, numpy.ndarray]:
        """_products of `p`, and of the probe's next step at the same time."""
        if not self.goes_on():
            return _products(self.shards, p)
        both = numpy.hstack([p, self.direction])
        products, squares = _products(self.shards, both)
        square, size = squares[-1], (self.direction**2).sum()
        self.smallest = min(self.smallest, square / size)
        # Of r, by Lanczos: it has the most of the largest singular value.
        self.largest = max(self.largest, square / self.gamma + self.carried)
        self.steps_left -= 1
        if square == 0 or self.largest > self.enough**2 * self.smallest:
            self.steps_left = 0
        else:
            alpha, previous = self.gamma / square, self.gamma
            self.left = self.left - alpha * products[:, -1:]
            self.gamma = (self.left**2).sum()
            beta = self.gamma / previous
            self.direction = self.left + beta * self.direction
            self.carried = beta / alpha
            fallen = self.remaining - alpha * previous  # the squared residual
            self.remaining = fallen if self.is_wide else self.gamma
        return products[:, :-1], squares[:-1]

    def goes_on(self) -> bool:
        return self.steps_left > 0 and self.gamma > 0 and self.remaining > self.goal

    def condition(self) -> float:
        """The bound, after the steps that are still needed."""
        while self.goes_on():
            self.products(numpy.empty((self.shards.n, 0)))
        seen = math.sqrt(self.largest / max(self.smallest, 1e-300))
        # What is left then has directions that are out of reach.
        return math.inf if self.goal < self.remaining and seen < self.enough else seen


def _noise(block: Block) -> mx.nd.NDArray:
    """Random numbers in place of a block's b (rows, 1)."""
    noise = numpy.random.default_rng(block.k).normal(size=(block.A.shape[0], 1))
    return mx.nd.array(noise, ctx=block.A.context, dtype=block.A.dtype)


def _given_b(block: Block) -> mx.nd.NDArray:
    return block.b


def _products(shards: RowShards, p: numpy.ndarray, residual_of: Callable | None = None):
    """A^T A p (n, k) and ||A p||^2 (k,), summed over the devices; p is on the host.

    With `residual_of`, a function of blocks such as _given_b, they are A^T (b - A p)
    and ||b - A p||^2. All devices work at the same time and send n + 1 numbers per
    right-hand side, which are summed on the host: the iteration's one all-reduce.
    """
    power = numpy.zeros(p.shape[1], int)
    if not residual_of:  # a gradient's size squares A's: keep ||A p||^2 within float32
        power = numpy.frexp(abs(p).max(axis=0))[1]
    ps, parts = shards.to_devices(numpy.ldexp(p, -power)), []
    for blocks in shards.rounds():
        for block in blocks:
            q = times(block.A, ps[block.k])
            if residual_of:
                q = residual_of(block) - q
            product, square = times(block.A, q, transpose=True), (q * q).sum(axis=0)
            parts.append(mx.nd.concat(product, square.reshape((1, -1)), dim=0))
    total = shards.total(sum(part.asnumpy().astype("float64") for part in parts))
    return numpy.ldexp(total[:-1], power), numpy.ldexp(total[-1], 2 * power)


def _ratio(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """a / b, and 0 where b is 0: that right-hand side is solved."""
    return numpy.divide(a, b, out=numpy.zeros_like(a), where=b > 0)
