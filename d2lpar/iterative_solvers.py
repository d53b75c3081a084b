"""Iterative least-squares solvers: averaging, gradient descent, conjugate gradients.

They differ in how often the devices talk: once an epoch (averaging), or once a step
(an all-reduce of one vector, as in data-parallel training).
"""

from __future__ import annotations

import logging
import math

import numpy

from d2lpar._mxnet import mx
from d2lpar.direct_solvers import Found
from d2lpar.row_shards import Block, RowShards, find_not_finite, times

log = logging.getLogger("d2lpar")


def averaging(
    shards: RowShards,
    progress,
    *,
    num_epochs: int = 40,
    independent: bool = True,
    num_samples: int = 1000,
    steps_per_epoch: int = 500,
    lr: float | None = None,
    seed: int = 0,
    x0: numpy.ndarray | None = None,
    step_by_step: bool = False,
) -> Found:
    """Local gradient descent, parameters averaged after each epoch (the seed's method).

    Every epoch each device samples `num_samples` of its rows, with replacement, and
    takes `steps_per_epoch` steps of x -= lr * 2 A^T (A x - b) on them, `lr` being
    1e-3 / n; then the average of all devices' x is where all go on. `x0` is where to
    start, None draws it from [0, 1) as the seed does.

    With `independent` each device starts the epoch from the average, on its own
    context, all at the same time. Without, as in the seed, whose ``x = self.x_hat`` is
    no copy: the devices work one after the other, each going on from the last one's x.

    An epoch's rows stay the same for all of its steps, which makes the steps a
    polynomial in A^T A: it is evaluated in a Krylov subspace, to rounding, with some 10
    products in place of 500. `step_by_step` takes the steps instead.

    Devices that have no rows, where there are more devices than rows, take no part.

    Raises ValueError for a problem that is not in memory, for several right-hand sides,
    counts below 1, or when the steps diverge: `lr` is a constant, which suits the
    seed's A alone.
    """
    if not shards.resident or shards.num_rhs > 1:
        raise ValueError(
            "method averaging samples rows of an A in memory for one right-hand side: "
            "use another method"
        )
    for name, count in (
        ("num_epochs", num_epochs),
        ("num_samples", num_samples),
        ("steps_per_epoch", steps_per_epoch),
    ):
        if count < 1:
            raise ValueError(f"{name} {count}: write a number above 0")
    # Not the stream that a generated A of the same seed comes from.
    rng = numpy.random.default_rng([seed, 1])
    x = rng.random((shards.n, 1)) if x0 is None else _start(shards, x0)
    lr = 1e-3 / shards.n if lr is None else lr
    descend = _step_by_step if step_by_step else _all_steps_at_once
    (blocks,) = shards.rounds()
    blocks = sorted(blocks)
    for epoch in range(1, num_epochs + 1):
        samples = [_sample(block, num_samples, rng) for block in blocks]
        if independent:
            locals_ = descend(samples, [x] * len(samples), lr, steps_per_epoch)
        else:
            locals_, start = [], x
            for sample in samples:
                locals_ += descend([sample], [start], lr, steps_per_epoch)
                start = locals_[-1]
        x = sum(locals_) / len(locals_)
        progress.pause()
        if not numpy.isfinite(x).all():
            raise ValueError(_why_not_finite(shards, epoch))
        progress.point(epoch, x, locals_)
        progress.resume()
    progress.pause()
    return Found(x)


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


def _sample(block: Block, num_samples: int, rng: numpy.random.Generator) -> Block:
    """Rows drawn with replacement, on the block's device."""
    rows = rng.integers(block.A.shape[0], size=num_samples).astype("int32")
    index = mx.nd.array(rows, ctx=block.A.context, dtype="int32")
    return Block(block.k, block.A.take(index), block.b.take(index))


def _step_by_step(samples: list[Block], xs, lr: float, steps: int) -> list:
    """Each device's x after its steps; all devices work at the same time."""
    on_device = [mx.nd.array(x, s.A.context, s.A.dtype) for s, x in zip(samples, xs)]
    for _ in range(steps):
        on_device = [
            x - 2 * lr * times(s.A, times(s.A, x) - s.b, transpose=True)
            for s, x in zip(samples, on_device)
        ]
    return [x.asnumpy() for x in on_device]


def _all_steps_at_once(samples: list[Block], xs, lr: float, steps: int) -> list:
    """What :func:`_step_by_step` gives, by Lanczos on each device's A^T A.

    After T steps x has moved by q(A^T A) r with r = A^T (b - A x) and
    q(t) = (1 - (1 - 2 lr t)^T) / t.
    """
    krylovs = [_Krylov(r) for r in _products_of_each(samples, xs, residual=True)]
    for _ in range(min(steps, len(xs[0]))):
        directions = [krylov.basis[-1] for krylov in krylovs]
        for krylov, product in zip(krylovs, _products_of_each(samples, directions)):
            krylov.extend(product)
        if all(krylov.has_converged(lr, steps) for krylov in krylovs):
            break
    return [x + krylov.movement(lr, steps) for x, krylov in zip(xs, krylovs)]


def _products_of_each(samples: list[Block], vectors, residual: bool = False) -> list:
    """A^T A v of every device, or A^T (b - A v); (n, 1) on the host."""
    # All copies before any work: they queue behind what cpu(0) has to do.
    vs = [mx.nd.array(v, s.A.context, s.A.dtype) for s, v in zip(samples, vectors)]
    products = []
    for (_, A, b), v in zip(samples, vs):
        q = times(A, v)
        products.append(times(A, b - q if residual else q, transpose=True))
    return [product.asnumpy() for product in products]


class _Krylov:
    """An orthonormal basis of r, G r, G^2 r, ... and G in it, a tridiagonal matrix."""

    def __init__(self, r: numpy.ndarray) -> None:
        self.length = numpy.linalg.norm(r)
        self.basis = [r / self.length if 0 < self.length < numpy.inf else r]
        self.diagonal, self.beside = [], []
        self._coefficients = numpy.zeros(0)

    def extend(self, product: numpy.ndarray) -> None:
        """Add G times the last basis vector."""
        if len(self.diagonal) == len(self.basis):
            return  # the subspace is invariant: there is nothing more in it
        self.diagonal.append(float((self.basis[-1] * product).sum()))
        known = numpy.hstack(self.basis)
        for _ in range(2):  # once leaves rounding errors that grow
            product = product - known @ (known.T @ product)
        beta = float(numpy.linalg.norm(product))
        if beta > 1e-14 * abs(self.diagonal[0]):
            self.beside.append(beta)
            self.basis.append(product / beta)

    def has_converged(self, lr: float, steps: int) -> bool:
        self._coefficients = self._evaluate(lr, steps)
        if len(self.diagonal) == len(self.basis):
            return True
        last = numpy.abs(self._coefficients[-2:]).max()
        size = numpy.linalg.norm(self._coefficients)
        return len(self.diagonal) > 2 and bool(last <= 1e-15 * size)

    def _evaluate(self, lr: float, steps: int) -> numpy.ndarray:
        """Coefficients of q(G) r in the basis."""
        k = len(self.diagonal)
        beside = self.beside[: k - 1]
        T = numpy.diag(self.diagonal) + numpy.diag(beside, 1) + numpy.diag(beside, -1)
        if not numpy.isfinite(T).all():
            return numpy.full(k, numpy.nan)
        t, U = numpy.linalg.eigh(T)
        t = numpy.maximum(t, numpy.finfo(float).tiny)
        with numpy.errstate(over="ignore", invalid="ignore"):
            q = numpy.where(
                2 * lr * t < 1,
                -numpy.expm1(steps * numpy.log1p(-numpy.minimum(2 * lr * t, 0.999999))),
                1 - (1 - 2 * lr * t) ** steps,
            )
            return self.length * (U @ (q / t * U[0]))

    def movement(self, lr: float, steps: int) -> numpy.ndarray:
        if len(self._coefficients) != len(self.diagonal):
            self._coefficients = self._evaluate(lr, steps)
        known = numpy.hstack(self.basis[: len(self.diagonal)])
        return known @ self._coefficients[:, None]


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


def _why_not_finite(shards: RowShards, epoch: int) -> str:
    found = find_not_finite(shards)
    if "overflow" in found:
        return f"method averaging diverged in epoch {epoch}: use a smaller lr"
    return found
