"""GPUs that MXNet can use; a test without as many as it needs is skipped.

    python -m pytest -m gpu tests/gpu

Nothing here needs hypothesis, PyTorch or d2l, so that it runs beside any MXNet.
"""

import functools

import pytest

from d2lpar import devices
from d2lpar.errors import DeviceError


@functools.cache
def usable():
    """The GPUs that MXNet can use, and the reason if there is none."""
    try:
        return devices.parse("gpu"), ""
    except DeviceError as error:
        return [], str(error)


def pytest_runtest_setup(item):
    """Skip the folder without a GPU: from here, so that pytest reports it once."""
    gpus, reason = usable()
    if not gpus:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def take():
    """``take(n)``: the first n GPUs."""

    def first(n):
        gpus, _ = usable()
        if len(gpus) < n:
            pytest.skip(f"needs {n} GPUs; MXNet can use {len(gpus)} here")
        if n > 1:
            devices.enable_peer_access(gpus[:n])
        return gpus[:n]

    return first


@pytest.fixture
def gpu(take):
    return take(1)[0]


@pytest.fixture
def two_gpus(take):
    return take(2)


@pytest.fixture(params=[1, 2], ids=["1 GPU", "2 GPUs"])
def gpus(request, take):
    return take(request.param)
