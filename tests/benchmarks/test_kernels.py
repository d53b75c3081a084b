"""The benchmark of kernels, tiny: all ways compute what NumPy does."""

import kernels
import pytest

from d2lpar import devices


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("chosen", ["cpu:1", "cpu:2"])
def test_every_way_is_checked_and_timed(chosen):
    found = kernels.times(devices.parse(chosen), 1_001, repeats=1)
    works = {work for work, _ in found}
    assert works == {"x2", "update"}
    assert {("update", way) for way in ("loop in C", "kernel", "MXNet")} <= set(found)
    assert all(len(samples) == 1 for samples in found.values())
