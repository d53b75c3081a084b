"""When does a second device pay? From the measured steps to the speedups.

:mod:`~d2lpar.scaling.measure` times steps, all-reduces and trainings on several device
counts; :mod:`~d2lpar.scaling.model` says what a step costs and where the break-even is;
:mod:`~d2lpar.scaling.figure` draws the records. Only `measure`, `step` and `allreduce`
import MXNet.
"""
