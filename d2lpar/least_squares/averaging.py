"""The method of the least-squares notes: local gradient descent, then averaging."""

from __future__ import annotations

from collections.abc import Iterator

import numpy

from d2lpar._mxnet import mx
from d2lpar.epochs import check_whole
from d2lpar.errors import DivergedError
from d2lpar.least_squares.rows import Answer, RowShards
from d2lpar.step_checks import check_rate

gemm, gemm2 = mx.nd.linalg.gemm, mx.nd.linalg.gemm2


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
    check_whole("num_epochs", num_epochs)
    check_whole("steps_per_epoch", steps_per_epoch)
    lr = 1e-3 / shards.n if lr is None else lr
    check_rate(lr)
    # Not the stream that a generated A of the same seed comes from.
    rng = numpy.random.default_rng([seed, 1])
    in_order = list(shards)[::-1]
    x = rng.random(shards.n) if x0 is None else shards.vector("x0", x0)
    shards.check_finite(shards.residual(x)[0])  # A has no NaN
    for epoch in range(1, num_epochs + 1):
        drawn = []  # of each device's rows, with replacement
        for A, b in in_order:
            rows = rng.integers(A.shape[0], size=num_samples)
            rows = mx.nd.array(rows, ctx=A.context, dtype="int32")
            drawn.append((A.take(rows), b.take(rows).T))
        # Copied before any step: copies from the host wait for the work of cpu(0).
        xs = [mx.nd.array(x[None], ctx=A.context, dtype=A.dtype) for A, _ in drawn]
        lengths: list[tuple] = []  # of residuals before and after, and of b
        for k, (A, b) in enumerate(drawn):
            x_k = xs[k] if independent or k == 0 else xs[k - 1].copyto(A.context)
            before = (gemm2(x_k, A, transpose_b=True) - b).norm()
            for _ in range(steps_per_epoch):
                residual = gemm(x_k, A, b, transpose_b=True, beta=-1)  # A x - b
                x_k = gemm(residual, A, x_k, alpha=-2 * lr)  # x - 2 lr A^T (A x - b)
            after = (gemm2(x_k, A, transpose_b=True) - b).norm()
            lengths.append((before, after, b.norm()))
            xs[k] = x_k
        device_xs = [x_k.asnumpy()[0].astype("float64") for x_k in xs]
        x = sum(device_xs) / len(device_xs)
        for before, after, of_b in lengths:
            # Steps with a small lr never lengthen the residual of the device's rows.
            if not after.asscalar() <= max(before.asscalar(), 1.01 * of_b.asscalar()):
                raise DivergedError(
                    f"method averaging diverged in epoch {epoch}: use a smaller lr"
                )
        yield Answer(x, epoch, device_xs=device_xs)
