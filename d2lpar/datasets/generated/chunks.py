"""Pictures drawn in whole chunks, so that picture i does not depend on their number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

CHUNK = 500  # pictures; so few that a chunk's arrays stay in the cache


def draw_first(
    n: int, draw_chunk: Callable[[int], tuple[np.ndarray, ...]], name: str = "n"
) -> list[np.ndarray]:
    """The first `n` entries of the arrays that ``draw_chunk(0)``, (1), ... continue.

    Raises ValueError, calling it `name`, unless `n` is an integer >= 1.
    """
    # A bool is an int to Python, but never a sensible number of pictures.
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"{name} must be an integer >= 1, not {n!r}")
    chunks = [draw_chunk(number) for number in range(-(-int(n) // CHUNK))]
    return [np.concatenate(arrays)[:n] for arrays in zip(*chunks)]
