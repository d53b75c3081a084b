"""The compiler of kernels on CPU contexts, and the cache of what it compiled."""

import stat
import sys

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


def test_compilers_are_looked_for_in_turn(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(on_cpu.importlib.util, "find_spec", lambda name: "ziglang")
    assert on_cpu.compiler() == [sys.executable, "-m", "ziglang", "c++"]
    monkeypatch.setattr(on_cpu.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(KernelError, match=r"no C\+\+ compiler.*-e .\.\[kernels\]"):
        load("x[0] = 4;")
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(KernelError, match="CXX=no-such-compiler -O1"):
        load("x[0] = 4;")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\nexit 5\n", "does not compile: .*cxx ended with status 5"),
        ("#!/no/such/shell\n", "compiler .*cxx: No such file.*another in CXX"),
        ("#!/bin/sh\nexit 0\n", r"\.so: file too short; delete this file"),
    ],
)
def test_a_compiler_that_compiles_nothing_is_named(monkeypatch, tmp_path, script, says):
    (tmp_path / "cxx").write_text(script)
    (tmp_path / "cxx").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    for _ in range(2):  # what is in the cache now explains itself, too
        with pytest.raises(KernelError, match=says):
            load("x[0] = 5;")


def test_a_quotation_mark_alone_in_cxx_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "g++ '-O1")
    with pytest.raises(KernelError, match="CXX=g.. '-O1: No closing quotation"):
        load("x[0] = 6;")
