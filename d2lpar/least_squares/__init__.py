"""Data-parallel least squares: min ||A x - b|| over x, A's rows shared over devices.

Names load when used: :mod:`d2lpar.least_squares.figure` draws without MXNet.
"""

from d2lpar._public_names import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
