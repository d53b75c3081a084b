from .solver import METHODS as METHODS
from .solver import LeastSquare as LeastSquare
from .solver import Solution as Solution
from .solver import measure as measure
from .solver import solve as solve
