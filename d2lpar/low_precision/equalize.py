"""What an outlier costs INT8, and the remedy: scaling LeNet's channels.

Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction" (2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from d2lpar.errors import SettingError


def stretch(params: Sequence[numpy.ndarray], factor: float) -> list[numpy.ndarray]:
    """Return a copy, its most important channel scaled by `factor`, a power of two."""
    if not (math.isfinite(factor) and factor >= 1 and math.frexp(factor)[0] == 0.5):
        raise SettingError(f"stretch {factor:g}: write a power of two, 1, 2, 4, ...")
    scale = numpy.ones(len(params[0]), numpy.float32)
    scale[numpy.abs(params[2]).max(axis=(0, 2, 3)).argmax()] = factor
    return _scaled(params, scale)


def equalize(params: Sequence[numpy.ndarray]) -> list[numpy.ndarray]:
    """Return a copy whose channels have equally large weights in both convolutions."""
    made = numpy.abs(params[0]).max(axis=(1, 2, 3))
    used = numpy.abs(params[2]).max(axis=(0, 2, 3))
    alive = (made > 0) & (used > 0)
    scale = numpy.ones_like(made)
    scale[alive] = numpy.sqrt(used[alive] / made[alive])
    return _scaled(params, scale)


def _scaled(params: Sequence[numpy.ndarray], scale: numpy.ndarray) -> list:
    W1, b1, W2, *rest = params
    return [
        W1 * scale[:, None, None, None],
        b1 * scale,
        W2 / scale[:, None, None],
        *(value.copy() for value in rest),
    ]
