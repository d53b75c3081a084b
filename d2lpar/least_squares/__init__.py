"""Data-parallel least squares: min ||A x - b|| over x, A's rows shared over devices.

The names below are loaded, and MXNet with them, when they are first used, so that
:mod:`~d2lpar.least_squares.figure` draws without MXNet.
"""

import importlib

__all__ = ["LeastSquare", "METHODS", "Solution", "measure", "solve"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.solver"), name)


def __dir__() -> list:
    return sorted([*globals(), *__all__])
