"""A cache of compiled kernels that is empty at first; without a compiler, no tests."""

import pytest


@pytest.fixture(autouse=True)
def needs_a_compiler(request):
    """Skip each test of this folder on CPUs without a C++ compiler."""
    if "gpu" not in request.keywords:
        request.getfixturevalue("compiler")


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
