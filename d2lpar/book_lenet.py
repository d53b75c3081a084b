"""LeNet as a function of eight parameters.

Two convolutions, average pooling and two dense layers; weights drawn from N(0, 0.01).
In Gluon it is :class:`d2lpar.lenet.network.LeNet`. Source: the book (d2l), "Training on
Multiple GPUs".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from d2lpar._mxnet import np, npx

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
# Images per GPU from which a bias is faster as a weight channel. More than in Gluon:
# from scratch the form costs Python a call for each operation.
BIAS_AS_WEIGHT_FROM = 1024


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
    check_images(X)
    h1 = convolve(X, params[0], params[1])
    h1 = npx.activation(h1, act_type="relu")  # 3 times as fast on a CPU as npx.relu
    h1 = npx.pooling(data=h1, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = convolve(h1, params[2], params[3])
    h2 = npx.activation(h2, act_type="relu")
    h2 = npx.pooling(data=h2, pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h2 = h2.reshape((h2.shape[0], -1))
    h3 = npx.activation(dense(h2, params[4], params[5]), act_type="relu")
    return dense(h3, params[6], params[7])


def check_images(X: np.ndarray) -> None:
    """Raise ValueError unless X are images (n, 1, 28, 28)."""
    if X.ndim != 4 or X.shape[1:] != (1, 28, 28):
        raise ValueError(f"X {X.shape}: LeNet takes images (n, 1, 28, 28)")


def convolve(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Convolve X (n, i, h, w) with W (o, i, k, k) and add b (o,); without padding."""
    shape = {"kernel": W.shape[2:], "num_filter": W.shape[0]}
    if X.ctx.device_type == "gpu" and X.shape[0] >= BIAS_AS_WEIGHT_FROM:
        X, W = bias_as_weight(np, X, W, padded_bias(np, b, W.shape[2]))
        return npx.convolution(data=X, weight=W, no_bias=True, **shape)
    return npx.convolution(data=X, weight=W, bias=b, **shape)


def bias_as_weight(F, X, W, taps):
    """Return images and weights whose convolution is that of X and W plus b.

    The images get a channel of ones, the weights a channel `taps` (o, 1, k, k): zeros
    with b (o,) in a corner. On an H200 cuDNN needs 7 ms for the gradient of the first
    bias, and 1 ms for that of the first weights.
    """
    ones = F.ones_like(X[:, :1])
    return F.concatenate([X, ones], axis=1), F.concatenate([W, taps], axis=1)


def padded_bias(F, b, kernel: int):
    """Put the bias b (o,) into a corner of kernels of zeros, (o, 1, kernel, kernel)."""
    rest = (0, kernel - 1)
    return F.pad(b.reshape((-1, 1, 1, 1)), ((0, 0), (0, 0), rest, rest))


def dense(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply X (n, i) by W (i, o) and add b (o,): the book's ``np.dot(X, W) + b``.

    On a CPU it calls oneDNN: OpenBLAS in MXNet's wheel is slower, and deadlocks when
    two CPU contexts with more than one thread each call it at the same time.
    """
    if X.ctx.device_type == "gpu":
        return np.dot(X, W) + b
    return npx.fully_connected(X, W.T, b, num_hidden=W.shape[1], no_bias=False)
