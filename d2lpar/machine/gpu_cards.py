"""What a device is: a card for each GPU, and one for the host of the CPU contexts.

The seed asks PyCUDA for a GPU's name, compute capability, memory and multiprocessors,
and multiplies the last by the cores of one, from a table (seed 000, "Querying your
GPU"). Here NVML, the library behind nvidia-smi, answers, and counts the cores itself;
multiprocessors, which it does not know, come from the CUDA driver. The host's card is
:mod:`d2lpar.machine.host_card`'s. Never imports MXNet.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, dataclass

from d2lpar.errors import DeviceError
from d2lpar.machine import cuda as machine_cuda
from d2lpar.machine.host_card import Cache, CpuCard, cpu_card
from d2lpar.machine.nvml import _bus_of, ask, gpu_handles, nvml_session, plain_bus

# CUDA cores (float32 units) of one multiprocessor, by compute capability. Source: CUDA
# samples, Common/helper_cuda.h, _ConvertSMVer2Cores; the same as the results a clock of
# 32-bit additions in "Throughput of Native Arithmetic Instructions", CUDA C++
# Programming Guide. The seed has 128 for 7.5 (and a 5.1 that no GPU has).
CORES_PER_MULTIPROCESSOR = {
    (5, 0): 128,  # Maxwell
    (5, 2): 128,
    (5, 3): 128,
    (6, 0): 64,  # Pascal: P100
    (6, 1): 128,
    (6, 2): 128,
    (7, 0): 64,  # Volta: V100
    (7, 2): 64,
    (7, 5): 64,  # Turing: T4
    (8, 0): 64,  # Ampere: A100
    (8, 6): 128,
    (8, 7): 128,
    (8, 9): 128,  # Ada
    (9, 0): 128,  # Hopper: H100
    (10, 0): 128,  # Blackwell: B200
    (12, 0): 128,  # Blackwell: RTX 50
}

# How two GPUs are joined without NVLink, by the name NVML has for it.
PCIE_PATHS = {
    "NVML_TOPOLOGY_INTERNAL": "on one board",
    "NVML_TOPOLOGY_SINGLE": "PCIe, one switch",
    "NVML_TOPOLOGY_MULTIPLE": "PCIe, several switches",
    "NVML_TOPOLOGY_HOSTBRIDGE": "PCIe, through the host bridge",
    "NVML_TOPOLOGY_NODE": "PCIe, through the CPU",
    "NVML_TOPOLOGY_SYSTEM": "PCIe, through the link between CPUs",
}


@dataclass(frozen=True)
class Link:
    """The way from one GPU to another, whose NVML index is `to`.

    `nvlinks` counts the NVLinks on it, 0 where data goes over PCIe; `peer` is whether
    one GPU can read the other's memory without a copy through the host.
    """

    to: int
    path: str
    nvlinks: int = 0
    peer: bool | None = None


@dataclass(frozen=True)
class GpuCard:
    """A GPU. What its driver does not tell is None. Memory in bytes, clocks in MHz.

    `number` is i in ``mx.gpu(i)``: CUDA's order, which is not NVML's `index`, and None
    for a GPU that CUDA_VISIBLE_DEVICES hides. `cores` is NVML's count of CUDA cores,
    `cores_per_multiprocessor` the table's. `power_limit` is in watts.
    """

    index: int
    number: int | None = None
    name: str | None = None
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    cores_per_multiprocessor: int | None = None
    cores: int | None = None
    memory_total: int | None = None
    memory_free: int | None = None
    clock: int | None = None
    memory_clock: int | None = None
    power_limit: float | None = None
    host_link: str | None = None
    driver: str | None = None
    cuda: str | None = None
    links: tuple[Link, ...] = ()

    @property
    def cores_by_table(self) -> int | None:
        """Multiprocessors times cores of one: the seed's sum."""
        if self.multiprocessors is None or self.cores_per_multiprocessor is None:
            return None
        return self.multiprocessors * self.cores_per_multiprocessor

    @property
    def label(self) -> str:
        """ "gpu(0) NVIDIA T4", as in a record; "GPU 1 ..., hidden" outside of CUDA."""
        name = self.name or "of unknown name"
        if self.number is None:
            return f"GPU {self.index} {name}, hidden from CUDA"
        return f"gpu({self.number}) {name}"


@dataclass(frozen=True)
class Machine:
    """All devices of this machine; `no_gpu` says why there is no card of a GPU."""

    cpu: CpuCard
    gpus: tuple[GpuCard, ...]
    no_gpu: str | None = None


def machine() -> Machine:
    """The cards of everything here. Never raises for a missing GPU or driver."""
    cpu = cpu_card()
    try:
        with nvml_session() as nvml:
            gpus = gpu_cards(nvml)
    except DeviceError as error:
        return Machine(cpu, (), str(error))
    return Machine(cpu, gpus, None if gpus else "the NVIDIA driver sees no GPU")


def gpu_cards(nvml) -> tuple[GpuCard, ...]:
    """A card a GPU, in NVML's order, through an initialised module like pynvml."""
    handles, places = gpu_handles(nvml), cuda_places()
    cuda = ask(nvml, "nvmlSystemGetCudaDriverVersion")
    system = {
        "driver": ask(nvml, "nvmlSystemGetDriverVersion"),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None,
    }
    return tuple(_gpu_card(nvml, i, handles, places, system) for i in handles)


def _gpu_card(nvml, index: int, handles: dict, places: dict, system: dict) -> GpuCard:
    gpu = handles[index]
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", gpu)
    capability = tuple(capability) if capability else None
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", gpu)
    limit = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", gpu)
    lanes = ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu)
    generation = ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", gpu)
    number, multiprocessors = places.get(_bus_of(nvml, gpu), (None, None))
    return GpuCard(
        index=index,
        number=number,
        name=ask(nvml, "nvmlDeviceGetName", gpu),
        capability=capability,
        multiprocessors=multiprocessors,
        cores_per_multiprocessor=CORES_PER_MULTIPROCESSOR.get(capability),
        cores=ask(nvml, "nvmlDeviceGetNumGpuCores", gpu),
        memory_total=memory and memory.total,
        memory_free=memory and memory.free,
        clock=ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_SM),
        memory_clock=ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu, nvml.NVML_CLOCK_MEM),
        power_limit=limit and limit / 1000,
        host_link=f"PCIe {generation}, {lanes} lanes" if generation and lanes else None,
        links=tuple(_link(nvml, index, j, handles) for j in handles if j != index),
        **system,
    )


def cuda_places() -> dict[str, tuple[int, int]]:
    """(number i of ``mx.gpu(i)``, multiprocessors) of what CUDA sees, by PCI address.

    Asks the driver library, as :func:`d2lpar.machine.cuda.cuda_devices` does.
    """
    found = {}
    for i in range(len(machine_cuda.cuda_devices())):
        cuda = ctypes.CDLL("libcuda.so.1")
        device, number = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), i)
        bus = ctypes.create_string_buffer(32)
        cuda.cuDeviceGetPCIBusId(bus, len(bus), device)
        # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        cuda.cuDeviceGetAttribute(ctypes.byref(number), 16, device)
        # Several slices of one GPU (MIG) share its address: MXNet uses the first.
        found.setdefault(plain_bus(bus.value), (i, number.value))
    return found


def _link(nvml, a: int, b: int, handles: dict) -> Link:
    pair = handles[a], handles[b]

    def can(what: int) -> bool | None:
        status = ask(nvml, "nvmlDeviceGetP2PStatus", *pair, what)
        return None if status is None else status == nvml.NVML_P2P_STATUS_OK

    peer = can(nvml.NVML_P2P_CAPS_INDEX_READ)
    direct, switched = _nvlinks(nvml, handles[a], _bus_of(nvml, handles[b]))
    if direct:
        return Link(b, "NVLink", direct, peer)
    # Through switches every GPU reaches every other: this one, if NVLink carries it.
    if switched and can(nvml.NVML_P2P_CAPS_INDEX_NVLINK):
        return Link(b, "NVLink, through switches", switched, peer)
    level = ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", *pair)
    paths = {getattr(nvml, name): path for name, path in PCIE_PATHS.items()}
    return Link(b, paths.get(level, "unknown"), 0, peer)


def _nvlinks(nvml, gpu, other_bus: str | None) -> tuple[int, int]:
    """Active NVLinks of a GPU that end at the other one, and those at a switch."""
    direct = switched = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if not ask(nvml, "nvmlDeviceGetNvLinkState", gpu, link):
            continue
        end = ask(nvml, "nvmlDeviceGetNvLinkRemotePciInfo", gpu, link)
        kind = ask(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", gpu, link)
        direct += bool(end and other_bus and plain_bus(end.busId) == other_bus)
        switched += kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    return direct, switched


# As text and as JSON


def as_json(found: Machine) -> str:
    """The cards as JSON, the inverse of :func:`from_json`."""
    return json.dumps(asdict(found), indent=1)


def from_json(text: str) -> Machine:
    """The cards that :func:`as_json` wrote."""
    values = json.loads(text)
    cpu, gpus = values["cpu"], values["gpus"]
    cpu["caches"] = tuple(Cache(**cache) for cache in cpu["caches"])
    cpu["vector_extensions"] = tuple(cpu["vector_extensions"])
    for gpu in gpus:
        gpu["capability"] = gpu["capability"] and tuple(gpu["capability"])
        gpu["links"] = tuple(Link(**link) for link in gpu["links"])
    cards = tuple(GpuCard(**gpu) for gpu in gpus)
    return Machine(CpuCard(**cpu), cards, values["no_gpu"])


def as_text(found: Machine) -> str:
    """The cards for a person to read: a title and a line a fact."""
    labels = {gpu.index: gpu.label for gpu in found.gpus}
    cards = [(gpu.label, _gpu_facts(gpu, labels)) for gpu in found.gpus]
    many, cpu = found.cpu.contexts, found.cpu
    title = f"cpu(0) to cpu({many - 1})" if many > 1 else "cpu(0)"
    cards.append((f"{title}, contexts on {cpu.model}", _cpu_facts(cpu)))
    lines = []
    for title, facts in cards:
        facts = [(name, fact) for name, fact in facts if fact is not None]
        lines += [title, *(f"  {name:<15}  {fact}" for name, fact in facts)]
    return "\n".join([*lines, *([found.no_gpu] if found.no_gpu else [])])


def cores_text(gpu: GpuCard) -> str:
    """Multiprocessors and CUDA cores, and whether NVML and the table agree.

    >>> cores_text(GpuCard(0, multiprocessors=40, cores_per_multiprocessor=64))
    '40 x 64 = 2,560 CUDA cores by the table; NVML has no count'
    """
    table, cores = gpu.cores_by_table, gpu.cores
    many = gpu.multiprocessors or "CUDA does not tell"
    if cores is None and table is None:
        return f"{many}; NVML has no count of CUDA cores"
    if table is None:
        absent = ", no table entry" if gpu.cores_per_multiprocessor is None else ""
        return f"{many}; {cores:,} CUDA cores, as NVML counts{absent}"
    product = f"{many} x {gpu.cores_per_multiprocessor} = {table:,}"
    if cores is None:
        return f"{product} CUDA cores by the table; NVML has no count"
    if cores != table:
        return f"{many}; {cores:,} CUDA cores by NVML; the table says {product}"
    return f"{product} CUDA cores, as NVML counts"


def _gpu_facts(gpu: GpuCard, labels: dict[int, str]) -> list[tuple[str, str | None]]:
    capability = gpu.capability and ".".join(map(str, gpu.capability))
    if gpu.capability and not machine_cuda.build_has_code_for(gpu.capability):
        capability += (
            f", MXNet's GPU builds have code for {machine_cuda.BUILD_RANGE} only"
        )
    clocks = [f"{gpu.clock} MHz"] if gpu.clock else []
    clocks += [f"memory {gpu.memory_clock} MHz"] if gpu.memory_clock else []
    driver = gpu.driver and gpu.driver + (f", CUDA {gpu.cuda}" if gpu.cuda else "")
    return [
        ("capability", capability),
        ("memory", _memory_text(gpu.memory_total, gpu.memory_free)),
        ("multiprocessors", cores_text(gpu)),
        ("highest clock", ", ".join(clocks) or None),
        ("power limit", gpu.power_limit and f"{gpu.power_limit:.0f} W"),
        ("link to host", gpu.host_link),
        ("driver", driver),
        *(("link", f"{labels[link.to]}: {_link_text(link)}") for link in gpu.links),
    ]


def _link_text(link: Link) -> str:
    many = link.nvlinks and f", {link.nvlinks} link{'s' if link.nvlinks > 1 else ''}"
    peer = {True: ", direct access", False: ", copies through the host", None: ""}
    return f"{link.path}{many or ''}{peer[link.peer]}"


def _cpu_facts(cpu: CpuCard) -> list[tuple[str, str | None]]:
    physical = cpu.physical_cores or "unknown"
    may = "" if cpu.usable_physical is None else f" on {cpu.usable_physical} physical"
    cores = (
        f"{physical} physical, {cpu.logical_cores} logical; usable {cpu.usable_cores}"
        f"{may}; sockets {cpu.sockets or 'unknown'}"
    )
    vectors = ", ".join(cpu.vector_extensions) or None
    if cpu.vector_bits:
        vectors += f": {cpu.vector_bits // 32} floats in one instruction"
    limit = "" if cpu.memory_limit is None else f", limit {_gib(cpu.memory_limit)}"
    return [
        ("cores", cores),
        ("threads", f"{cpu.threads_per_context} a context"),
        ("caches", ", ".join(map(_cache_text, cpu.caches)) or None),
        ("vectors", vectors),
        ("clock", f"{cpu.clock} MHz" if cpu.clock else None),
        ("memory", f"{_memory_text(cpu.memory_total, cpu.memory_free)}{limit}"),
    ]


def _cache_text(cache: Cache) -> str:
    big = cache.size >= 2**20
    size = f"{cache.size / 2**20:g} MiB" if big else f"{cache.size / 2**10:g} KiB"
    return f"{cache.name} {cache.count} x {size}"


def _memory_text(total: int | None, free: int | None) -> str | None:
    return None if total is None else f"{_gib(total)}, {_gib(free)} free"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
