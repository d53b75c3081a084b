"""Twelve tasks and four bugs about data-parallel training, checked and timed.

The puzzles are in ``puzzles/tasks.py``; ``puzzles/README.md`` says how to begin. Only
:func:`run` needs MXNet.
"""

from puzzles.checking import check
from puzzles.timing import run

__all__ = ["check", "run"]
