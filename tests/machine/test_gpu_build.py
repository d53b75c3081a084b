"""What a record says of MXNet on GPUs, from faked libraries and drivers."""

import sys
from types import SimpleNamespace

import pytest
from fake_gpus import H100, fake_nvml

from d2lpar.machine import gpu_build


@pytest.fixture
def host(monkeypatch):
    """Two H100s that reach each other, and nothing set."""
    for name in (
        "NVIDIA_TF32_OVERRIDE",
        "MXNET_ENFORCE_DETERMINISM",
        "MXNET_CUDNN_AUTOTUNE_DEFAULT",
        "MXNET_ENABLE_GPU_P2P",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(H100, H100))
    monkeypatch.setattr(gpu_build, "installed_builds", lambda: {"mxnet-cu112": "1.9.1"})
    peers = {1: None, 2: True}
    monkeypatch.setattr(gpu_build.cuda, "peer_access", lambda gpus: peers[len(gpus)])


def library(cuda, cudnn, status=0):
    """MXNet's library, through which CUDA and cuDNN say their versions."""

    def cuda_runtime(version):
        version._obj.value = cuda
        return status

    return SimpleNamespace(
        cudaRuntimeGetVersion=cuda_runtime, cudnnGetVersion=lambda: cudnn
    )


def test_everything_that_is_known(host, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert gpu_build.gpu_build([0, 1], library(11080, 8902)) == {
        "build": "mxnet-cu112 1.9.1",
        "cuda": "11.8",
        "cudnn": "8.9.2",
        "driver": "580.159.04",
        "autotune": "1",
        "tf32": False,
        "peer_access": True,
        "deterministic": False,
    }


def test_settings_are_those_of_the_process(host, monkeypatch):
    monkeypatch.setenv("MXNET_ENFORCE_DETERMINISM", "1")
    monkeypatch.setenv("MXNET_CUDNN_AUTOTUNE_DEFAULT", "0")
    monkeypatch.setenv("MXNET_ENABLE_GPU_P2P", "0")
    facts = gpu_build.gpu_build([0, 1], library(13000, 91002))
    assert facts["deterministic"] is True and facts["autotune"] == "0"
    assert facts["peer_access"] is False and facts["tf32"] is True
    assert (facts["cuda"], facts["cudnn"]) == ("13.0", "9.10.2")


def test_a_runtime_that_is_linked_statically_is_known_by_its_nvrtc(host):
    def nvrtc_version(major, minor):
        major._obj.value, minor._obj.value = 13, 1
        return 0

    facts = gpu_build.gpu_build([0], SimpleNamespace(nvrtcVersion=nvrtc_version))
    assert facts["cuda"] == "13.1" and facts["cudnn"] is None


def test_what_is_unknown_is_none(host, monkeypatch):
    monkeypatch.setattr(gpu_build, "installed_builds", dict)
    silent = fake_nvml(H100, refused=["nvmlSystemGetDriverVersion"])
    for nvml in (silent, fake_nvml(refused=["nvmlInit"]), None):  # None: not installed
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        for lib in (None, SimpleNamespace(), library(0, 0, status=35)):
            facts = gpu_build.gpu_build([0], lib)
            unknown = ("build", "cuda", "cudnn", "driver", "peer_access")
            assert [facts[name] for name in unknown] == [None] * 5


def test_a_build_from_source_is_called_so(host, monkeypatch):
    builds = {"built from source": "1.9.1"}
    monkeypatch.setattr(gpu_build, "installed_builds", lambda: builds)
    assert gpu_build.gpu_build([0])["build"] == "built from source"
