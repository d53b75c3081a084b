"""Twelve tasks and four bugs about data-parallel training, checked and timed.

>>> import puzzles
>>> from puzzles.tasks import split_unevenly
>>> puzzles.check(split_unevenly)
split_unevenly: not solved yet
False
"""

from puzzles.checking import check
from puzzles.timing import run

__all__ = ["check", "run"]
