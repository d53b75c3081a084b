"""TODO room."""

from d2lpar.least_squares.solver import METHODS, LeastSquare, Solution, solve, train

__all__ = ["LeastSquare", "METHODS", "Solution", "solve", "train"]
