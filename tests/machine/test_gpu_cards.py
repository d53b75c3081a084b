"""Cards of faked GPUs, with every query refused in turn."""

import sys
from ctypes import ArgumentError

import pytest
from fake_gpus import H100, T4, fake_nvml

from d2lpar.errors import DeviceError
from d2lpar.machine import gpu_cards
from d2lpar.machine.cards import Machine, as_text, cores_text
from d2lpar.machine.cuda import CudaDevice
from d2lpar.machine.gpu_cards import CORES_PER_MULTIPROCESSOR, GpuCard, Link
from d2lpar.machine.host_card import cpu_card


@pytest.fixture
def cuda(monkeypatch):
    """CUDA sees the H100 first, which NVML has second, and the T4 not at all."""
    devices = [CudaDevice("NVIDIA H100 80GB HBM3", (9, 0), 132, "0:af:0")]
    monkeypatch.setattr(gpu_cards, "cuda_devices", lambda: devices)
    return devices


def test_a_card_has_what_nvml_and_cuda_say(cuda):
    cuda.append(CudaDevice("Tesla T4", (7, 5), 40, "0:3b:0"))
    t4, h100 = gpu_cards.gpu_cards(fake_nvml(T4, H100, levels={(0, 1): 50, (1, 0): 50}))
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
        clock=1590,
        memory_clock=5001,
        power_limit=70.0,
        host_link="PCIe 3, 16 lanes",
        driver="580.159.04",
        cuda="13.1",
        links=(Link(1, "PCIe, through the link between CPUs", 0, True),),
    )
    assert (h100.number, h100.cores_by_table, h100.cores) == (0, 16896, 16896)
    assert (t4.label, h100.label) == ("gpu(1) Tesla T4", "gpu(0) NVIDIA H100 80GB HBM3")


def test_a_gpu_that_cuda_does_not_see_has_no_number(cuda):
    t4, h100 = gpu_cards.gpu_cards(fake_nvml(T4, H100, levels={(0, 1): 30, (1, 0): 30}))
    assert (t4.number, t4.multiprocessors) == (None, None)
    assert t4.label == "GPU 0 Tesla T4, hidden from CUDA"
    assert "2,560 CUDA cores, as NVML counts" in cores_text(t4)
    assert h100.number == 0


QUERIES = [name for name in vars(fake_nvml()) if name.startswith("nvml")]


@pytest.mark.parametrize("error", [None, ArgumentError("a tuple"), OSError("gone")])
@pytest.mark.parametrize("query", [q for q in QUERIES if q != "nvmlInit"])
def test_what_a_gpu_does_not_support_is_none(query, error, cuda):
    """Each query refused alone: the others' answers stay, and the card has text."""
    whole = gpu_cards.gpu_cards(fake_nvml(H100))
    left = gpu_cards.gpu_cards(fake_nvml(H100, refused=[query], error=error))
    if query in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
        assert left == ()
        return
    (whole,), (left,) = whole, left
    changed = {k: v for k, v in vars(left).items() if v != vars(whole)[k]}
    assert set(changed.values()) <= {None}
    lost = {
        "nvmlSystemGetDriverVersion": {"driver"},
        "nvmlSystemGetCudaDriverVersion": {"cuda"},
        "nvmlDeviceGetName": {"name"},
        "nvmlDeviceGetCudaComputeCapability": {
            "capability",
            "cores_per_multiprocessor",
        },
        "nvmlDeviceGetNumGpuCores": {"cores"},
        "nvmlDeviceGetMemoryInfo": {"memory_total", "memory_free"},
        "nvmlDeviceGetMaxClockInfo": {"clock", "memory_clock"},
        "nvmlDeviceGetEnforcedPowerLimit": {"power_limit"},
        "nvmlDeviceGetMaxPcieLinkGeneration": {"host_link"},
        "nvmlDeviceGetMaxPcieLinkWidth": {"host_link"},
        "nvmlDeviceGetPciInfo": {"number", "multiprocessors"},
    }
    assert set(changed) == lost.get(query, set())
    here = Machine(cpu_card(), (left,))
    assert left.label in as_text(here)
    assert "None" not in as_text(here)


def test_a_gpu_that_supports_nothing_still_has_a_card(cuda):
    kept = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    (card,) = gpu_cards.gpu_cards(fake_nvml(T4, refused=set(QUERIES) - set(kept)))
    assert card == GpuCard(index=0)
    assert cores_text(card).endswith("NVML has no count of CUDA cores")


BUS = {0: "00000000:3B:00.0", 1: "00000000:AF:00.0"}


@pytest.mark.parametrize(
    ("options", "link"),
    [
        ({"nvlinks": {0: [BUS[1], BUS[1]], 1: []}}, Link(1, "NVLink", 2, True)),
        ({"nvlinks": {0: [None] * 4}}, Link(1, "NVLink, through switches", 4, True)),
        # NVLinks to a switch that leads elsewhere, or to a third GPU.
        ({"nvlinks": {0: [None]}, "p2p": 5}, Link(1, "PCIe, one switch", 0, False)),
        ({"nvlinks": {0: ["00000000:5E:00.0"]}}, Link(1, "PCIe, one switch", 0, True)),
        ({"refused": ["nvmlDeviceGetP2PStatus"]}, Link(1, "PCIe, one switch", 0, None)),
        (
            {"refused": ["nvmlDeviceGetTopologyCommonAncestor"]},
            Link(1, "unknown", 0, True),
        ),
    ],
)
def test_links_between_gpus(options, link, cuda):
    levels = {(0, 1): 10, (1, 0): 10}
    t4, _ = gpu_cards.gpu_cards(fake_nvml(T4, H100, levels=levels, **options))
    assert t4.links == (link,)


@pytest.mark.parametrize(
    ("model", "capability", "multiprocessors", "cores"),
    [  # NVIDIA's data sheets: SMs and CUDA cores of whole products
        ("GTX 980", (5, 2), 16, 2048),
        ("P100", (6, 0), 56, 3584),
        ("GTX 1080", (6, 1), 20, 2560),
        ("V100", (7, 0), 80, 5120),
        ("T4", (7, 5), 40, 2560),
        ("A100", (8, 0), 108, 6912),
        ("RTX 3090", (8, 6), 82, 10496),
        ("RTX 4090", (8, 9), 128, 16384),
        ("H100 SXM", (9, 0), 132, 16896),
        ("RTX 5090", (12, 0), 170, 21760),
    ],
)
def test_the_table_gives_the_cores_of_known_gpus(
    model, capability, multiprocessors, cores
):
    each = CORES_PER_MULTIPROCESSOR[capability]
    card = GpuCard(0, 0, model, capability, multiprocessors, each)
    assert card.cores_by_table == cores


def test_the_table_covers_every_gpu_that_mxnet_has_code_for():
    """Capabilities 5.0 to 8.9 for which NVIDIA has made GPUs; 5.1 is none."""
    assert {c for c in CORES_PER_MULTIPROCESSOR if c < (9, 0)} == {
        (5, 0), (5, 2), (5, 3), (6, 0), (6, 1), (6, 2), (7, 0), (7, 2), (7, 5), (8, 0),
        (8, 6), (8, 7), (8, 9),
    }  # fmt: skip


# Sessions


def test_no_driver_is_said_with_what_cuda_sees(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(T4, refused=["nvmlInit"]))
    monkeypatch.setattr(gpu_cards, "cuda_devices", lambda: [CudaDevice("T4", (7, 5))])
    with pytest.raises(DeviceError, match="Supported.*CUDA sees T4.*install its driv"):
        with gpu_cards.nvml_session():
            pass


def test_nvml_is_closed_again_whatever_happens(monkeypatch):
    closed = []
    module = fake_nvml(T4)
    module.nvmlShutdown = lambda: closed.append(True)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(KeyError), gpu_cards.nvml_session():
        raise KeyError
    assert closed == [True]
