"""The method of the least-squares notes: local gradient descent, then averaging."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from d2lpar._mxnet import mx
from d2lpar.epochs import check_whole
from d2lpar.errors import DivergedError
from d2lpar.least_squares.rows import Answer, Block, RowShards, matmul


def averaging(
    shards: RowShards,
    *,
    num_epochs: int = 40,
    independent: bool = True,
    num_samples: int = 1000,
    steps_per_epoch: int = 500,
    lr: float | None = None,
    seed: int = 0,
    x0: numpy.ndarray | None = None,
) -> Iterator[Answer]:
    """Descend on each device alone, and average the devices' x after each epoch.

    A device samples `num_samples` rows with replacement, and takes `steps_per_epoch`
    steps of x -= lr * 2 A^T (A x - b). By default `lr` is 1e-3 / n, and `x0` drawn from
    [0, 1). Unless `independent`, a device starts at the previous one's x, as in the
    notes.
    """
    if not shards.resident:
        raise ValueError(
            "method averaging samples rows of an A in memory: use another method"
        )
    check_whole("num_epochs", num_epochs)
    check_whole("steps_per_epoch", steps_per_epoch)
    lr = 1e-3 / shards.n if lr is None else lr
    if not lr > 0:
        raise ValueError(f"lr {lr}: write a number above 0")
    # Not the stream that a generated A of the same seed comes from.
    rng = numpy.random.default_rng([seed, 1])
    (blocks,) = shards.rounds()
    blocks = sorted(blocks)
    x = rng.random(shards.n) if x0 is None else numpy.reshape(x0, shards.n)
    shards.check_finite(shards.residual(0 * x, False).norm)  # A has no NaN
    for epoch in range(1, num_epochs + 1):
        samples = []  # of each device's rows, with replacement
        for k, A, b in blocks:
            rows = rng.integers(A.shape[0], size=num_samples)
            rows = mx.nd.array(rows, ctx=A.context, dtype="int32")
            samples.append(Block(k, A.take(rows), b.take(rows)))
        descents: list[_Descent] = []
        xs: list = []
        for group in [samples] if independent else [[sample] for sample in samples]:
            start = xs[-1] if xs else x
            made = _descend(group, start, lr, steps_per_epoch)
            descents += made
            xs += [start + descent.movement() for descent in made]
        x = sum(xs) / len(xs)
        grows = any(not lr * descent.largest <= 1 for descent in descents)
        if grows and not shards.residual(x, False).norm <= shards.norm_of_b:
            raise DivergedError(
                f"method averaging diverged in epoch {epoch}: use a smaller lr"
            )
        yield Answer(x, epoch, device_xs=xs)


def _descend(samples: list[Block], x, lr: float, steps: int) -> list[_Descent]:
    """Each device's steps from x (n,); all devices work at the same time."""
    at_x = _products(samples, [x] * len(samples), residual=True)
    descents = [_Descent(r, lr, steps) for r in at_x]
    for _ in range(min(steps, len(x))):
        directions = [descent.basis[-1] for descent in descents]
        for descent, product in zip(descents, _products(samples, directions)):
            descent.extend(product)
        if all(descent.is_done for descent in descents):
            break
    return descents


def _products(samples: list[Block], vectors, residual: bool = False) -> list:
    """Each device's A^T A v, or A^T (b - A v): (n,) on the host."""
    # All copies before any work: they queue behind the work of cpu(0).
    vs = [
        mx.nd.array(v[:, None], s.A.context, s.A.dtype)
        for s, v in zip(samples, vectors)
    ]
    products = []
    for (_, A, b), v in zip(samples, vs):
        q = matmul(A, v)
        products.append(matmul(A, b - q if residual else q, transpose=True))
    return [product.asnumpy()[:, 0] for product in products]


class _Descent:
    """T steps of gradient descent as q(G) r, by Lanczos' method.

    Here G = A^T A, r = A^T (b - A x) and q(t) = (1 - (1 - 2 lr t)^T) / t. It needs some
    10 products.
    """

    def __init__(self, r: numpy.ndarray, lr: float, steps: int) -> None:
        self.lr, self.steps, self.length = lr, steps, numpy.linalg.norm(r)
        self.basis = [r / self.length if 0 < self.length < numpy.inf else r]
        self.diagonal: list[float] = []
        self.beside: list[float] = []
        self.coefficients = numpy.zeros(0)  # of q(G) r in the basis
        self.largest = 0.0  # eigenvalue of G; steps with lr above its inverse diverge
        self.is_done = False

    def extend(self, product: numpy.ndarray) -> None:
        """Add G times the last basis vector, unless that would change nothing."""
        if self.is_done:
            return
        self.diagonal.append(float(self.basis[-1] @ product))
        known = numpy.column_stack(self.basis)
        for _ in range(2):  # once leaves rounding errors that grow
            product = product - known @ (known.T @ product)
        c = self.coefficients = self._evaluate()
        beta = float(numpy.linalg.norm(product))
        is_invariant = not beta > 1e-14 * abs(self.diagonal[0])
        ends = len(c) > 2 and abs(c[-2:]).max() <= 1e-15 * numpy.linalg.norm(c)
        self.is_done = is_invariant or bool(ends)
        if not self.is_done:
            self.beside.append(beta)
            self.basis.append(product / beta)

    def movement(self) -> numpy.ndarray:
        """q(G) r (n,): by how much the steps move x."""
        return numpy.column_stack(self.basis[: len(self.diagonal)]) @ self.coefficients

    def _evaluate(self) -> numpy.ndarray:
        beside = numpy.diag(self.beside, 1)
        T = numpy.diag(self.diagonal) + beside + beside.T
        if not numpy.isfinite(T).all():
            self.largest = numpy.inf
            return numpy.full(len(T), numpy.nan)
        t, U = numpy.linalg.eigh(T)
        t = numpy.maximum(t, numpy.finfo(float).tiny)
        self.largest = float(t[-1])
        d = 2 * self.lr * t
        exact = -numpy.expm1(self.steps * numpy.log1p(-d))  # NaN above 1
        q = numpy.where(d < 1, exact, 1 - (1 - d) ** self.steps)
        return self.length * (U @ (q / t * U[0]))
