"""Puzzles about data-parallel training: `python -m teaching.puzzles` lists them."""
