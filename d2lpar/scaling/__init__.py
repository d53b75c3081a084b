"""When does a second device pay? From the measured steps to the speedups.

`model`, `result` and `figure` import no MXNet. `trace` shows single steps.
"""
