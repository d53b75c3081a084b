"""LeNet's inference in float32, bfloat16, float16 and INT8: accuracy, speed, bytes.

:mod:`~d2lpar.low_precision.lowering` converts a trained network,
:mod:`~d2lpar.low_precision.equalize` makes an outlier and removes it,
:mod:`~d2lpar.low_precision.measure` measures,
:mod:`~d2lpar.low_precision.result` finds what the records say, and
:mod:`~d2lpar.low_precision.figure` draws them. `equalize`, `result` and `figure` import
no MXNet.
"""
