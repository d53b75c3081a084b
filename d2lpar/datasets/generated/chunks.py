"""Pictures drawn in whole chunks, so that picture i does not depend on their number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from d2lpar.errors import SettingError

MOST = 1_000_000  # pictures: as images of 28 x 28 they take 0.8 GB, and minutes
CHUNK = 500  # pictures; so few that a chunk's arrays stay in the cache


def draw_first(
    n: int, draw_chunk: Callable[[int], tuple[np.ndarray, ...]], name: str = "n"
) -> list[np.ndarray]:
    """The first `n` entries of the arrays that ``draw_chunk(0)``, (1), ... continue.

    Raises :class:`SettingError`, calling it `name`, unless `n` is an integer from 1 to
    MOST.
    """
    # A bool is an int to Python, but never a sensible number of pictures.
    whole = isinstance(n, (int, np.integer)) and not isinstance(n, bool)
    if not (whole and 1 <= n <= MOST):
        raise SettingError(f"{name} {n!r}: write a whole number, 1 to {MOST:,}")
    chunks = [draw_chunk(number) for number in range(-(-int(n) // CHUNK))]
    return [np.concatenate(arrays)[:n] for arrays in zip(*chunks)]
