"""Channels of zeros, with which oneDNN computes faster on CPUs without AVX-512.

It computes whole blocks of 8 channels with AVX2. Parameters of added channels start at
0 and stay 0. benchmarks/SPEED.md has what they gain.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from d2lpar.machine import host

# LeNet's convolutions: the book's channels, and whole blocks.
CHANNELS, IN_BLOCKS = (20, 50), (24, 56)


def lenet_channels(device_type: str) -> tuple[int, int]:
    """Return LeNet's channels in training on "cpu" or "gpu"."""
    in_blocks = device_type == "cpu" and host.onednn_has_avx2_only()
    return IN_BLOCKS if in_blocks else CHANNELS


def lenet_shapes(channels: tuple[int, int] = CHANNELS) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of LeNet's eight parameters with these channels."""
    c1, c2 = channels
    dense = (16 * c2, 128), (128,), (128, 10), (10,)
    return (c1, 1, 3, 3), (c1,), (c2, c1, 5, 5), (c2,), *dense


def header_facts(device_type: str) -> dict:
    """Return what a record's header says of LeNet: channels that are not the book's."""
    channels = lenet_channels(device_type)
    return {} if channels == CHANNELS else {"lenet_channels": channels}


def pad(value: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """Enlarge a host array to `shape` with zeros."""
    return numpy.pad(value, [(0, n - m) for n, m in zip(shape, value.shape)])


def cut(array: numpy.ndarray, shape: tuple[int, ...]) -> numpy.ndarray:
    """Return the part of a larger host array that :func:`pad` was given."""
    return array[tuple(slice(n) for n in shape)].copy()


def padded(params: Sequence[numpy.ndarray], device_type: str) -> list[numpy.ndarray]:
    """Enlarge LeNet's host parameters to :func:`lenet_channels`."""
    return list(map(pad, params, lenet_shapes(lenet_channels(device_type))))


def unpadded(params: Sequence) -> list[numpy.ndarray]:
    """Return a replica's parameters as host arrays, cut to the book's shapes."""
    return [cut(p.asnumpy(), shape) for p, shape in zip(params, lenet_shapes())]
