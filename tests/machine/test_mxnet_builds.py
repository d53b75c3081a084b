"""Which MXNet is found: wheels, or a library built from source."""

import sys

import pytest

from d2lpar.errors import MXNetMissingError
from d2lpar.machine import mxnet_builds
from d2lpar.machine.mxnet_builds import FROM_SOURCE


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
    mxnet_builds.check_own_library()
    assert mxnet_builds.installed_builds() == {FROM_SOURCE: "1.9.1"}
    assert mxnet_builds.mxnet_version() == "1.9.1, built from source"
    monkeypatch.setattr(mxnet_builds.ctypes, "CDLL", pytest.fail)
    assert mxnet_builds.missing_libraries([FROM_SOURCE]) == {}


@pytest.mark.parametrize("path", ["libmxnet.so", "/nowhere/libmxnet.so", "/"])
def test_a_library_that_mxnet_would_not_take_is_refused(from_source, monkeypatch, path):
    monkeypatch.chdir(from_source.parent)  # the first one is there
    monkeypatch.setenv("MXNET_LIBRARY_PATH", path)
    with pytest.raises(MXNetMissingError, match=f"MXNET_LIBRARY_PATH={path} .*unset"):
        mxnet_builds.check_own_library()


def test_a_library_without_its_python_files_is_refused(from_source, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MXNetMissingError, match="PYTHONPATH"):
        mxnet_builds.check_own_library()


def test_an_empty_variable_counts_as_unset(from_source, monkeypatch):
    monkeypatch.setenv("MXNET_LIBRARY_PATH", "")
    mxnet_builds.check_own_library()
    assert mxnet_builds.installed_builds() == {}
    assert mxnet_builds.mxnet_version() == "not installed"


def test_only_a_gpu_wheel_has_libraries_to_load(monkeypatch):
    table = {"libnowhere.so.11": "nvidia-nowhere-cu11", "libcuda.so.0": None}
    monkeypatch.setattr(mxnet_builds, "GPU_LIBRARIES", table)
    assert mxnet_builds.missing_libraries(["mxnet"]) == {}
    missing = mxnet_builds.missing_libraries(["mxnet-cu112"])
    assert missing["libnowhere.so.11"] == "pip install nvidia-nowhere-cu11"
    assert "driver" in missing["libcuda.so.0"]
