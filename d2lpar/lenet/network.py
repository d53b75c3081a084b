"""LeNet in Gluon, in the forms that devices train fastest (benchmarks/SPEED.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy

from d2lpar._mxnet import gluon, gluon_block, np
from d2lpar.book_lenet import SHAPES, bias_as_weight, padded_bias
from d2lpar.machine import host

# Channels of the convolutions: the book's, and whole blocks of 8, in which oneDNN
# computes with AVX2; benchmarks/SPEED.md has what they gain where AVX-512 is missing.
CHANNELS, IN_BLOCKS = (20, 50), (24, 56)


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


def device_channels(device_type: str) -> tuple[int, int]:
    """Return LeNet's channels in training on "cpu" or "gpu"; the added ones stay 0."""
    in_blocks = device_type == "cpu" and host.onednn_has_avx2_only()
    return IN_BLOCKS if in_blocks else CHANNELS


def header_facts(device_type: str) -> dict:
    """Return what a record's header says of LeNet: channels that are not the book's."""
    channels = device_channels(device_type)
    return {} if channels == CHANNELS else {"lenet_channels": channels}


def padded(params: Sequence[numpy.ndarray], device_type: str) -> list[numpy.ndarray]:
    """Enlarge host parameters with zeros to the :func:`device_channels`."""
    c1, c2 = device_channels(device_type)
    shapes = (c1, 1, 3, 3), (c1,), (c2, c1, 5, 5), (c2,), (16 * c2, 128), *SHAPES[5:]
    return [pad(value, shape) for value, shape in zip(params, shapes)]


def unpadded(params: Sequence[np.ndarray]) -> list[numpy.ndarray]:
    """Return a replica's parameters as host arrays, cut to the book's SHAPES."""
    return [cut(p.asnumpy(), shape) for p, shape in zip(params, SHAPES)]


def pad(value: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """Enlarge a host array to `shape` with zeros."""
    return numpy.pad(value, [(0, n - m) for n, m in zip(shape, value.shape)])


def cut(array: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """Return the part of a larger host array that :func:`pad` was given."""
    return array[tuple(slice(n) for n in shape)].copy()


def in_cuda_graphs() -> bool:
    """Return whether MXNet launches compiled networks as CUDA graphs."""
    return os.environ.get("MXNET_ENABLE_CUDA_GRAPHS", "0") not in ("", "0")


def bias_as_weight_from() -> int:
    """Return the images per GPU from which a bias is faster as a weight channel."""
    return 256 if in_cuda_graphs() else 384


@gluon_block
class BiasAsWeightConv2D(gluon.nn.Conv2D):
    """Gluon's convolution, computed by :func:`bias_as_weight`."""

    def compute(self, F, x, weight, bias):
        (kernel, _), num_filter = self._kwargs["kernel"], self._kwargs["num_filter"]
        if in_cuda_graphs():
            # np.pad reads its widths from host memory, gone when CUDA replays this.
            rest = F.np.zeros_like(weight[:, :1]).reshape((num_filter, kernel**2))
            row = F.np.concatenate([bias.reshape((num_filter, 1)), rest[:, 1:]], axis=1)
            taps = row.reshape((num_filter, 1, kernel, kernel))
        else:
            taps = padded_bias(F.np, bias, kernel)
        x, weight = bias_as_weight(F.np, x, weight, taps)
        shape = {"kernel": (kernel, kernel), "num_filter": num_filter}
        return self.act(F.npx.convolution(x, weight, no_bias=True, **shape))
