"""The networks of the GAN: the CryptoPunks notebook's, and a wider pair.

Source: the notebook (PyTorch); Radford et al. (DCGAN, 2015); Miyato et al. (spectral
normalization, 2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import (
    autograd,
    gluon,
    gluon_block,
    mx,
    new_parameter,
    np,
    npx,
    set_shapes,
)
from d2lpar.devices import check_distinct
from d2lpar.padding import pad

Shards = Sequence[np.ndarray]  # one array per busy device
Z_SHAPE = (16, 3, 3)  # of the noise that becomes one face of the notebook's
D_NORMS = ("spectral", "none")  # of the wide discriminator
POWER_ITERATIONS = 15  # before the first step; one more in each step

# Of the discriminator: the notebook's, and on devices: oneDNN is twice as fast with
# multiples of 8. The added weights are 0, and so are their gradients.
CHANNELS, DEVICE_CHANNELS = (6, 12), (8, 16)


class Generator(gluon.nn.HybridSequential):
    """The notebook's: noise (n, 16, 3, 3) to faces (n, 3, 24, 24) in [0, 1]."""

    z_shape = Z_SHAPE

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
    """Faces (n, 3, 24, 24) to scores (n, 1), above 0 for faces it takes for real."""

    def __init__(self, channels: tuple[int, int] = CHANNELS) -> None:
        super().__init__()
        c1, c2 = channels
        self.add(
            gluon.nn.Conv2D(c1, 5, in_channels=3),
            gluon.nn.MaxPool2D(2, 2),  # before the relu, with the same bits
            gluon.nn.Activation("relu"),
            gluon.nn.Conv2D(c2, 5, in_channels=c1),
            gluon.nn.MaxPool2D(2, 2),
            gluon.nn.Activation("relu"),
            gluon.nn.Dense(32, activation="relu", in_units=c2 * 3 * 3),
            gluon.nn.Dense(1, in_units=32),
        )


@gluon_block
class ToPixels(gluon.HybridBlock):
    """Map a generator's last layer to pixels in [0, 1]: (tanh(x) + 1) / 2."""

    def compute(self, F, x):
        return F.npx.sigmoid(2 * x)


@gluon_block
class FromPixels(gluon.HybridBlock):
    """Map pixels in [0, 1] to [-1, 1], for a discriminator's first layer."""

    def compute(self, F, x):
        return 2 * x - 1


class WideGenerator(gluon.nn.HybridSequential):
    """Noise (n, 100, 1, 1) to faces (n, 3, 24, 24) in [0, 1].

    Transposed convolutions to 3, 6, 12 and 24 pixels with 4 w, 2 w, w and 3 channels,
    where w is the `width`; 890,000 parameters for 64.
    """

    z_shape = (100, 1, 1)
    weight_scale = 0.02

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [self.z_shape[0], 4 * width, 2 * width, width]
        for k, (before, after) in enumerate(zip(sizes, sizes[1:])):
            window = (4, 2, 1) if k else (3,)  # kernel, stride, padding
            self.add(
                gluon.nn.Conv2DTranspose(
                    after, *window, use_bias=False, in_channels=before
                ),
                gluon.nn.BatchNorm(in_channels=after),
                gluon.nn.Activation("relu"),
            )
        self.add(gluon.nn.Conv2DTranspose(3, 4, 2, 1, in_channels=width), ToPixels())


class WideDiscriminator(gluon.nn.HybridSequential):
    """Faces (n, 3, 24, 24) in [0, 1] to scores (n, 1), above 0 for real ones.

    Convolutions to 12, 6 and 3 pixels with w (the `width`), 2 w and 4 w channels. The
    `norm` is "none" or "spectral", which divides weights by their largest singular
    value.
    """

    weight_scale = 0.02

    def __init__(self, width: int, norm: str = "spectral") -> None:
        super().__init__()
        layer = SpectralConv2D if norm == "spectral" else gluon.nn.Conv2D
        sizes = [3, width, 2 * width, 4 * width]
        self.add(FromPixels())
        for before, after in zip(sizes, sizes[1:]):
            conv = layer(after, 4, 2, 1, in_channels=before)
            self.add(conv, gluon.nn.LeakyReLU(0.2))
        self.add(layer(1, 3, in_channels=4 * width), gluon.nn.Flatten())


@gluon_block
class SpectralConv2D(gluon.nn.Conv2D):
    """A convolution whose weights are divided by their largest singular value."""

    def __init__(self, channels: int, *args, in_channels: int, **kwargs) -> None:
        super().__init__(channels, *args, in_channels=in_channels, **kwargs)
        inputs = in_channels * math.prod(self._kwargs["kernel"])
        new_parameter(self, "u", (channels,))
        new_parameter(self, "v", (inputs,))

    def compute(self, F, x, weight, bias, u, v):
        norm = F.np.dot(u, F.np.dot(weight.reshape((self._channels, -1)), v))
        return F.npx.convolution(x, weight / norm, bias, **self._kwargs)


def new_networks(
    width: int | None, d_norm: str = "none", *, padded: bool = False
) -> tuple[gluon.Block, gluon.Block]:
    """Return discriminator and generator; `padded` gives them the devices' channels."""
    if width is None:
        return Discriminator(DEVICE_CHANNELS if padded else CHANNELS), Generator()
    return WideDiscriminator(width, d_norm), WideGenerator(width)


def init_params(net: gluon.Block, rng: numpy.random.Generator) -> list[numpy.ndarray]:
    """Draw host parameters: normal with `weight_scale`, or uniform as in PyTorch."""
    set_shapes(net)
    values: list[numpy.ndarray] = []
    scale = getattr(net, "weight_scale", None)  # of the wide networks
    for name, parameter in net.collect_params().items():
        shape = parameter.shape
        if len(shape) > 1:  # a bias follows its weight and shares the bound
            bound = 1 / numpy.sqrt(numpy.prod(shape[1:]))
        if name.endswith(("gamma", "running_var")):
            value = numpy.ones(shape)
        elif name.endswith(("beta", "running_mean")):
            value = numpy.zeros(shape)
        elif name.endswith(("_u", ".u")):
            weight = values[-2].reshape(len(values[-2]), -1)
            value = rng.standard_normal(shape)
            for _ in range(POWER_ITERATIONS):
                v = weight.T @ value
                v /= numpy.linalg.norm(v)
                value = weight @ v
                value /= numpy.linalg.norm(value)
        elif name.endswith(("_v", ".v")):
            value = v
        elif len(shape) > 1 and scale:
            value = rng.normal(0, scale, shape)
        else:
            value = rng.uniform(-bound, bound, shape)
        values.append(value.astype(numpy.float32))
    return values


@gluon_block
class PowerIteration(gluon.HybridBlock):
    """Map weights and vectors W1 (channels, ...), u1, W2, ... to new u1, v1, u2, ..."""

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.channels = channels

    def compute(self, F, *arrays):
        vectors = []
        for n, weight, u in zip(self.channels, arrays[::2], arrays[1::2]):
            matrix = weight.reshape((n, -1))
            v = F.np.dot(u, matrix)
            v = v / F.np.sqrt((v * v).sum())
            u = F.np.dot(matrix, v)
            vectors += [u / F.np.sqrt((u * u).sum()), v]
        return tuple(vectors)


def build(
    net: gluon.Block, params: Sequence[numpy.ndarray], devices: Sequence[mx.Context]
) -> gluon.Block:
    """Return `net` compiled, with `params` on every device (:func:`set_params`)."""
    check_distinct(devices)
    set_shapes(net)
    net.initialize(ctx=devices)
    net.hybridize(static_alloc=True, static_shape=True)
    set_params(net, params)
    return net


def set_params(net: gluon.Block, params: Sequence[numpy.ndarray]) -> None:
    """Copy host parameters to every device, enlarged with zeros to those of `net`."""
    for target, value in zip(net.collect_params().values(), params):
        target.set_data(np.array(pad(value, target.shape)))


def forward(
    net: gluon.Block, shards: Shards, synchronised: bool = False
) -> list[np.ndarray]:
    """Apply `net` to each device's shard.

    BatchNorm takes its mean and variance over a device's own shard, or, `synchronised`,
    over all devices, through which gradients then flow back.
    """
    if not synchronised:
        return [net(shard) for shard in shards]
    xs = list(shards)
    for block in net:
        is_norm = isinstance(block, gluon.nn.BatchNorm)
        xs = sync_batch_norm(xs, block) if is_norm else [block(x) for x in xs]
    return xs


def faces_of(net_G: gluon.Block, z: numpy.ndarray, device: mx.Context) -> numpy.ndarray:
    """Return the faces uint8 (n, 3, 24, 24) that a generator makes of host noise."""
    parts = [
        net_G(np.array(z[start : start + 500], ctx=device)).asnumpy()
        for start in range(0, len(z), 500)
    ]
    return numpy.rint(255 * numpy.concatenate(parts)).astype(numpy.uint8)


def sync_batch_norm(xs: Shards, norm: gluon.nn.BatchNorm) -> list[np.ndarray]:
    """Normalise (n_k, c, h, w) over all devices; Gluon's takes no mx.np arrays."""
    n = sum(len(x) for x in xs)
    means = _over_devices([_sum_of_means(x) for x in xs], n)
    centred = [_scale(x, np.ones_like(mean), -mean) for x, mean in zip(xs, means)]
    variances = _over_devices([_sum_of_means(c * c) for c in centred], n)
    ys = []
    for c, variance in zip(centred, variances):
        gamma, beta = norm.gamma.data(c.ctx), norm.beta.data(c.ctx)
        ys.append(_scale(c, gamma / np.sqrt(variance + norm._kwargs["eps"]), beta))
    momentum = norm._kwargs["momentum"]
    with autograd.pause():
        for moments in zip(means, variances):
            for parameter, value in zip((norm.running_mean, norm.running_var), moments):
                average = parameter.data(value.ctx)
                average[:] = momentum * average + (1 - momentum) * value
    return ys


def _scale(x: np.ndarray, factor: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return x (n, c, h, w) times a factor (c,) plus a shift (c,)."""
    eps = 1e-5  # a BatchNorm with variance 1: broadcasting takes ten times as long
    return npx.batch_norm(
        x, factor, shift, np.zeros_like(shift), np.full_like(shift, 1 - eps),
        eps=eps, fix_gamma=False, use_global_stats=True,
    )  # fmt: skip


def _sum_of_means(x: np.ndarray) -> np.ndarray:
    """Return the sum (c,) over the samples of each one's mean over (h, w)."""
    n, c, h, w = x.shape  # a dense layer: the gradient of pooling is slow
    weight = np.full((1, h * w), 1 / (h * w), ctx=x.ctx)
    means = npx.fully_connected(
        x.reshape((n * c, h * w)), weight, num_hidden=1, no_bias=True
    )
    return means.reshape((n, c)).sum(axis=0)


def _over_devices(parts: list[np.ndarray], n: int) -> list[np.ndarray]:
    """Return the sum of all devices' parts divided by `n`, on each device."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part.as_in_ctx(total.ctx)
    mean = total / n
    return [mean.as_in_ctx(part.ctx) for part in parts]
