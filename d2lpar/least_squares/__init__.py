"""TODO room."""

from d2lpar.least_squares.solver import (
    METHODS,
    WORKLOAD,
    WORKLOAD_ON_DISK,
    LeastSquare,
    Solution,
    solve,
    train,
)

__all__ = [
    "METHODS",
    "WORKLOAD",
    "WORKLOAD_ON_DISK",
    "LeastSquare",
    "Solution",
    "solve",
    "train",
]
