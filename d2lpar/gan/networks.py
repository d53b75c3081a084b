"""The two networks of the GAN, their parameters, and what the generator draws.

Every device has a replica of both. BatchNorm takes its mean and variance over each
device's own shard, unless it is synchronised.

Source: the CryptoPunks notebook (PyTorch); Radford, Metz, Chintala, "Unsupervised
Representation Learning with Deep Convolutional GANs" (2015); Ioffe and Szegedy, "Batch
Normalization" (2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from d2lpar._mxnet import autograd, gluon, mx, np, npx

Z_SHAPE = (16, 3, 3)  # shape of the noise that becomes one face

# Channels of the discriminator's convolutions: the notebook's, and those on the
# devices. oneDNN is twice as fast with multiples of 8. The added channels begin with
# weights of 0, so their outputs and gradients are 0, and they never change: the
# function is the notebook's.
CHANNELS, DEVICE_CHANNELS = (6, 12), (8, 16)


class Generator(gluon.nn.HybridSequential):
    """Noise (n, 16, 3, 3) to faces (n, 3, 24, 24) in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.add(
            gluon.nn.Conv2DTranspose(128, 10, use_bias=False, in_channels=16),
            gluon.nn.BatchNorm(in_channels=128),
            gluon.nn.Activation("relu"),
            gluon.nn.Conv2DTranspose(3, 4, 2, 1, use_bias=False, in_channels=128),
            gluon.nn.Activation("sigmoid"),
        )


class Discriminator(gluon.nn.HybridSequential):
    """Faces (n, 3, 24, 24) to scores (n, 1), above 0 for faces it takes for real.

    The notebook's ends in a sigmoid; here that is part of the loss, which stays finite.
    Its relu comes before the pooling; here it comes after, where it has a quarter of
    the numbers. Outputs and gradients are the same to the bit: relu keeps the order.
    """

    def __init__(self, channels: tuple[int, int] = CHANNELS) -> None:
        super().__init__()
        c1, c2 = channels
        self.add(
            gluon.nn.Conv2D(c1, 5, in_channels=3),
            gluon.nn.MaxPool2D(2, 2),
            gluon.nn.Activation("relu"),
            gluon.nn.Conv2D(c2, 5, in_channels=c1),
            gluon.nn.MaxPool2D(2, 2),
            gluon.nn.Activation("relu"),
            gluon.nn.Dense(32, activation="relu", in_units=c2 * 3 * 3),
            gluon.nn.Dense(1, in_units=32),
        )


def init_params(
    net: gluon.nn.HybridSequential, rng: numpy.random.Generator
) -> list[numpy.ndarray]:
    """Host parameters float32, with the default distributions of PyTorch's layers.

    Weights and biases are uniform within 1 / sqrt(fan-in), where the fan-in of a
    transposed convolution is that of its output side; BatchNorm begins with scale 1,
    shift 0, mean 0, variance 1.
    """
    values, bound = [], 0.0
    for name, parameter in net.collect_params().items():
        shape = parameter.shape
        if name.endswith(("gamma", "running_var")):
            values.append(numpy.ones(shape, numpy.float32))
        elif name.endswith(("beta", "running_mean")):
            values.append(numpy.zeros(shape, numpy.float32))
        else:
            if len(shape) > 1:  # a bias follows its weight and shares the bound
                bound = 1 / numpy.sqrt(numpy.prod(shape[1:]))
            values.append(rng.uniform(-bound, bound, shape).astype(numpy.float32))
    return values


def build(
    net: gluon.nn.HybridSequential,
    params: Sequence[numpy.ndarray],
    devices: Sequence[mx.Context],
) -> gluon.nn.HybridSequential:
    """`net` with `params` on every device, compiled, with gradients that add up.

    Parameters that are larger in `net` are filled up with zeros.
    """
    net.initialize(ctx=devices)
    net.hybridize(static_alloc=True, static_shape=True)
    for target, value in zip(net.collect_params().values(), params):
        target.set_data(np.array(pad(value, target.shape)))
        if target.grad_req != "null":
            target.grad_req = "add"  # over micro-batches
    return net


def host_params(
    net: gluon.nn.HybridSequential, like: Sequence[numpy.ndarray]
) -> list[numpy.ndarray]:
    """The first replica's parameters as host arrays, cut to the shapes of `like`.

    They include BatchNorm's running averages.
    """
    replicas = (p.list_data()[0] for p in net.collect_params().values())
    return [cut(replica, value.shape) for replica, value in zip(replicas, like)]


def pad(value: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """A host array enlarged to `shape` with zeros."""
    return numpy.pad(value, [(0, n - m) for n, m in zip(shape, value.shape)])


def cut(array: np.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """The part of a larger array that :func:`pad` was given, on the host."""
    return array.asnumpy()[tuple(slice(n) for n in shape)].copy()


def generate(
    net_G: Generator, z_shards: Sequence[np.ndarray], synchronised: bool = False
) -> list[np.ndarray]:
    """Faces (n_k, 3, 24, 24) of each device's noise (n_k, 16, 3, 3).

    If `synchronised`, BatchNorm takes its mean and variance over all devices. Within
    ``autograd.record()`` gradients flow back through it, also across devices.
    """
    if not synchronised:
        return [net_G(z) for z in z_shards]
    first, norm, *rest = net_G
    hs = sync_batch_norm([first(z) for z in z_shards], norm)
    for block in rest:
        hs = [block(h) for h in hs]
    return hs


def faces_of(net_G: Generator, z: numpy.ndarray, device: mx.Context) -> numpy.ndarray:
    """Faces uint8 (n, 3, 24, 24) of noise (n, 16, 3, 3), on the host.

    BatchNorm uses its running averages, so that a face depends on its own noise alone.
    (The notebook never leaves training mode: there a face depends on the whole batch.)
    """
    parts = [
        net_G(np.array(z[start : start + 500], ctx=device)).asnumpy()
        for start in range(0, len(z), 500)
    ]
    return numpy.rint(255 * numpy.concatenate(parts)).astype(numpy.uint8)


def sync_batch_norm(
    xs: Sequence[np.ndarray], norm: gluon.nn.BatchNorm
) -> list[np.ndarray]:
    """Each device's (n_k, c, h, w) normalised by mean and variance over all devices.

    `norm` holds scale, shift and running averages on every device. The averages are
    updated within ``autograd.record()`` or ``train_mode()``; outside, they are used, as
    by `norm` itself. Autograd follows the copies between devices, so that the gradient,
    too, is that of one device. (Gluon's own SyncBatchNorm takes no arrays of MXNet's
    NumPy interface.)
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
