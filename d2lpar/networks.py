"""LeNet twice: as a function of the book's eight parameters, and as a Gluon block.

Both compute the same scores from the same parameters, drawn by :func:`init_lenet`.

Source: the book (d2l), "Training on Multiple GPUs": two convolutions with average
pooling and two dense layers; weights drawn from N(0, 0.01).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from d2lpar._mxnet import gluon, np, npx
from d2lpar.machine import host

SHAPES = (
    (20, 1, 3, 3),  # W1, convolution
    (20,),
    (50, 20, 5, 5),  # W2, convolution
    (50,),
    (800, 128),  # W3, dense
    (128,),
    (128, 10),  # W4, dense
    (10,),
)


def init_lenet(scale: float = 0.01, seed: int = 0) -> list[numpy.ndarray]:
    """Parameters [W1, b1, W2, b2, W3, b3, W4, b4] as host arrays, float32.

    Weights are drawn from N(0, scale), biases are 0. They are drawn once on the host
    and copied to each device, because MXNet's random streams depend on the device.
    """
    rng = numpy.random.default_rng(seed)
    return [
        rng.normal(scale=scale, size=shape).astype(numpy.float32)
        if len(shape) > 1
        else numpy.zeros(shape, numpy.float32)
        for shape in SHAPES
    ]


# Channels of the convolutions: the book's, and whole blocks of 8, in which oneDNN
# computes with AVX2.
CHANNELS, IN_BLOCKS = (20, 50), (24, 56)


def device_channels(device_type: str) -> tuple[int, int]:
    """Channels of LeNet in training on devices of a type, "cpu" or "gpu".

    With AVX2 oneDNN takes matrix products for 20 and 50 channels, and kernels of its
    own, in about three quarters of the time, for multiples of 8 (docs/speed.md). The
    weights and biases of the additional channels are 0, so their outputs and gradients
    are 0, too, and they never change: the training is the same. With AVX-512, and on
    GPUs, the book's channels are as fast.
    """
    in_blocks = device_type == "cpu" and host.onednn_has_avx2_only()
    return IN_BLOCKS if in_blocks else CHANNELS


def padded(
    params: Sequence[numpy.ndarray], channels: tuple[int, int]
) -> list[numpy.ndarray]:
    """Host parameters of SHAPES enlarged with zeros to these channels."""
    c1, c2 = channels
    dense = 16 * c2, 128
    shapes = (c1, 1, 3, 3), (c1,), (c2, c1, 5, 5), (c2,), dense, *SHAPES[5:]
    return [pad(value, shape) for value, shape in zip(params, shapes)]


def unpadded(params: Sequence[np.ndarray]) -> list[numpy.ndarray]:
    """A replica's parameters as host arrays of SHAPES; undoes :func:`padded`."""
    return [cut(p.asnumpy(), shape) for p, shape in zip(params, SHAPES)]


def pad(value: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """A host array enlarged to `shape` with zeros."""
    return numpy.pad(value, [(0, n - m) for n, m in zip(shape, value.shape)])


def cut(array: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """The part of a larger host array that :func:`pad` was given."""
    return array[tuple(slice(n) for n in shape)].copy()


# With this many images per GPU or more, :func:`bias_as_weight` is the faster form. From
# scratch it costs Python a call for each of its operations; in a graph it does not.
MANY_IMAGES, MANY_IN_A_GRAPH = 1024, 384


def lenet(X: np.ndarray, params: Sequence[np.ndarray]) -> np.ndarray:
    """Scores (n, 10) of images X (n, 1, 28, 28), computed on the device of both."""
    h1 = convolve(X, params[0], params[1])
    h1 = npx.activation(h1, act_type="relu")  # 3 times as fast on a CPU as npx.relu
    h1 = npx.pooling(data=h1, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = convolve(h1, params[2], params[3])
    h2 = npx.activation(h2, act_type="relu")
    h2 = npx.pooling(data=h2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape((h2.shape[0], -1))
    h3 = npx.activation(dense(h2, params[4], params[5]), act_type="relu")
    return dense(h3, params[6], params[7])


def convolve(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """X (n, i, h, w) convolved with W (o, i, k, k), plus b (o,); without padding."""
    shape = {"kernel": W.shape[2:], "num_filter": W.shape[0]}
    if X.ctx.device_type == "gpu" and X.shape[0] >= MANY_IMAGES:
        X, W = bias_as_weight(np, X, W, b, kernel=W.shape[2])
        return npx.convolution(data=X, weight=W, no_bias=True, **shape)
    return npx.convolution(data=X, weight=W, bias=b, **shape)


def bias_as_weight(F, X, W, b, *, kernel: int):
    """Images with one more channel, of ones, and weights whose part for it is `b`.

    The convolution of both is that of X and W plus b. Its gradient is far cheaper on a
    GPU: cuDNN takes 7 ms for the gradient of the first convolution's bias with 8,192
    images on an H200, and 1 ms for that of its weights. X, W and b are arrays or, in a
    hybridized block, symbols; `F` is the module ``np`` of either.
    """
    ones, rest = F.ones_like(X[:, :1]), (0, kernel - 1)
    taps = F.pad(b.reshape((-1, 1, 1, 1)), ((0, 0), (0, 0), rest, rest))
    return F.concatenate([X, ones], axis=1), F.concatenate([W, taps], axis=1)


def dense(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """X (n, i) times W (i, o) plus b (o,): the book's ``np.dot(X, W) + b``.

    On a CPU oneDNN computes it, as it does the convolutions, from a transpose of W.
    ``np.dot`` there calls the OpenBLAS in MXNet's wheel, which is slower, and which
    deadlocks when two CPU contexts with more than one thread each call it at the same
    time.
    """
    if X.ctx.device_type == "gpu":
        return np.dot(X, W) + b
    return npx.fully_connected(X, W.T, b, num_hidden=W.shape[1])


class _BiasAsWeight(gluon.nn.Conv2D):
    """Gluon's convolution, computed by :func:`bias_as_weight`."""

    def hybrid_forward(self, F, x, weight, bias):
        (kernel, _), num_filter = self._kwargs["kernel"], self._kwargs["num_filter"]
        x, weight = bias_as_weight(F.np, x, weight, bias, kernel=kernel)
        shape = {"kernel": (kernel, kernel), "num_filter": num_filter}
        return self.act(F.npx.convolution(x, weight, no_bias=True, **shape))


class LeNet(gluon.nn.HybridSequential):
    """The network of :func:`lenet`: images (n, 1, 28, 28) to scores (n, 10).

    With `many_images` its convolutions are those of :func:`bias_as_weight`. `channels`
    are theirs (:func:`device_channels`).
    """

    def __init__(
        self, many_images: bool = False, channels: tuple[int, int] = CHANNELS
    ) -> None:
        super().__init__()
        Conv2D = _BiasAsWeight if many_images else gluon.nn.Conv2D
        c1, c2 = channels
        self.add(
            Conv2D(c1, kernel_size=3, activation="relu", in_channels=1),
            gluon.nn.AvgPool2D(pool_size=2, strides=2),
            Conv2D(c2, kernel_size=5, activation="relu", in_channels=c1),
            gluon.nn.AvgPool2D(pool_size=2, strides=2),
            gluon.nn.Dense(128, activation="relu"),
            gluon.nn.Dense(10),
        )


def set_params(net: LeNet, params: Sequence[numpy.ndarray]) -> None:
    """Give every replica of `net` the parameters of :func:`init_lenet`, in its order.

    A Dense layer keeps its weight as (outputs, inputs), the transpose of the book's.
    What is larger in `net`, whose shapes are known by now, is filled up with zeros.
    """
    for target, value in zip(net.collect_params().values(), params):
        value = value.T if value.ndim == 2 else value
        target.set_data(np.array(pad(value, target.shape)))


def get_host_params(net: LeNet) -> list[numpy.ndarray]:
    """Host arrays of the first replica's parameters, cut to SHAPES."""
    values = [p.list_data()[0] for p in net.collect_params().values()]
    return unpadded([v.T if v.ndim == 2 else v for v in values])
