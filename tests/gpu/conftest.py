"""What only GPUs do; the tests of CPUs with the fixture `contexts` run on them, too.

python -m pytest -m gpu
"""

import pytest
from support.places import take


@pytest.fixture
def gpu():
    return take("gpu", 1)[0]


@pytest.fixture
def two_gpus():
    return take("gpu", 2)


@pytest.fixture(params=[1, 2], ids=["1 GPU", "2 GPUs"])
def gpus(request):
    return take("gpu", request.param)
