"""Data-parallel least squares: min ||A x - b|| over x, A's rows shared over devices."""

from d2lpar.least_squares.notes import LeastSquare
from d2lpar.least_squares.solver import (
    METHODS,
    WORKLOAD,
    WORKLOAD_ON_DISK,
    Solution,
    solve,
    train,
)

__all__ = [
    "LeastSquare",
    "METHODS",
    "Solution",
    "WORKLOAD",
    "WORKLOAD_ON_DISK",
    "solve",
    "train",
]
