"""Shares of n: contiguous, complete, and as even as can be."""

import pytest

from d2lpar.shards import shares


@pytest.mark.parametrize("n", [0, 1, 6, 7, 100])
@pytest.mark.parametrize("parts", [1, 2, 7, 13])
def test_shares_are_contiguous_complete_and_even(n, parts):
    found = shares(n, parts)
    assert [i for part in found for i in range(n)[part]] == list(range(n))
    sizes = [part.stop - part.start for part in found]
    assert len(sizes) == parts and max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
