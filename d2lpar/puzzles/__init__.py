"""Twenty-one tasks and four bugs about data-parallel training, checked and timed.

>>> from d2lpar import puzzles
>>> def split_unevenly(n, num_devices):
...     return [slice(k, None, num_devices) for k in range(num_devices)]
>>> puzzles.check(split_unevenly)  # doctest: +ELLIPSIS
split_unevenly: wrong with n = 5, num_devices = 2: its answer[0] is ...
False

The tasks are in :mod:`d2lpar.puzzles.tasks`, and their guide is ``docs/puzzles.md``.
They need NumPy only; :func:`run` also needs MXNet, and :func:`draw` Matplotlib.
"""

from d2lpar.puzzles.checking import check
from d2lpar.puzzles.hints import hint
from d2lpar.puzzles.picture import draw
from d2lpar.puzzles.timing import run

__all__ = ["check", "draw", "hint", "run"]
