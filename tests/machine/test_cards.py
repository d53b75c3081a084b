"""Cards of GPUs that are faked, with every query refused in turn; text and JSON."""

import json
import sys
from ctypes import ArgumentError

import pytest
from support.fake_gpus import H100, T4, fake_nvml

from d2lpar.machine import cards
from d2lpar.machine.builds import CudaDevice
from d2lpar.machine.cards import GpuCard, Machine


@pytest.fixture
def cuda(monkeypatch):
    """CUDA sees the H100 first, which NVML has second, and the T4 not at all."""
    devices = [CudaDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, "0:af:0")]
    monkeypatch.setattr(cards, "cuda_devices", lambda: devices)
    return devices


def test_a_card_has_what_nvml_and_cuda_say_in_their_two_orders(cuda):
    cuda.append(CudaDevice("Tesla T4", (7, 5), 40, "0:3b:0"))
    t4, h100 = cards.gpu_cards(fake_nvml(T4, H100))
    assert t4 == GpuCard(
        index=0,
        number=1,
        name="Tesla T4",
        capability=(7, 5),
        multiprocessors=40,
        cores_per_multiprocessor=64,
        cores=2560,
        memory_total=15360 * 2**20,
        memory_free=15109 * 2**20,
        driver="580.159.04",
        cuda="13.1",
    )
    assert (h100.number, h100.cores_by_table, h100.cores) == (0, 16896, 16896)
    assert (t4.label, h100.label) == ("gpu(1) Tesla T4", "gpu(0) NVIDIA H100 80GB HBM3")


LOST = {
    "nvmlSystemGetDriverVersion": {"driver"},
    "nvmlSystemGetCudaDriverVersion": {"cuda"},
    "nvmlDeviceGetName": {"name"},
    "nvmlDeviceGetCudaComputeCapability": {"capability", "cores_per_multiprocessor"},
    "nvmlDeviceGetNumGpuCores": {"cores"},
    "nvmlDeviceGetMemoryInfo": {"memory_total", "memory_free"},
    "nvmlDeviceGetPciInfo": {"number", "multiprocessors"},
}


@pytest.mark.parametrize("query", LOST)
def test_what_a_gpu_does_not_support_is_none(query, cuda):
    """Each query refused alone: the others' answers stay, and the card has text."""
    error = ArgumentError("a tuple") if "Memory" in query else None
    (whole,) = cards.gpu_cards(fake_nvml(H100))
    (left,) = cards.gpu_cards(fake_nvml(H100, refused=[query], error=error))
    changed = {k: v for k, v in vars(left).items() if v != vars(whole)[k]}
    assert changed == dict.fromkeys(LOST[query])
    text = cards.as_text(Machine(cards.cpu_card(), (left,)))
    assert left.label in text and "None" not in text


# NVIDIA's data sheets: capability, SMs and CUDA cores of whole products
PRODUCTS = {
    "P100": ((6, 0), 56, 3584),
    "GTX 1080": ((6, 1), 20, 2560),
    "V100": ((7, 0), 80, 5120),
    "T4": ((7, 5), 40, 2560),
    "A100": ((8, 0), 108, 6912),
    "RTX 4090": ((8, 9), 128, 16384),
    "H100 SXM": ((9, 0), 132, 16896),
    "RTX 5090": ((12, 0), 170, 21760),
}


def test_text_and_json_name_every_gpu_and_the_host(cuda):
    gpus = cards.gpu_cards(fake_nvml(T4, H100))
    here = Machine(cards.cpu_card(), gpus)
    text = cards.as_text(here)
    assert all(card.label in text.splitlines() for card in gpus)
    assert "9.0, MXNet's GPU wheels have code for 5.0-8.9 only" in text
    assert "79.6 GiB, 79.2 GiB free" in text  # 81559 and 81079 MiB
    values = json.loads(cards.as_json(here))
    assert values["cpu"]["model"] == here.cpu.model
    assert [gpu["name"] for gpu in values["gpus"]] == [gpu.name for gpu in gpus]
    assert values["no_gpu"] is None


def test_a_machine_without_a_driver_has_its_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(T4, refused=["nvmlInit"]))
    here = cards.machine()
    assert here.gpus == () and "Not Supported" in here.no_gpu
    assert here.no_gpu in cards.as_text(here)
