"""Every kernel of the package is CUDA C for NVRTC and C++ for CPU contexts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernel_sources import kernel_sources

from d2lpar.errors import D2lparError
from d2lpar.kernels import on_cpu
from d2lpar.kernels.source import KernelError, parse_signature

SOURCES = kernel_sources()
each_source = pytest.mark.parametrize(
    "kernel", SOURCES, ids=[f"{k.where}:{k.name}" for k in SOURCES]
)


def test_all_of_them_are_found():
    names = {kernel.name for kernel in SOURCES}
    assert names >= {
        "sum_tan_squared", "sum_tan_squared_coalesced", "x2", "plus_one",
        "add_two_array_2d", "sgd",
    }  # fmt: skip


@each_source
def test_nvrtc_needs_no_header_for_it(kernel):
    """NVRTC has no headers: no type that ends in _t, no __half, no size_t."""
    assert re.findall(r"\b\w+_t\b|\b__half\b|#\s*include", kernel.source) == []


@each_source
def test_it_compiles_as_cpp(kernel):
    try:
        on_cpu.compiler()
    except KernelError as error:
        pytest.skip(str(error))
    on_cpu.load(kernel.source, kernel.name, parse_signature(kernel.signature))


@pytest.mark.parametrize("signature", ["__half *x", "const __half *x, float *y"])
def test_half_precision_is_refused_at_definition(signature):
    """NVRTC knows __half from a header, which it cannot find."""
    with pytest.raises(KernelError) as caught:
        parse_signature(signature)
    assert isinstance(caught.value, D2lparError)
    words = str(caught.value)
    assert "the type __half is none of float (float32), double (float64), " in words
    assert "long long (int64)" in words and "\n" not in words


def test_the_test_with_cupy_is_collected_where_cupy_cannot_be_imported(tmp_path):
    """CuPy 14 beside the NumPy 1 that MXNet needs: no ModuleNotFoundError."""
    said = "ImportError: numpy.core.multiarray failed to import"
    words = f"=====\\nFailed to import CuPy.\\n  {said}\\n====="
    (tmp_path / "cupy.py").write_text(f'raise ImportError("{words}")')
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, Path(__file__).with_name("test_kernels_on_gpu.py")],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert f"no usable CuPy with cuda-bindings: {said}" in done.stdout, done.stdout
    assert "skipped in" in done.stdout.splitlines()[-1]  # and no error
