"""Which MXNet is found, and what is below it, from faked libraries and drivers."""

import sys
from types import SimpleNamespace

import pytest
from support.fake_gpus import H100, fake_nvml

from d2lpar.errors import DeviceError, MXNetMissingError
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


def test_capabilities_that_mxnets_wheels_have_code_for():
    yes = [(5, 0), (5, 2), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9)]
    no = [(3, 7), (9, 0), (10, 0), (12, 0)]
    assert [c for c in yes + no if builds.build_has_code_for(c)] == yes


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


@pytest.mark.parametrize(
    ("numbers", "reached", "expected"),
    [
        ([0], [], None),
        ([0, 1], [(0, 1), (1, 0)], True),
        ([0, 1], [(0, 1)], False),
        ([0, 2], [(0, 1), (1, 0)], False),
    ],
)
def test_peer_access_is_that_of_every_pair(install, numbers, reached, expected):
    install(Driver(L4, T4, H200, reached=reached))
    assert builds.peer_access(numbers) is expected


def test_nvml_is_closed_again_whatever_happens(monkeypatch):
    closed = []
    module = fake_nvml(H100)
    module.nvmlShutdown = lambda: closed.append(True)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(KeyError), builds.nvml_session():
        raise KeyError
    assert closed == [True]


def test_a_gpu_that_cuda_alone_sees_is_named(install, monkeypatch):
    install(Driver(T4))
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(refused=["nvmlInit"]))
    with pytest.raises(DeviceError, match="CUDA sees Tesla T4"), builds.nvml_session():
        pass


# What a record says of MXNet on GPUs


@pytest.fixture
def two_gpus(monkeypatch):
    """Two H100s that reach each other, and nothing set."""
    for name in (
        "NVIDIA_TF32_OVERRIDE",
        "MXNET_ENFORCE_DETERMINISM",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT",
        "MXNET_ENABLE_GPU_P2P",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(H100, H100))
    monkeypatch.setattr(builds, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    peers = {1: None, 2: True}
    monkeypatch.setattr(builds, "peer_access", lambda gpus: peers[len(gpus)])


def library(cuda, cudnn, status=0):
    """MXNet's library, through which CUDA and cuDNN say their versions."""

    def cuda_runtime(version):
        version._obj.value = cuda
        return status

    return SimpleNamespace(
        cudaRuntimeGetVersion=cuda_runtime, cudnnGetVersion=lambda: cudnn
    )


def test_everything_that_is_known(two_gpus, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert builds.gpu_build([0, 1], library(11080, 8902)) == {
        "build": "mxnet-cu112 1.9.1",
        "cuda": "11.8",
        "cudnn": "8.9.2",
        "driver": "580.159.04",
        "autotune": "1",
        "tf32": False,
        "peer_access": True,
        "deterministic": False,
    }


def test_settings_are_those_of_the_process(two_gpus, monkeypatch):
    monkeypatch.setenv("MXNET_ENFORCE_DETERMINISM", "1")
    monkeypatch.setenv("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")
    monkeypatch.setenv("MXNET_ENABLE_GPU_P2P", "0")
    facts = builds.gpu_build([0, 1], library(13000, 91002))
    assert facts["deterministic"] is True and facts["autotune"] == "0"
    assert facts["peer_access"] is False and facts["tf32"] is True
    assert (facts["cuda"], facts["cudnn"]) == ("13.0", "9.10.2")


def test_a_runtime_that_is_linked_statically_is_known_by_its_nvrtc(two_gpus):
    def nvrtc_version(major, minor):
        major._obj.value, minor._obj.value = 13, 1
        return 0

    facts = builds.gpu_build([0], SimpleNamespace(nvrtcVersion=nvrtc_version))
    assert facts["cuda"] == "13.1" and facts["cudnn"] is None


def test_what_is_unknown_is_none(two_gpus, monkeypatch):
    monkeypatch.setattr(builds, "installed_builds", dict)
    silent = fake_nvml(H100, refused=["nvmlSystemGetDriverVersion"])
    for nvml in (silent, fake_nvml(refused=["nvmlInit"]), None):  # None: not installed
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        for lib in (None, SimpleNamespace(), library(0, 0, status=35)):
            facts = builds.gpu_build([0], lib)
            unknown = ("build", "cuda", "cudnn", "driver", "peer_access")
            assert [facts[name] for name in unknown] == [None] * 5
