"""Median and quartiles of repeated measurements, and ratios of their medians."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Median and quartiles of `n` samples, in the samples' unit."""

    median: float
    q1: float
    q3: float
    n: int

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.q1:.2f}-{self.q3:.2f}, n={self.n})"


def summarize(samples: Sequence[float]) -> Summary:
    """Median, lower and upper quartile, n. Raises ValueError for no samples.

    >>> summarize([3.0, 1.0, 2.0])
    Summary(median=2.0, q1=1.5, q3=2.5, n=3)
    """
    if len(samples) == 0:
        raise ValueError("summarize: there are no samples")
    q1, median, q3 = np.percentile(samples, (25, 50, 75))
    return Summary(float(median), float(q1), float(q3), len(samples))


def speedup(base_seconds: float, seconds: float) -> float:
    """How many times faster than the base: base_seconds / seconds."""
    return base_seconds / seconds


def efficiency(base: float, base_devices: int, seconds: float, devices: int) -> float:
    """Parallel efficiency, 1 for perfect scaling: speedup / (devices / base_devices).

    >>> efficiency(2.0, 1, 1.25, 2)
    0.8
    """
    return speedup(base, seconds) * base_devices / devices
