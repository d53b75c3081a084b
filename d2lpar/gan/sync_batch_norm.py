"""BatchNorm whose mean and variance are taken over the shards of all devices.

Gluon's own SyncBatchNorm takes no arrays of MXNet's NumPy interface. Here it is written
out. Autograd follows the copies between devices, so that the gradient, too, is that of
one device.

Source: Ioffe and Szegedy, "Batch Normalization" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar._mxnet import autograd, gluon, np, npx


def sync_batch_norm(
    xs: Sequence[np.ndarray], norm: gluon.nn.BatchNorm
) -> list[np.ndarray]:
    """Each device's (n_k, c, h, w) normalised by mean and variance over all devices.

    `norm` holds scale, shift and running averages on every device. The averages are
    updated within ``autograd.record()`` or ``train_mode()``; outside, they are used, as
    by `norm` itself.
    """
    if not autograd.is_training():
        return [norm(x) for x in xs]
    n = sum(len(x) for x in xs)
    means = _over_devices([_sum_of_means(x) for x in xs], n)
    centred = [_scale(x, np.ones_like(mean), -mean) for x, mean in zip(xs, means)]
    variances = _over_devices([_sum_of_means(c * c) for c in centred], n)
    ys = []
    for c, variance in zip(centred, variances):
        gamma, beta = (p.data(c.ctx) for p in (norm.gamma, norm.beta))
        ys.append(_scale(c, gamma / np.sqrt(variance + norm._kwargs["eps"]), beta))
    momentum = norm._kwargs["momentum"]
    with autograd.pause():
        for moments in zip(means, variances):
            for parameter, value in zip((norm.running_mean, norm.running_var), moments):
                average = parameter.data(value.ctx)
                average[:] = momentum * average + (1 - momentum) * value
    return ys


def _scale(x: np.ndarray, factor: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """x (n, c, h, w) times a factor (c,) plus a shift (c,).

    Computed as a BatchNorm with mean 0 and variance 1, because MXNet's broadcasting
    takes ten times as long.
    """
    eps = 1e-5
    return npx.batch_norm(
        x, factor, shift, np.zeros_like(shift), np.full_like(shift, 1 - eps),
        eps=eps, fix_gamma=False, use_global_stats=True,
    )  # fmt: skip


def _sum_of_means(x: np.ndarray) -> np.ndarray:
    """Sum (c,) over the samples of each one's mean over (h, w).

    Computed as a dense layer with one output, whose gradient is fast; pooling's is not.
    """
    n, c, h, w = x.shape
    weight = np.full((1, h * w), 1 / (h * w), ctx=x.ctx)
    means = npx.fully_connected(
        x.reshape((n * c, h * w)), weight, num_hidden=1, no_bias=True
    )
    return means.reshape((n, c)).sum(axis=0)


def _over_devices(parts: list[np.ndarray], n: int) -> list[np.ndarray]:
    """The sum of all devices' parts divided by `n`, on each device; differentiable."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part.as_in_ctx(total.ctx)
    mean = total / n
    return [mean.as_in_ctx(part.ctx) for part in parts]
