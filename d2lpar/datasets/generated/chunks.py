"""Pictures drawn in whole chunks, so that picture i does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

CHUNK = 500  # pictures; so few that a chunk's arrays stay in the cache


def chunks(n: int, name: str = "n") -> Iterator[tuple[int, slice]]:
    """Each chunk's number and its part of range(n), the last one cut short.

    Raises ValueError, calling it `name`, unless `n` is an integer >= 1.

    >>> list(chunks(700))
    [(0, slice(0, 500, None)), (1, slice(500, 700, None))]
    """
    # A bool is an int to Python, but never a sensible number of pictures.
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1:
        raise ValueError(f"{name} must be an integer >= 1, not {n!r}")
    return enumerate(
        slice(start, min(start + CHUNK, int(n))) for start in range(0, n, CHUNK)
    )
