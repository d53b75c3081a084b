"""The compiler of kernels on CPU contexts, and the cache of what it compiled."""

import pytest

from d2lpar.kernels import KernelError, on_cpu
from d2lpar.kernels.signature import parse_signature


def load(body):
    source = f"__global__ void k(float *x) {{ {body} }}"
    return on_cpu.load(source, "k", parse_signature("float *x"))


def test_a_kernel_is_compiled_once_for_its_content(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load("x[0] = 1;")
    (path,) = on_cpu.cache_folder().iterdir()
    compiled_at = path.stat().st_mtime_ns
    load("x[0] = 1;")
    assert path.stat().st_mtime_ns == compiled_at
    load("x[0] = 2;")
    assert len(list(on_cpu.cache_folder().iterdir())) == 2


@pytest.mark.parametrize("cxx", ["no-such-compiler -O1", ""])
def test_a_missing_compiler_is_named(monkeypatch, tmp_path, cxx):
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = cxx.partition(" ")[0] or r"c\+\+"
    with pytest.raises(KernelError, match=rf"no C\+\+ compiler {name}, .*CXX"):
        load("x[0] = 4;")
