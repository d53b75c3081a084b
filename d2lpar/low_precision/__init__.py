"""LeNet's inference in float32, bfloat16, float16 and INT8: accuracy, speed, bytes.

:mod:`~d2lpar.low_precision.lowering` converts a trained network,
:mod:`~d2lpar.low_precision.equalize` makes an outlier and removes it,
:mod:`~d2lpar.low_precision.measure` measures, and
:mod:`~d2lpar.low_precision.figure` draws the records. `equalize`, `table` and `figure`
import no MXNet.
"""
