"""LeNet: the book's function of eight parameters, and the same network in Gluon.

Two convolutions, average pooling and two dense layers; weights drawn from N(0, 0.01).
Source: the book (d2l), "Training on Multiple GPUs".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from d2lpar._mxnet import gluon, np, npx
from d2lpar.on_gpus import BiasAsWeightConv2D, convolve
from d2lpar.padding import CHANNELS, lenet_shapes, pad, unpadded

SHAPES = lenet_shapes()  # of W1, b1, W2, b2 (convolutions), W3, b3, W4, b4 (dense)


def init_lenet(scale: float = 0.01, seed: int = 0) -> list[numpy.ndarray]:
    """Draw parameters [W1, b1, W2, b2, W3, b3, W4, b4] as host arrays, float32.

    Weights are from N(0, scale), biases 0. They are drawn on the host, because MXNet's
    random streams depend on the device.
    """
    rng = numpy.random.default_rng(seed)
    return [
        rng.normal(scale=scale, size=shape).astype(numpy.float32)
        if len(shape) > 1
        else numpy.zeros(shape, numpy.float32)
        for shape in SHAPES
    ]


def lenet(X: np.ndarray, params: Sequence[np.ndarray]) -> np.ndarray:
    """Return scores (n, 10) of images X (n, 1, 28, 28), computed on their device."""
    h1 = convolve(X, params[0], params[1])
    h1 = npx.activation(h1, act_type="relu")  # faster on a CPU than npx.relu
    h1 = npx.pooling(data=h1, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = convolve(h1, params[2], params[3])
    h2 = npx.activation(h2, act_type="relu")
    h2 = npx.pooling(data=h2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape((h2.shape[0], -1))
    h3 = npx.activation(dense(h2, params[4], params[5]), act_type="relu")
    return dense(h3, params[6], params[7])


def dense(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply X (n, i) by W (i, o) and add b (o,): the book's ``np.dot(X, W) + b``.

    On a CPU it calls oneDNN: OpenBLAS in MXNet's wheel is slower, and deadlocks when
    two CPU contexts with more than one thread each call it at the same time.
    """
    if X.ctx.device_type == "gpu":
        return np.dot(X, W) + b
    # Added apart: the operator gives a bias no gradient where the weight has none.
    return npx.fully_connected(X, W.T, num_hidden=W.shape[1], no_bias=True) + b


class LeNet(gluon.nn.HybridSequential):
    """Map images (n, 1, 28, 28) to scores (n, 10)."""

    def __init__(
        self, biases_as_weights: bool = False, channels: tuple[int, int] = CHANNELS
    ) -> None:
        super().__init__()
        Conv2D = BiasAsWeightConv2D if biases_as_weights else gluon.nn.Conv2D
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
    """Give every replica of `net` the parameters; Dense weights are transposed."""
    for target, value in zip(net.collect_params().values(), params):
        value = value.T if value.ndim == 2 else value
        target.set_data(np.array(pad(value, target.shape)))


def get_host_params(net: LeNet) -> list[numpy.ndarray]:
    """Return the first replica's parameters as host arrays, cut to SHAPES."""
    values = [p.list_data()[0] for p in net.collect_params().values()]
    return unpadded([v.T if v.ndim == 2 else v for v in values])
