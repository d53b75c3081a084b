"""The cards of a machine as text and as JSON, with faked GPUs and without a driver."""

import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from fake_gpus import H100, T4, fake_nvml

from d2lpar.machine import cards, gpu_cards
from d2lpar.machine.cuda import CudaDevice
from d2lpar.machine.gpu_cards import GpuCard
from d2lpar.machine.host_card import cpu_card


@pytest.fixture
def cuda(monkeypatch):
    """CUDA sees the H100 first, which NVML has second, and the T4 not at all."""
    devices = [CudaDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, "0:af:0")]
    monkeypatch.setattr(gpu_cards, "cuda_devices", lambda: devices)
    return devices


def test_no_driver_is_said_and_is_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(T4, refused=["nvmlInit"]))
    monkeypatch.setattr(gpu_cards, "cuda_devices", lambda: [])
    here = cards.machine()
    assert here.gpus == () and "Not Supported" in here.no_gpu
    assert here.no_gpu in cards.as_text(here)


def test_a_link_is_named_in_the_text(cuda):
    nvml = fake_nvml(T4, H100, nvlinks={0: [H100["bus"]], 1: [T4["bus"].decode()]})
    here = cards.Machine(cpu_card(), gpu_cards.gpu_cards(nvml))
    text = cards.as_text(here)
    assert "gpu(0) NVIDIA H100 80GB HBM3: NVLink, 1 link, direct access" in text
    assert "9.0, MXNet's GPU wheels have code for 5.0-8.9 only" in text
    assert "79.6 GiB, 79.2 GiB free" in text  # 81559 and 81079 MiB


def test_a_card_says_where_table_and_nvml_disagree():
    card = GpuCard(0, 0, "T4", (7, 5), 40, 128, 2560)  # with the notes' table
    text = cards.cores_text(card)
    assert text == "40; 2,560 CUDA cores by NVML; the table says 40 x 128 = 5,120"
    unknown = GpuCard(0, 0, "new", (99, 0), 10, None, 640)
    assert "no table entry" in cards.cores_text(unknown)


def test_cards_as_json_have_the_names_of_their_fields(cuda):
    gpus = gpu_cards.gpu_cards(fake_nvml(T4, H100, nvlinks={0: [None], 1: [None]}))
    here = cards.Machine(cpu_card(), gpus, "no reason")
    values = json.loads(cards.as_json(here))
    assert values["cpu"]["model"] == here.cpu.model
    assert values["cpu"]["caches"] == [asdict(cache) for cache in here.cpu.caches]
    assert [gpu["name"] for gpu in values["gpus"]] == [gpu.name for gpu in gpus]
    assert values["gpus"][0]["links"] == [asdict(link) for link in gpus[0].links]
    assert values["no_gpu"] == "no reason"


def test_cards_need_no_mxnet():
    code = (
        "import sys; from d2lpar.machine.cards import as_text, machine; "
        "print(as_text(machine())); sys.exit('mxnet' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].count("cpu(0)") or "gpu" in done.stdout
