"""The method of the least-squares notes: local gradient descent, then averaging.

Every epoch each device samples some of its rows and takes many steps on them; then all
go on from the average of the devices' x. In the notes, ``x = self.x_hat`` is not a
copy: their devices work one after the other, each going on from the previous one's x.
"""

from __future__ import annotations

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.checks import check_above_zero, check_count, check_count_or_0
from d2lpar.least_squares.progress import Answer, Progress
from d2lpar.least_squares.rows import Block, RowShards, times


def averaging(
    shards: RowShards,
    progress: Progress,
    *,
    num_epochs: int = 40,
    independent: bool = True,
    num_samples: int = 1000,
    steps_per_epoch: int = 500,
    lr: float | None = None,
    seed: int = 0,
    x0: numpy.ndarray | None = None,
) -> Answer:
    """Local gradient descent, with the devices' x averaged after each epoch.

    A device samples `num_samples` rows with replacement, and takes `steps_per_epoch`
    steps of x -= lr * 2 A^T (A x - b). The default `lr`, 1e-3 / n, suits the notes' A
    alone; the default `x0` is drawn from [0, 1). Where the squares of A or b would not
    fit, both are those of A and b brought to unit size. Unless `independent`, devices
    work one after the other, as in the notes. Raises ValueError for a problem that is
    not in memory, for several right-hand sides, for counts below 1, and if the steps
    diverge.
    """
    _check(shards, num_epochs, num_samples, steps_per_epoch)
    check_count_or_0("seed", seed)
    # Not the stream that a generated A of the same seed comes from.
    rng = numpy.random.default_rng([seed, 1])
    (blocks,) = shards.rounds()
    blocks = sorted(blocks)
    x = rng.random((shards.n, 1)) if x0 is None else shards.starting_point(x0)
    if lr is not None:
        check_above_zero("lr", lr)
    lr = 1e-3 / shards.n if lr is None else shards.scale.fit_lr(lr)
    for epoch in range(1, num_epochs + 1):
        samples = [_sample(block, num_samples, rng) for block in blocks]
        if independent:
            xs = _descend(samples, [x] * len(samples), lr, steps_per_epoch)
        else:
            xs = []
            for sample in samples:
                xs += _descend([sample], xs[-1:] or [x], lr, steps_per_epoch)
        x = sum(xs) / len(xs)
        diverged = f"method averaging diverged in epoch {epoch}: use a smaller lr"
        shards.check_finite(x, otherwise=diverged)
        progress.record(epoch, x, xs)
    return Answer(x)


def _check(shards: RowShards, *counts: int) -> None:
    if not shards.resident or shards.num_rhs > 1:
        raise ValueError(
            "method averaging samples rows of an A in memory for one right-hand side: "
            "use another method"
        )
    for name, count in zip(("num_epochs", "num_samples", "steps_per_epoch"), counts):
        check_count(name, count)


def _sample(block: Block, num_samples: int, rng: numpy.random.Generator) -> Block:
    """Rows drawn with replacement, on the block's device."""
    rows = rng.integers(block.A.shape[0], size=num_samples).astype("int32")
    index = mx.nd.array(rows, ctx=block.A.context, dtype="int32")
    return Block(block.k, block.A.take(index), block.b.take(index))


def _descend(samples: list[Block], xs: list, lr: float, steps: int) -> list:
    """Each device's x (n, 1) after its steps; all devices work at the same time."""
    krylovs = [_Krylov(r, lr, steps) for r in _products(samples, xs, residual=True)]
    for _ in range(min(steps, len(xs[0]))):
        directions = [krylov.basis[-1] for krylov in krylovs]
        for krylov, product in zip(krylovs, _products(samples, directions)):
            krylov.extend(product)
        if all(krylov.has_converged() for krylov in krylovs):
            break
    return [x + krylov.movement() for x, krylov in zip(xs, krylovs)]


def _products(samples: list[Block], vectors, residual: bool = False) -> list:
    """Each device's A^T A v, or A^T (b - A v): (n, 1) on the host."""
    # All copies before any work: they queue behind the work of cpu(0).
    vs = [mx.nd.array(v, s.A.context, s.A.dtype) for s, v in zip(samples, vectors)]
    products = []
    for (_, A, b), v in zip(samples, vs):
        q = times(A, v)
        products.append(times(A, b - q if residual else q, transpose=True))
    return [product.asnumpy() for product in products]


class _Krylov:
    """Many steps of gradient descent at once, in a Krylov subspace.

    T steps of x -= lr * 2 A^T (A x - b) with the same A and b are a polynomial in
    G = A^T A: they move x by q(G) r, where r = A^T (b - A x) at the first step's x and
    q(t) = (1 - (1 - 2 lr t)^T) / t. Lanczos' method finds q(G) r to rounding, with some
    10 products in place of 500 steps: in an orthonormal basis of r, G r, G^2 r, ... G
    is a tridiagonal matrix.
    """

    def __init__(self, r: numpy.ndarray, lr: float, steps: int) -> None:
        self.lr, self.steps, self.length = lr, steps, numpy.linalg.norm(r)
        self.basis = [r / self.length if 0 < self.length < numpy.inf else r]
        self.diagonal, self.beside = [], []
        self.coefficients = numpy.zeros(0)  # of q(G) r in the basis

    def extend(self, product: numpy.ndarray) -> None:
        """Add G times the last basis vector."""
        if len(self.diagonal) == len(self.basis):
            return  # the subspace is invariant: it cannot grow
        self.diagonal.append(float((self.basis[-1] * product).sum()))
        known = numpy.hstack(self.basis)
        for _ in range(2):  # once leaves rounding errors that grow
            product = product - known @ (known.T @ product)
        self.coefficients = self._evaluate()
        beta = float(numpy.linalg.norm(product))
        if beta > 1e-14 * abs(self.diagonal[0]):
            self.beside.append(beta)
            self.basis.append(product / beta)

    def has_converged(self) -> bool:
        """Whether another product would no longer change the movement."""
        if len(self.diagonal) == len(self.basis):
            return True
        last = numpy.abs(self.coefficients[-2:]).max()
        size = numpy.linalg.norm(self.coefficients)
        return len(self.diagonal) > 2 and bool(last <= 1e-15 * size)

    def movement(self) -> numpy.ndarray:
        """q(G) r (n, 1): by how much the steps move x."""
        known = numpy.hstack(self.basis[: len(self.diagonal)])
        return known @ self.coefficients[:, None]

    def _evaluate(self) -> numpy.ndarray:
        beside = numpy.diag(self.beside, 1)
        T = numpy.diag(self.diagonal) + beside + beside.T
        if not numpy.isfinite(T).all():
            return numpy.full(len(T), numpy.nan)
        t, U = numpy.linalg.eigh(T)
        t = numpy.maximum(t, numpy.finfo(float).tiny)
        d = 2 * self.lr * t
        with numpy.errstate(over="ignore", invalid="ignore"):
            q = numpy.where(
                d < 1,
                -numpy.expm1(self.steps * numpy.log1p(-numpy.minimum(d, 0.999999))),
                1 - (1 - d) ** self.steps,
            )
            return self.length * (U @ (q / t * U[0]))
