"""The sources' array operations, timed on any devices, beside NumPy and PyTorch.

:mod:`~d2lpar.arrays.operations` has the operations and their right results,
:mod:`~d2lpar.arrays.timings` times them, and :mod:`~d2lpar.arrays.figure` draws the
records. Only `operations` and `timings` import MXNet.
"""
