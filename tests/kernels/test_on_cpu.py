"""The compiler of kernels on CPU contexts, and the cache of what it compiled."""

import stat

import pytest

from d2lpar.kernels import KernelError, on_cpu
from d2lpar.kernels.signature import parse_signature


@pytest.fixture
def counting_compiler(monkeypatch, tmp_path):
    """CXX as a script that notes each compilation, and an empty cache."""
    log, script = tmp_path / "log", tmp_path / "cxx"
    command = " ".join(on_cpu.compiler())
    script.write_text(
        f'#!/bin/sh\necho once >> {log}\nunset CXX\nexec {command} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda: len(log.read_text().split())


def load(body):
    source = f"__global__ void k(float *x) {{ {body} }}"
    return on_cpu.load(source, "k", parse_signature("float *x"))


def test_a_kernel_is_compiled_once_for_its_content(counting_compiler):
    load("x[0] = 1;")
    load("x[0] = 1;")
    assert counting_compiler() == 1
    load("x[0] = 2;")
    assert counting_compiler() == 2
    assert len(list(on_cpu.cache_folder().iterdir())) == 2


@pytest.mark.parametrize("cxx", ["no-such-compiler -O1", ""])
def test_a_missing_compiler_is_named(monkeypatch, tmp_path, cxx):
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("PATH", str(tmp_path))
    name = cxx.partition(" ")[0] or r"c\+\+"
    with pytest.raises(KernelError, match=rf"no C\+\+ compiler {name}, .*CXX"):
        load("x[0] = 4;")
