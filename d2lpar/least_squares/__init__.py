"""Data-parallel least squares: min ||A x - b|| over x, A's rows shared over devices."""

from d2lpar.least_squares.notes import LeastSquare
from d2lpar.least_squares.solver import METHODS, Solution, solve, train

__all__ = ["LeastSquare", "METHODS", "Solution", "solve", "train"]
