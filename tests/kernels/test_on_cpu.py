"""The compiler of kernels on CPU contexts, and the cache of what it compiled."""

import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from d2lpar.kernels import KernelError, on_cpu
from d2lpar.kernels.cpp import cpp_source
from d2lpar.kernels.source import elementwise_source, parse_signature

try:
    on_cpu.compiler()
except KernelError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def counting_compiler(monkeypatch, tmp_path):
    """CXX as a script that notes each compilation, and an empty cache."""
    log, script = tmp_path / "log", tmp_path / "cxx"
    command = " ".join(on_cpu.compiler())
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] || echo once >> {log}\n'
        f'unset CXX\nexec {command} "$@"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    on_cpu._load.cache_clear()
    yield lambda: len(log.read_text().split()) if log.exists() else 0
    on_cpu._load.cache_clear()


def load(operation: str):
    parameters = parse_signature("float *x")
    source = elementwise_source(parameters, operation, "k")
    parameters = parse_signature("float *x, long long n")
    return on_cpu.load(source, "k", parameters)


def test_a_kernel_is_compiled_once_for_its_content(counting_compiler):
    load("x[i] = 1")
    assert counting_compiler() == 1
    on_cpu._load.cache_clear()  # as in a new process
    load("x[i] = 1")
    assert counting_compiler() == 1
    load("x[i] = 2")
    assert counting_compiler() == 2
    assert len(list(on_cpu.cache_folder().iterdir())) == 2


def test_kernels_compiled_at_the_same_time_leave_one_whole_file(counting_compiler):
    text = cpp_source(
        "__global__ void k(float *x) {}", "k", parse_signature("float *x")
    )
    command = tuple(on_cpu.compiler())
    with ThreadPoolExecutor(2) as pool:
        arguments = (2 * [text], 2 * ["k"], 2 * [command])
        loaded = list(pool.map(on_cpu._load.__wrapped__, *arguments))
    assert len(loaded) == 2
    (file,) = on_cpu.cache_folder().iterdir()
    assert file.suffix == ".so"


def test_no_compiler_is_said_with_the_remedies(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(on_cpu.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelError, match=r"no C\+\+ compiler.*apt-get.*d2lpar\[kern"):
        load("x[i] = 3")
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(KernelError, match="CXX=no-such-compiler -O1: there is no such"):
        load("x[i] = 3")


def test_the_wheel_ziglang_is_the_compiler_where_there_is_no_other(
    monkeypatch, tmp_path
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = SimpleNamespace(origin="ziglang")
    monkeypatch.setattr(on_cpu.importlib.util, "find_spec", lambda name: found)
    assert on_cpu.compiler() == [sys.executable, "-m", "ziglang", "c++"]


def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way of the folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.raises(KernelError, match="cannot be written.*XDG_CACHE_HOME"):
        load("x[i] = 4")
