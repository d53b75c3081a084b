"""GPUs that MXNet can use; a test without as many as it needs is skipped.

    python -m pytest -m gpu tests/gpu

Nothing here needs hypothesis, PyTorch or d2l, so that it runs beside any MXNet.
"""

import pytest

from d2lpar import devices
from d2lpar.errors import DeviceError
from d2lpar.text import plural


@pytest.fixture(scope="session")
def take():
    """``take(n)``: the first n GPUs."""
    try:
        usable, why = devices.parse("gpu"), ""
    except DeviceError as error:
        usable, why = [], f": {error}"

    def first(n):
        if len(usable) < n:
            here = f"MXNet can use {plural(len(usable), 'GPU')} here{why}"
            pytest.skip(f"needs {plural(n, 'GPU')}; {here}")
        if n > 1:
            devices.enable_peer_access(usable[:n])
        return usable[:n]

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
