"""Data-parallel least squares: min ||A x - b|| over x, A's rows shared over devices.

The names in `__init__.pyi` are loaded, and MXNet with them, when they are first used,
so that :mod:`d2lpar.least_squares.figure` draws without MXNet.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
