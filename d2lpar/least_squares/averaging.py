"""The method of the least-squares notes: local gradient descent, then averaging.

Every epoch each device samples some of its rows and takes many steps on them; then all
go on from the average of the devices' x. In the notes, ``x = self.x_hat`` is not a
copy: their devices work one after the other, each going on from the previous one's x.
"""

from __future__ import annotations

import numpy

from d2lpar._mxnet import mx
from d2lpar.least_squares.krylov import Krylov
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

    Every epoch each device that has rows samples `num_samples` of them, with
    replacement, and takes `steps_per_epoch` steps of x -= lr * 2 A^T (A x - b) on them.
    `lr` is 1e-3 / n by default, which suits the notes' A alone; `x0` is drawn from
    [0, 1) by default. With `independent` all devices start from the average and work at
    the same time; without, one after the other, as in the notes.

    Raises ValueError for a problem that is not in memory, for several right-hand sides,
    for counts below 1, and if the steps diverge.
    """
    _check(
        shards, num_epochs=num_epochs, num_samples=num_samples,
        steps_per_epoch=steps_per_epoch,
    )  # fmt: skip
    # Not the stream that a generated A of the same seed comes from.
    rng = numpy.random.default_rng([seed, 1])
    x = rng.random((shards.n, 1)) if x0 is None else shards.starting_point(x0)
    lr = 1e-3 / shards.n if lr is None else lr
    (blocks,) = shards.rounds()
    blocks = sorted(blocks)
    for epoch in range(1, num_epochs + 1):
        samples = [_sample(block, num_samples, rng) for block in blocks]
        if independent:
            xs = _descend(samples, [x] * len(samples), lr, steps_per_epoch)
        else:
            xs = _descend_in_turn(samples, x, lr, steps_per_epoch)
        x = sum(xs) / len(xs)
        diverged = f"method averaging diverged in epoch {epoch}: use a smaller lr"
        shards.check_finite(x, otherwise=diverged)
        progress.record(epoch, x, xs)
    return Answer(x)


def _check(shards: RowShards, **counts: int) -> None:
    if not shards.resident or shards.num_rhs > 1:
        raise ValueError(
            "method averaging samples rows of an A in memory for one right-hand side: "
            "use another method"
        )
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} {count}: write a number above 0")


def _sample(block: Block, num_samples: int, rng: numpy.random.Generator) -> Block:
    """Rows drawn with replacement, on the block's device."""
    rows = rng.integers(block.A.shape[0], size=num_samples).astype("int32")
    index = mx.nd.array(rows, ctx=block.A.context, dtype="int32")
    return Block(block.k, block.A.take(index), block.b.take(index))


def _descend(samples: list[Block], xs: list, lr: float, steps: int) -> list:
    """Each device's x (n, 1) after its steps; all devices work at the same time."""
    krylovs = [Krylov(r) for r in _products(samples, xs, residual=True)]
    for _ in range(min(steps, len(xs[0]))):
        directions = [krylov.basis[-1] for krylov in krylovs]
        for krylov, product in zip(krylovs, _products(samples, directions)):
            krylov.extend(product)
        if all(krylov.has_converged(lr, steps) for krylov in krylovs):
            break
    return [x + krylov.movement(lr, steps) for x, krylov in zip(xs, krylovs)]


def _descend_in_turn(samples: list[Block], x, lr: float, steps: int) -> list:
    """Each device's x (n, 1) after its steps from the previous device's x."""
    xs = []
    for sample in samples:
        (x,) = _descend([sample], [x], lr, steps)
        xs.append(x)
    return xs


def _products(samples: list[Block], vectors, residual: bool = False) -> list:
    """Each device's A^T A v, or A^T (b - A v): (n, 1) on the host."""
    # All copies before any work: they queue behind the work of cpu(0).
    vs = [mx.nd.array(v, s.A.context, s.A.dtype) for s, v in zip(samples, vectors)]
    products = []
    for (_, A, b), v in zip(samples, vs):
        q = times(A, v)
        products.append(times(A, b - q if residual else q, transpose=True))
    return [product.asnumpy() for product in products]
