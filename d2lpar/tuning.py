"""LeNet in faster forms with the same numbers: channels in blocks, biases as weights.

:mod:`d2lpar.networks` defines the network. Here is what depends on the device that
computes it: how many channels a CPU's instructions are fastest with, and how a GPU
computes the gradient of a convolution's bias. The measurements are in
benchmarks/SPEED.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import gluon, np, npx
from d2lpar.machine import host

# Channels of the convolutions: the book's, and whole blocks of 8, in which oneDNN
# computes with AVX2.
CHANNELS, IN_BLOCKS = (20, 50), (24, 56)


def device_channels(device_type: str) -> tuple[int, int]:
    """Return the channels of LeNet in training on devices of a type, "cpu" or "gpu".

    With AVX2 oneDNN takes matrix products for 20 and 50 channels, and kernels of its
    own, in about three quarters of the time, for multiples of 8 (benchmarks/SPEED.md).
    The weights and biases of the additional channels are 0, so their outputs and
    gradients are 0, too, and they never change: the training is the same. With AVX-512,
    and on GPUs, the book's channels are as fast.
    """
    in_blocks = device_type == "cpu" and host.onednn_has_avx2_only()
    return IN_BLOCKS if in_blocks else CHANNELS


def padded(
    params: Sequence[numpy.ndarray], channels: tuple[int, int]
) -> list[numpy.ndarray]:
    """Enlarge LeNet's host parameters with zeros to these channels."""
    c1, c2 = channels
    convolutions = (c1, 1, 3, 3), (c1,), (c2, c1, 5, 5), (c2,)
    dense_weight = 16 * c2, 128
    shapes = *convolutions, dense_weight, *(p.shape for p in params[5:])
    return [pad(value, shape) for value, shape in zip(params, shapes)]


def unpadded(
    params: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]
) -> list[numpy.ndarray]:
    """Return a replica's parameters as host arrays, cut to `shapes`."""
    return [cut(p.asnumpy(), shape) for p, shape in zip(params, shapes)]


def pad(value: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """Enlarge a host array to `shape` with zeros."""
    return numpy.pad(value, [(0, n - m) for n, m in zip(shape, value.shape)])


def cut(array: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """Return the part of a larger host array that :func:`pad` was given."""
    return array[tuple(slice(n) for n in shape)].copy()


# With this many images per GPU or more, :func:`bias_as_weight` is the faster form. From
# scratch it costs Python a call for each of its operations; in a graph it does not, and
# in a CUDA graph it does not cost MXNet's engine one either.
MANY_IMAGES, MANY_IN_A_GRAPH, MANY_IN_A_CUDA_GRAPH = 1024, 384, 256


def in_cuda_graphs() -> bool:
    """Whether MXNet launches compiled networks as CUDA graphs in this process.

    ``d2lpar run`` asks for it on one GPU (:mod:`d2lpar.experiments`): a step of 256
    images then takes 0.73 ms on an H200 instead of 0.99 (benchmarks/SPEED.md).
    """
    return os.environ.get("MXNET_ENABLE_CUDA_GRAPHS", "0") not in ("", "0")


def takes_biases_as_weights(device_type: str, per_device_batch_size: int) -> bool:
    """Whether :class:`BiasAsWeightConv2D` is the faster convolution in a graph."""
    many = MANY_IN_A_CUDA_GRAPH if in_cuda_graphs() else MANY_IN_A_GRAPH
    return device_type == "gpu" and per_device_batch_size >= many


def convolve(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Convolve X (n, i, h, w) with W (o, i, k, k) and add b (o,); without padding."""
    shape = {"kernel": W.shape[2:], "num_filter": W.shape[0]}
    if X.ctx.device_type == "gpu" and X.shape[0] >= MANY_IMAGES:
        X, W = bias_as_weight(np, X, W, padded_bias(np, b, W.shape[2]))
        return npx.convolution(data=X, weight=W, no_bias=True, **shape)
    return npx.convolution(data=X, weight=W, bias=b, **shape)


def bias_as_weight(F, X, W, taps):
    """Return images with one more channel, of ones, and weights with `taps` for it.

    `taps` (o, 1, k, k) are the bias b (o,) in a corner of a kernel of zeros. The
    convolution of both results is that of X and W plus b. Its gradient is far cheaper
    on a GPU: cuDNN takes 7 ms for the gradient of the first convolution's bias with
    8,192 images on an H200, and 1 ms for that of its weights. X, W and taps are arrays
    or, in a hybridized block, symbols; `F` is the module ``np`` of either.
    """
    ones = F.ones_like(X[:, :1])
    return F.concatenate([X, ones], axis=1), F.concatenate([W, taps], axis=1)


def padded_bias(F, b, kernel: int):
    """Put the bias b (o,) into a corner of kernels of zeros, (o, 1, kernel, kernel)."""
    rest = (0, kernel - 1)
    return F.pad(b.reshape((-1, 1, 1, 1)), ((0, 0), (0, 0), rest, rest))


class BiasAsWeightConv2D(gluon.nn.Conv2D):
    """Gluon's convolution, computed by :func:`bias_as_weight`."""

    def hybrid_forward(self, F, x, weight, bias):
        """Return what Conv2D does, images (n, c, h, w) to (n, channels, h', w')."""
        (kernel, _), num_filter = self._kwargs["kernel"], self._kwargs["num_filter"]
        if in_cuda_graphs():
            # np.pad reads its widths from host memory, which is gone when CUDA replays
            # the graph. This takes more operations, which cost nothing there.
            rest = F.np.zeros_like(weight[:, :1]).reshape((num_filter, kernel**2))
            row = F.np.concatenate([bias.reshape((num_filter, 1)), rest[:, 1:]], axis=1)
            taps = row.reshape((num_filter, 1, kernel, kernel))
        else:
            taps = padded_bias(F.np, bias, kernel)
        x, weight = bias_as_weight(F.np, x, weight, taps)
        shape = {"kernel": (kernel, kernel), "num_filter": num_filter}
        return self.act(F.npx.convolution(x, weight, no_bias=True, **shape))


def dense(X: np.ndarray, W: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Multiply X (n, i) by W (i, o) and add b (o,): the book's ``np.dot(X, W) + b``.

    On a CPU oneDNN computes it, as it does the convolutions, from a transpose of W.
    ``np.dot`` there calls the OpenBLAS in MXNet's wheel, which is slower, and which
    deadlocks when two CPU contexts with more than one thread each call it at the same
    time.
    """
    if X.ctx.device_type == "gpu":
        return np.dot(X, W) + b
    return npx.fully_connected(X, W.T, b, num_hidden=W.shape[1])
