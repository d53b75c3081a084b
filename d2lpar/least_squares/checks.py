"""Checks of the methods' options: ValueErrors that name the option and its value."""

from __future__ import annotations

import math
import numbers


def check_count(name: str, value: int) -> None:
    """Raise ValueError unless `value` is a whole number above 0."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not (whole and value > 0):
        raise ValueError(f"{name} {value!r}: write a whole number above 0")


def check_above_zero(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a finite number above 0."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value!r}: write a finite number above 0")
