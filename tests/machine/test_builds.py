"""Which MXNet is found, and what is below it, from faked libraries and drivers."""

import sys
from types import SimpleNamespace

import pytest
from support.fake_gpus import H100, fake_nvml

from d2lpar.errors import MXNetMissingError
from d2lpar.machine import builds
from d2lpar.machine.builds import FROM_SOURCE, CudaDevice


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
    assert builds.installed_builds() == {FROM_SOURCE: "1.9.1"}
    assert builds.mxnet_version() == "1.9.1, built from source"
    assert builds.gpu_build([0])["build"] == FROM_SOURCE
    monkeypatch.setattr(builds.ctypes, "CDLL", pytest.fail)
    assert builds.missing_libraries(FROM_SOURCE) == {}
    monkeypatch.setenv("MXNET_LIBRARY_PATH", "")  # counts as unset
    assert builds.installed_builds() == {}
    assert builds.mxnet_version() == "not installed"


@pytest.mark.parametrize("path", ["libmxnet.so", "/nowhere/libmxnet.so", "/"])
def test_a_library_that_mxnet_would_not_take_is_refused(from_source, monkeypatch, path):
    monkeypatch.chdir(from_source.parent)  # the first one is there
    monkeypatch.setenv("MXNET_LIBRARY_PATH", path)
    with pytest.raises(MXNetMissingError, match=f"MXNET_LIBRARY_PATH={path} .*unset"):
        builds.check_installed()


def test_a_library_without_its_python_files_is_refused(from_source, monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MXNetMissingError, match="PYTHONPATH"):
        builds.check_installed()


def test_only_a_gpu_wheel_has_libraries_to_load(monkeypatch):
    table = {"libnowhere.so.11": "nvidia-nowhere-cu11", "libcuda.so.0": None}
    monkeypatch.setattr(builds, "GPU_LIBRARIES", table)
    assert builds.missing_libraries("mxnet") == {}
    missing = builds.missing_libraries("mxnet-cu112")
    assert missing["libnowhere.so.11"] == "pip install nvidia-nowhere-cu11"
    assert "driver" in missing["libcuda.so.0"]


# The driver

T4 = CudaDevice("Tesla T4", (7, 5), 40, "0:3b:0")
L4 = CudaDevice("NVIDIA L4", (8, 9), 58, "0:af:0")
H200 = CudaDevice("NVIDIA H200", (9, 0), 132, "1:5:0")


class Driver:
    """As libcuda.so.1; a GPU's handle is its number plus 100."""

    def __init__(self, *gpus, status=0, reached=()):
        self.gpus, self.status, self.reached = gpus, status, reached

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def cuDeviceGet(self, device, i):
        device._obj.value = 100 + i
        return 0

    def cuDeviceGetName(self, name, size, device):
        name.value = self.gpus[device.value - 100].name.encode()

    def cuDeviceGetPCIBusId(self, address, size, device):
        address.value = self.gpus[device.value - 100].pci_address.encode()

    def cuDeviceGetAttribute(self, number, attribute, device):
        gpu = self.gpus[device.value - 100]
        values = {16: gpu.multiprocessors, 75: gpu.capability[0], 76: gpu.capability[1]}
        number._obj.value = values[attribute]

    def cuDeviceCanAccessPeer(self, can, a, b):
        can._obj.value = (a.value - 100, b.value - 100) in self.reached
        return 0


@pytest.fixture
def install(monkeypatch):
    """Install a driver; None: there is none."""

    def load(driver):
        def library(name):
            if driver is None:
                raise OSError(f"{name}: cannot open shared object file")
            return driver

        monkeypatch.setattr(builds.ctypes, "CDLL", library)

    return load


def test_devices_in_the_drivers_order(install):
    install(Driver(L4, T4, H200))
    assert builds.cuda_devices() == [L4, T4, H200]


@pytest.mark.parametrize("driver", [None, Driver(T4, status=100)])  # 100: no device
def test_without_a_driver_or_a_gpu_there_are_no_devices(install, driver):
    install(driver)
    assert builds.cuda_devices() == []
    assert builds.peer_access([0, 1]) is None


def test_peer_access_is_that_of_every_pair(install):
    install(Driver(L4, T4, H200, reached=[(0, 1), (1, 0), (1, 2)]))
    assert builds.peer_access([0]) is None
    assert builds.peer_access([0, 1]) is True
    assert builds.peer_access([1, 2]) is builds.peer_access([0, 1, 2]) is False


# What a record says of MXNet on GPUs


def library(cuda, cudnn):
    """MXNet's library, through which CUDA and cuDNN say their versions."""

    def cuda_runtime(version):
        version._obj.value = cuda
        return 0

    return SimpleNamespace(
        cudaRuntimeGetVersion=cuda_runtime, cudnnGetVersion=lambda: cudnn
    )


def test_what_a_record_says_of_two_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(H100, H100))
    monkeypatch.setattr(builds, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    monkeypatch.setattr(builds, "peer_access", lambda gpus: True)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("MXNET_ENFORCE_DETERMINISM", "1")
    monkeypatch.setenv("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")
    monkeypatch.setenv("MXNET_ENABLE_GPU_P2P", "0")
    monkeypatch.setenv("MXNET_ENABLE_CUDA_GRAPHS", "1")
    facts = builds.gpu_build([0, 1], library(11080, 8902))
    assert facts == {
        "build": "mxnet-cu112 1.9.1",
        "cuda": "11.8",
        "cudnn": "8.9.2",
        "driver": "580.159.04",
        "autotune": "0",
        "tf32": False,
        "peer_access": False,
        "deterministic": True,
        "cuda_graphs": True,
    }
    facts = builds.gpu_build([0, 1], library(13000, 91002))
    assert (facts["cuda"], facts["cudnn"]) == ("13.0", "9.10.2")


def test_what_is_unknown_is_none(monkeypatch):
    monkeypatch.setattr(builds, "installed_builds", dict)
    monkeypatch.setattr(builds, "peer_access", lambda gpus: None)
    for nvml in (fake_nvml(refused=["nvmlInit"]), None):  # None: not installed
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        facts = builds.gpu_build([0], SimpleNamespace())
        unknown = ("build", "cuda", "cudnn", "driver", "peer_access")
        assert [facts[name] for name in unknown] == [None] * 5
