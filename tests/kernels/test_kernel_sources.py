"""Every kernel of the package is CUDA C for NVRTC and C++ for CPU contexts."""

import re

import pytest
from support.kernel_sources import kernel_sources

from d2lpar._mxnet import mx
from d2lpar.kernels import CudaModule

SOURCES = kernel_sources()


def test_all_of_them_are_found():
    names = {kernel.name for kernel in SOURCES}
    assert names >= {
        "sum_tan_squared", "sum_tan_squared_coalesced", "x2", "plus_one",
        "add_two_array_2d", "sgd",
    }  # fmt: skip


@pytest.mark.parametrize("kernel", SOURCES, ids=lambda k: f"{k.where}:{k.name}")
def test_it_compiles_as_cpp_and_needs_no_header(kernel):
    """NVRTC has no headers: no type that ends in _t, no __half, no size_t."""
    assert re.findall(r"\b\w+_t\b|\b__half\b|#\s*include", kernel.source) == []
    CudaModule(kernel.source).get_kernel(kernel.name, kernel.signature).compiled(
        mx.cpu()
    )
