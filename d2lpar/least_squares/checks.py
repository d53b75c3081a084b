"""Checks of the methods' options: ValueErrors that name the option and its value."""

from __future__ import annotations

import math
import numbers


def check_count(name: str, value: int) -> None:
    """Raise ValueError unless `value` is a whole number above 0."""
    if not (_is_whole(value) and value > 0):
        raise ValueError(f"{name} {value!r}: write a whole number above 0")


def check_count_or_0(name: str, value: int) -> None:
    """Raise ValueError unless `value` is a whole number, 0 or more."""
    if not (_is_whole(value) and value >= 0):
        raise ValueError(f"{name} {value!r}: write 0 or more, a whole number")


def check_above_zero(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a finite number above 0."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value!r}: write a finite number above 0")


def _is_whole(value) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
