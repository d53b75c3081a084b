"""Cards: CUDA cores against data sheets, the host against /proc, and what GPUs say."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from d2lpar.machine import cards, gpus, host
from d2lpar.machine.gpus import CudaDevice, cuda_devices, peer_access, why_no_gpu

# NVIDIA's data sheets: capability, SMs and CUDA cores of whole products
PRODUCTS = {
    "P100": ((6, 0), 56, 3584),
    "T4": ((7, 5), 40, 2560),
    "A100": ((8, 0), 108, 6912),
    "RTX 4090": ((8, 9), 128, 16384),
}


def test_cuda_cores_are_those_of_the_data_sheet(monkeypatch):
    for name, (capability, count, cores) in PRODUCTS.items():
        gpu = CudaDevice(name, capability, count)
        monkeypatch.setattr(cards, "cuda_devices", lambda gpu=gpu: [gpu])
        assert f"{count} x {cores // count} = {cores:,} CUDA" in cards.as_text()


def test_text_of_gpus(monkeypatch):
    answers = {
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=2**36, free=2**35),
        "nvmlSystemGetDriverVersion": "580.159.04",
        "nvmlSystemGetCudaDriverVersion": 13010,
    }
    for module in (gpus, cards):
        monkeypatch.setattr(module, "ask_nvml", lambda name, *_: answers.get(name))
    h100 = CudaDevice("H100", (9, 0), 132)
    unknown = CudaDevice("GPU of tomorrow", (99, 0), 7)
    monkeypatch.setattr(cards, "cuda_devices", lambda: [h100, unknown])
    lines = cards.as_text().splitlines()
    assert lines[:7] == [
        "gpu(0) H100",
        "  capability       9.0",
        "  memory           64 GiB, 32 GiB free",
        "  multiprocessors  132 x 128 = 16,896 CUDA cores",
        "  driver           580.159.04, CUDA 13.1",
        "gpu(1) GPU of tomorrow",
        "  capability       99.0",
    ]
    answers.clear()
    assert "memory           unknown" in cards.as_text()


@pytest.mark.skipif(not cuda_devices(), reason="no GPU")
def test_the_gpus_here():
    for gpu in cuda_devices():
        total, free = gpu.memory()
        assert 0 < free <= total and gpu.multiprocessors
    assert peer_access([0]) is None and "unknown" not in cards.as_text()


@pytest.mark.skipif(bool(cuda_devices()), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_why():
    assert cuda_devices() == [] and peer_access([0, 1]) is None
    assert why_no_gpu() in cards.as_text().replace("\n", " ")
    assert "install its driver" in why_no_gpu()


def test_the_host_is_what_proc_says():
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    text, logical = cards.as_text(), len(re.findall("^processor", cpuinfo, re.M))
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.M)[1]
    assert f"contexts on {model}\n" in text
    assert f" {logical} logical; usable " in text
    assert 1 <= host.usable_cores() <= len(os.sched_getaffinity(0))
