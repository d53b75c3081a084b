"""How n rows, samples or columns are shared out: evenly, in order, without gaps."""

from __future__ import annotations


def shares(n: int, parts: int) -> list[slice]:
    """The contiguous parts of range(n), whose sizes differ by at most one.

    With n < parts the last ones are empty.

    >>> shares(10, 3)
    [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
    """
    size, extra = divmod(n, parts)
    starts = [k * size + min(k, extra) for k in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(starts, starts[1:])]
