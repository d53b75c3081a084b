"""A cache of compiled kernels that is empty at first; without a compiler, no tests."""

import pytest

from d2lpar.kernels import KernelError, on_cpu


@pytest.fixture(scope="package", autouse=True)
def own_cache(tmp_path_factory):
    try:
        on_cpu.compiler()
    except KernelError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
