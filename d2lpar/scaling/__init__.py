"""When does a second device pay? From the measured steps to the speedups.

:mod:`~d2lpar.scaling.measure` times steps, all-reduces and trainings on several device
counts; :mod:`~d2lpar.scaling.model` computes the bracket of a step and the break-even;
:mod:`~d2lpar.scaling.figure` draws the records; :mod:`~d2lpar.scaling.trace` shows
single steps. `model`, `result` and `figure` import no MXNet.
"""
