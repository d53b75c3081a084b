"""Data-parallel least squares: min ||A x - b|| over x, A's rows shared over devices.

Names load when used: :mod:`d2lpar.least_squares.figure` draws without MXNet.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
