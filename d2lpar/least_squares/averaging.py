"""TODO: one idea."""

from __future__ import annotations

import logging

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.direct import Found
from d2lpar.least_squares.iterative import _start
from d2lpar.least_squares.rows import Block, RowShards, find_not_finite, times

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


def _why_not_finite(shards: RowShards, epoch: int) -> str:
    found = find_not_finite(shards)
    if "overflow" in found:
        return f"method averaging diverged in epoch {epoch}: use a smaller lr"
    return found
