"""Which MXNet is found: a wheel, or a library of one's own; and what a record says."""

import sys
from types import SimpleNamespace

import pytest

from d2lpar.errors import MXNetMissingError
from d2lpar.machine import builds
from d2lpar.machine.builds import FROM_SOURCE


@pytest.fixture
def from_source(monkeypatch, tmp_path):
    """A library built from source, with Python files of MXNet 1.9.1 but no wheel."""
    library, files = tmp_path / "libmxnet.so", tmp_path / "python" / "mxnet"
    library.write_bytes(b"")
    files.mkdir(parents=True)
    (files / "__init__.py").write_text("raise ImportError")
    (files / "libinfo.py").write_text('import os\n__version__ = "1.9.1"\n')
    monkeypatch.setenv("MXNET_LIBRARY_PATH", str(library))
    monkeypatch.setattr(sys, "path", [str(files.parent)])
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)
    return library


def test_a_library_built_from_source_is_the_installed_build(from_source, monkeypatch):
    assert builds.check_installed() == FROM_SOURCE
    assert builds.mxnet_version() == "1.9.1, built from source"
    monkeypatch.setenv("MXNET_LIBRARY_PATH", "")  # counts as unset
    assert builds.mxnet_version() == "not installed"


@pytest.mark.parametrize("path", ["libmxnet.so", "/nowhere/libmxnet.so"])
def test_a_library_that_mxnet_would_not_take_is_refused(from_source, monkeypatch, path):
    monkeypatch.chdir(from_source.parent)  # the first one is there
    monkeypatch.setenv("MXNET_LIBRARY_PATH", path)
    with pytest.raises(MXNetMissingError, match=f"MXNET_LIBRARY_PATH={path} .*unset"):
        builds.check_installed()


def test_two_wheels_overwrite_each_other(monkeypatch):
    monkeypatch.delenv("MXNET_LIBRARY_PATH", raising=False)
    both = {"mxnet": "1.9.1", "mxnet-cu112": "1.9.1"}
    monkeypatch.setattr(builds, "installed_builds", lambda: both)
    with pytest.raises(MXNetMissingError, match="pip uninstall mxnet mxnet-cu112"):
        builds.check_installed()


def test_a_record_says_what_the_gpus_had(monkeypatch):
    monkeypatch.setattr(builds, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    monkeypatch.setattr(builds, "ask_nvml", lambda _: "580.1")
    for number, version, on in ((8902, "8.9.2", True), (90100, "9.1.0", False)):
        for name in ("NVIDIA_TF32_OVERRIDE", "MXNET_ENABLE_CUDA_GRAPHS",
                     "MXNET_ENFORCE_DETERMINISM"):  # fmt: skip
            monkeypatch.setenv(name, str(int(on)))
        cudnn = SimpleNamespace(cudnnGetVersion=lambda number=number: number)
        assert builds.gpu_build([0], cudnn) == {
            "build": "mxnet-cu112 1.9.1", "cudnn": version, "driver": "580.1",
            "autotune": "1", "tf32": on, "peer_access": None, "deterministic": on,
            "cuda_graphs": on,
        }  # fmt: skip


FORK = {"mxnet": "2.0.0+cu133.bw.zombie.1"}


@pytest.mark.parametrize(
    ("installed", "capability", "runs"),
    [
        ({"mxnet-cu112": "1.9.1"}, (3, 7), False),
        ({"mxnet-cu112": "1.9.1"}, (8, 9), True),
        ({"mxnet-cu112": "1.9.1"}, (9, 0), False),
        (FORK, (7, 5), False),
        (FORK, (12, 0), True),
        ({"mxnet": "2.0.0+cpu.linux.zombie.1"}, (9, 0), False),
        ({"mxnet": "1.9.1"}, (7, 5), False),
        ({FROM_SOURCE: "1.9.1"}, (3, 7), True),  # trusted: d2lpar doctor tries it
    ],
)
def test_a_wheel_has_code_for_some_gpus(monkeypatch, installed, capability, runs):
    monkeypatch.setattr(builds, "installed_builds", lambda: installed)
    assert (builds.remedy_for(capability) is None) is runs
