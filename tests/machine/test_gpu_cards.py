"""Cards of faked GPUs, with every query refused in turn, and of this machine's host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from d2lpar.errors import DeviceError
from d2lpar.machine import gpu_cards, host_card
from d2lpar.machine import nvml as machine_nvml
from d2lpar.machine.gpu_cards import CORES_PER_MULTIPROCESSOR, GpuCard, Link


class NVMLError(Exception):
    """As pynvml's."""


T4 = {
    "name": "Tesla T4",
    "capability": (7, 5),
    "cores": 2560,
    "bus": b"00000000:3B:00.0",
    "memory": (15360, 15109),  # MiB, total and free
    "clocks": (1590, 5001),
    "watts": 70,
    "pcie": (3, 16),
}
H100 = {
    "name": "NVIDIA H100 80GB HBM3",
    "capability": (9, 0),
    "cores": 16896,
    "bus": "00000000:AF:00.0",
    "memory": (81559, 81079),
    "clocks": (1980, 2619),
    "watts": 700,
    "pcie": (5, 16),
}


def fake_nvml(*gpus, refused=(), nvlinks=None, levels=None, p2p=0):
    """A module like pynvml.

    `nvlinks` maps a GPU's index to the PCI addresses, or None for a switch, at the
    other ends of its links; `levels` maps pairs of indices to a topology level.
    """
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = NVMLError
    nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM = 1, 2
    nvml.NVML_TEMPERATURE_GPU = 0
    nvml.NVML_P2P_CAPS_INDEX_READ, nvml.NVML_P2P_CAPS_INDEX_NVLINK = 0, 2
    nvml.NVML_P2P_STATUS_OK, nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH = 0, 2
    nvml.NVML_NVLINK_MAX_LINKS = 4
    for k, name in enumerate(gpu_cards.PCIE_PATHS):
        setattr(nvml, name, 10 * k)

    def ends(gpu):
        return (nvlinks or {}).get(gpus.index(gpu), [])

    def end_of(gpu, link):
        return types.SimpleNamespace(busId=ends(gpu)[link] or "00000000:01:00.0")

    def state(gpu, link):
        if link >= len(ends(gpu)):
            raise NVMLError("Not Supported")
        return 1

    def memory(gpu):
        total, free = (2**20 * mib for mib in gpu["memory"])
        return types.SimpleNamespace(total=total, free=free, used=total - free)

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetCudaDriverVersion": lambda: 13010,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda i: gpus[i],
        "nvmlDeviceGetName": lambda gpu: gpu["name"].encode(),
        "nvmlDeviceGetCudaComputeCapability": lambda gpu: list(gpu["capability"]),
        "nvmlDeviceGetNumGpuCores": lambda gpu: gpu["cores"],
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu["clocks"][kind - 1],
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 1000 * gpu["watts"],
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu["pcie"][0],
        "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu["pcie"][1],
        "nvmlDeviceGetPciInfo": lambda gpu: types.SimpleNamespace(busId=gpu["bus"]),
        "nvmlDeviceGetNvLinkState": state,
        "nvmlDeviceGetNvLinkRemotePciInfo": end_of,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, k: 0 if ends(gpu)[k] else 2,
        "nvmlDeviceGetP2PStatus": lambda a, b, what: p2p,
        "nvmlDeviceGetTopologyCommonAncestor": lambda a, b: (levels or {})[
            gpus.index(a), gpus.index(b)
        ],
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=57),
        "nvmlDeviceGetTemperature": lambda gpu, sensor: 51,
        "nvmlDeviceGetPowerUsage": lambda gpu: 42_500,
    }

    def refuse(*args):
        raise NVMLError("Not Supported")

    for name, answer in answers.items():
        setattr(nvml, name, refuse if name in refused else answer)
    return nvml


@pytest.fixture
def cuda(monkeypatch):
    """CUDA sees the H100 first, which NVML has second, and the T4 not at all."""
    places = {"0:af:0": (0, 132)}
    monkeypatch.setattr(gpu_cards, "cuda_places", lambda: places)
    return places


def gpus_of(nvml):
    return gpu_cards.gpu_cards(nvml)


def test_a_card_has_what_nvml_and_cuda_say(cuda):
    cuda["0:3b:0"] = (1, 40)
    t4, h100 = gpus_of(fake_nvml(T4, H100, levels={(0, 1): 50, (1, 0): 50}))
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
    t4, h100 = gpus_of(fake_nvml(T4, H100, levels={(0, 1): 30, (1, 0): 30}))
    assert (t4.number, t4.multiprocessors) == (None, None)
    assert t4.label == "GPU 0 Tesla T4, hidden from CUDA"
    assert "2,560 CUDA cores, as NVML counts" in gpu_cards.cores_text(t4)
    assert h100.number == 0


QUERIES = [name for name in vars(fake_nvml()) if name.startswith("nvml")]


@pytest.mark.parametrize("query", [q for q in QUERIES if q != "nvmlInit"])
def test_what_a_gpu_does_not_support_is_none(query, cuda):
    """Each query refused alone: the others' answers stay, and the card has text."""
    whole = gpus_of(fake_nvml(H100))
    left = gpus_of(fake_nvml(H100, refused=[query]))
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
    found = gpu_cards.Machine(host_card.cpu_card(), (left,))
    assert left.label in gpu_cards.as_text(found)
    assert "None" not in gpu_cards.as_text(found)


def test_a_gpu_that_supports_nothing_still_has_a_card(cuda):
    kept = ("nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    (card,) = gpus_of(fake_nvml(T4, refused=set(QUERIES) - set(kept)))
    assert card == GpuCard(index=0)
    assert gpu_cards.cores_text(card).endswith("NVML has no count of CUDA cores")


def test_no_driver_is_said_and_is_no_error(monkeypatch):
    nvml = fake_nvml(T4, refused=["nvmlInit"])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu_cards.devices, "cuda_devices", lambda: [])
    found = gpu_cards.machine()
    assert found.gpus == () and "Not Supported" in found.no_gpu
    assert found.no_gpu in gpu_cards.as_text(found)
    with pytest.raises(DeviceError, match="install its driver"):
        with machine_nvml.nvml_session():
            pass


def test_nvml_is_closed_again_whatever_happens(monkeypatch):
    closed = []
    nvml = fake_nvml(T4)
    nvml.nvmlShutdown = lambda: closed.append(True)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with pytest.raises(KeyError), machine_nvml.nvml_session():
        raise KeyError
    assert closed == [True]


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
    t4, _ = gpus_of(fake_nvml(T4, H100, levels=levels, **options))
    assert t4.links == (link,)


def test_a_link_is_named_in_the_text(cuda):
    nvml = fake_nvml(T4, H100, nvlinks={0: [BUS[1]], 1: [BUS[0]]})
    found = gpu_cards.Machine(host_card.cpu_card(), gpus_of(nvml))
    text = gpu_cards.as_text(found)
    assert "gpu(0) NVIDIA H100 80GB HBM3: NVLink, 1 link, direct access" in text
    assert "9.0, MXNet's GPU builds have code for 5.0-8.9 only" in text
    assert "79.6 GiB, 79.2 GiB free" in text  # 81559 and 81079 MiB


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


def test_a_card_says_where_table_and_nvml_disagree():
    card = GpuCard(0, 0, "T4", (7, 5), 40, 128, 2560)  # with the seed's table
    text = gpu_cards.cores_text(card)
    assert text == "40; 2,560 CUDA cores by NVML; the table says 40 x 128 = 5,120"
    unknown = GpuCard(0, 0, "new", (99, 0), 10, None, 640)
    assert "no table entry" in gpu_cards.cores_text(unknown)


def test_cards_survive_json(cuda):
    nvml = fake_nvml(T4, H100, nvlinks={0: [None], 1: [None]})
    refused = fake_nvml(T4, refused=["nvmlDeviceGetCudaComputeCapability"])
    cards = (*gpus_of(nvml), *gpus_of(refused))
    for gpus, why in ((cards, None), ((), "no driver")):
        found = gpu_cards.Machine(host_card.cpu_card(), gpus, why)
        text = gpu_cards.as_json(found)
        assert gpu_cards.from_json(text) == found
        assert json.loads(text)["cpu"]["model"] == found.cpu.model


def test_cards_need_no_mxnet():
    code = (
        "import sys; from d2lpar.machine.gpu_cards import as_text, machine; "
        "print(as_text(machine())); sys.exit('mxnet' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].count("cpu(0)") or "gpu" in done.stdout


# The host, read another way


def cpuinfo():
    return Path("/proc/cpuinfo").read_text(encoding="utf-8")


def test_the_host_is_what_proc_says():
    card = host_card.cpu_card()
    blocks = [b for b in cpuinfo().split("\n\n") if re.search("^processor", b, re.M)]
    assert card.logical_cores == os.cpu_count() == len(blocks)
    assert card.model in cpuinfo()
    assert 1 <= card.usable_cores <= len(os.sched_getaffinity(0))
    meminfo = Path("/proc/meminfo").read_text(encoding="utf-8")
    total = re.search(r"^MemTotal: +(\d+) kB$", meminfo, re.M)
    assert card.memory_total == 1024 * int(total[1])
    assert 0 < card.memory_free < card.memory_total
    for name in card.vector_extensions:
        assert re.search(rf"^(flags|Features)\s*:.*\b{name}\b", cpuinfo(), re.M)


def test_cores_and_caches_are_lscpus():
    try:
        done = subprocess.run(
            ["lscpu", "-B", "-J"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no lscpu here that knows -B and -J")
    rows, facts = json.loads(done.stdout)["lscpu"], {}
    while rows:
        row = rows.pop()
        facts[row["field"].rstrip(":")] = row["data"]
        rows += row.get("children", [])
    card = host_card.cpu_card()
    sockets, each = int(facts["Socket(s)"]), int(facts["Core(s) per socket"])
    assert (card.sockets, card.physical_cores) == (sockets, sockets * each)
    sizes = {}
    for cache in card.caches:
        sizes[cache.name] = sizes.get(cache.name, 0) + cache.size * cache.count
    told = {k.split()[0]: int(v.split()[0]) for k, v in facts.items() if "cache" in k}
    told = {name: size for name, size in told.items() if name in sizes}
    assert told and {name: sizes[name] for name in told} == told


def fake_cpus(root, layout):
    """Folders as in /sys/devices/system/cpu: (socket, siblings, size of L2) a core."""
    for k, (socket, siblings, size) in enumerate(layout):
        topology, index = root / f"cpu{k}/topology", root / f"cpu{k}/cache/index2"
        topology.mkdir(parents=True)
        index.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{socket}\n")
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
        texts = {
            "level": 2,
            "type": "Unified",
            "size": size,
            "shared_cpu_map": siblings,
        }
        for name, text in texts.items():
            (index / name).write_text(f"{text}\n")
    (root / "cpufreq").mkdir()


def test_hyper_threads_and_unequal_cores(tmp_path):
    """Two sockets; a core with two threads and 2 MiB, and two with one and 512 KiB."""
    layout = [(0, "0-1", "2M"), (0, "0-1", "2M"), (0, "2", "512K"), (1, "3", "512K")]
    fake_cpus(tmp_path, layout)
    cores = host_card.core_of_cpu(tmp_path)
    assert cores[0] == cores[1] and len(set(cores.values())) == 3
    small, large = host_card.caches(tmp_path)
    assert small == host_card.Cache("L2", 512 * 1024, 2, 1)
    assert large == host_card.Cache("L2", 2 * 2**20, 1, 2)


def test_a_system_that_tells_nothing(tmp_path):
    assert host_card.core_of_cpu(tmp_path) == {} and host_card.caches(tmp_path) == ()
    assert host_card.vector_extensions("") == ((), None)
    assert host_card.container_memory(tmp_path / "none", tmp_path) == (None, 0)


@pytest.mark.parametrize(
    ("flags", "bits"),
    [
        ("flags\t\t: fpu sse2", 128),
        ("flags\t\t: sse2 avx fma avx2 avx_vnni", 256),
        ("flags\t\t: sse2 avx avx512f avx512_bf16 fma", 512),
        ("Features\t: fp asimd evtstrm", 128),
    ],
)
def test_width_of_vectors(flags, bits):
    found, width = host_card.vector_extensions(f"processor\t: 0\n{flags}\n")
    assert width == bits and set(found) <= set(flags.split())


def container(tmp_path, *files):
    for name, text in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return host_card.container_memory(tmp_path / "groups", tmp_path)


def test_a_containers_limit_of_version_2(tmp_path):
    """The tightest of all levels; the cache of files gives way."""
    found = container(
        tmp_path,
        ("groups", "0::/user/job"),
        ("user/job/memory.max", "max"),
        ("user/job/memory.current", 10),
        ("user/memory.max", 1000),
        ("user/memory.current", 700),
        ("user/memory.stat", "anon 300\ninactive_file 400\nactive_file 5"),
        ("memory.max", 5000),
        ("memory.current", 800),
    )
    assert found == (1000, 300)


def test_a_containers_limit_of_version_1(tmp_path):
    lines = "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n"
    found = container(
        tmp_path,
        ("groups", lines),
        ("memory/memory.limit_in_bytes", 2**63 - 4096),
        ("memory/memory.usage_in_bytes", 900),
        ("memory/docker/abc/memory.limit_in_bytes", 600),
        ("memory/docker/abc/memory.usage_in_bytes", 250),
        ("memory/docker/abc/memory.stat", "cache 9\ntotal_inactive_file 50"),
    )
    assert found == (600, 200)


def test_free_memory_stays_below_a_containers_limit(monkeypatch):
    total, free, limit = host_card.host_memory()
    monkeypatch.setattr(host_card, "container_memory", lambda: (2**20, 2**19))
    assert host_card.host_memory() == (total, 2**19, 2**20)
    monkeypatch.setattr(host_card, "container_memory", lambda: (2**60, 2**19))
    assert host_card.host_memory()[2] is None  # more than there is: no limit
    assert 0 < free <= total and (limit is None or limit < total)
