"""The devices of this machine as cards: what each GPU and the host is and has.

NVML, the library behind nvidia-smi, describes the GPUs, and counts their CUDA cores
itself; multiprocessors, which it does not know, come from the CUDA driver. The
least-squares notes ("Querying your GPU") ask PyCUDA instead, and multiply the
multiprocessors by a table's cores of one: the table is here too, so that the two can be
compared. lscpu and psutil describe the host.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass

import psutil

from d2lpar.errors import DeviceError
from d2lpar.machine.builds import (
    BUILD_RANGE,
    CudaDevice,
    ask,
    build_has_code_for,
    cuda_devices,
    nvml_session,
    own_library,
    plain_pci_address,
)
from d2lpar.machine.host import (
    cpu_model,
    host_memory,
    lscpu,
    omp_threads,
    usable_cores,
)
from d2lpar.text import byte_size, plain_table

# CUDA cores (float32 units) of one multiprocessor, by compute capability. Source: CUDA
# samples, Common/helper_cuda.h, _ConvertSMVer2Cores; the same as the results per clock
# of 32-bit additions in "Throughput of Native Arithmetic Instructions", CUDA C++
# Programming Guide. The notes have 128 for 7.5 (and a 5.1 that no GPU has).
CORES_PER_MULTIPROCESSOR = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128,  # Maxwell
    (6, 0): 64, (6, 1): 128, (6, 2): 128,  # Pascal: P100, others
    (7, 0): 64, (7, 2): 64, (7, 5): 64,  # Volta: V100; Turing: T4
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,  # Ampere: A100, others; Ada
    (9, 0): 128, (10, 0): 128, (12, 0): 128,  # Hopper: H100; Blackwell: B200, RTX 50
}  # fmt: skip

# The vector instructions by their names among a processor's flags, narrow to wide, with
# the bits of a register (0: they use the registers of the others); "asimd" is Arm's.
VECTOR_EXTENSIONS = {
    "asimd": 128, "sse2": 128, "avx": 256, "avx2": 256, "fma": 0, "f16c": 0,
    "avx_vnni": 0, "avx512f": 512, "avx512_vnni": 0, "avx512_bf16": 0,
    "avx512_fp16": 0, "amx_bf16": 0, "amx_int8": 0,
}  # fmt: skip


@dataclass(frozen=True)
class GpuCard:
    """A GPU. None is what its driver does not know. Memory in bytes.

    `number` is i in ``mx.gpu(i)``: CUDA's order, which is not NVML's `index`, and None
    for a GPU that CUDA_VISIBLE_DEVICES hides. `cores` is NVML's count of CUDA cores,
    `cores_per_multiprocessor` the table's.
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
    driver: str | None = None
    cuda: str | None = None

    @property
    def cores_by_table(self) -> int | None:
        """Multiprocessors times the cores of one, as the least-squares notes count."""
        if self.multiprocessors is None or self.cores_per_multiprocessor is None:
            return None
        return self.multiprocessors * self.cores_per_multiprocessor

    @property
    def label(self) -> str:
        """The name as in records: "gpu(0) NVIDIA T4", or "GPU 1 ..., hidden ..."."""
        name = self.name or "of unknown name"
        if self.number is None:
            return f"GPU {self.index} {name}, hidden from CUDA"
        return f"gpu({self.number}) {name}"


@dataclass(frozen=True)
class CpuCard:
    """The host that all CPU contexts share. Memory in bytes.

    `usable_cores` are those within affinity and container limits. `caches` has sizes
    by name, in lscpu's words. `vector_bits` is the width of a vector register.
    `memory_free` is what a program can still take, `memory_limit` a container's limit.
    ``--devices auto`` makes a context of `threads_per_context` threads per usable core.
    """

    model: str
    sockets: int | None
    physical_cores: int | None
    logical_cores: int
    usable_cores: int
    threads_per_context: int
    caches: dict[str, str]
    vector_extensions: tuple[str, ...]
    vector_bits: int | None
    memory_total: int
    memory_free: int
    memory_limit: int | None


@dataclass(frozen=True)
class Machine:
    """The cards of all devices here; `no_gpu` says why there is no card of a GPU."""

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


def as_json(here: Machine) -> str:
    """The cards as JSON, by the names of their fields."""
    return json.dumps(asdict(here), indent=1)


def as_text(here: Machine) -> str:
    """The cards for a person to read: a title and a line per fact."""
    cards = [(gpu.label, _gpu_facts(gpu)) for gpu in here.gpus]
    last = here.cpu.usable_cores - 1
    contexts = f"cpu(0) to cpu({last})" if last else "cpu(0)"
    cards.append((f"{contexts}, contexts on {here.cpu.model}", _cpu_facts(here.cpu)))
    lines = []
    for title, facts in cards:
        rows = [("", name, fact) for name, fact in facts if fact]
        lines += [title, plain_table([], rows, names=3)]
    return "\n".join(filter(None, [*lines, here.no_gpu]))


def cores_text(gpu: GpuCard) -> str:
    """CUDA cores, by the table and as NVML counts them, so that they can be compared.

    >>> cores_text(GpuCard(0, 0, "T4", (7, 5), 40, 64, cores=2560))
    '40 x 64 = 2,560 CUDA cores by the table; 2,560 CUDA cores by NVML'
    """
    counts = []
    if gpu.cores_by_table is not None:
        product = f"{gpu.multiprocessors} x {gpu.cores_per_multiprocessor}"
        counts.append(f"{product} = {gpu.cores_by_table:,} CUDA cores by the table")
    if gpu.cores is not None:
        counts.append(f"{gpu.cores:,} CUDA cores by NVML")
    return "; ".join(counts) or "unknown number of CUDA cores"


def _gpu_facts(gpu: GpuCard) -> list[tuple[str, str | None]]:
    capability = ""
    if gpu.capability:
        capability = ".".join(map(str, gpu.capability))
        if not build_has_code_for(gpu.capability) and not own_library():
            capability += f", MXNet's GPU wheels have code for {BUILD_RANGE} only"
    driver = [gpu.driver, gpu.cuda and f"CUDA {gpu.cuda}"]
    return [
        ("capability", capability),
        ("memory", _memory(gpu)),
        ("multiprocessors", cores_text(gpu)),
        ("driver", ", ".join(filter(None, driver))),
    ]


def _cpu_facts(cpu: CpuCard) -> list[tuple[str, str | None]]:
    vectors = ", ".join(cpu.vector_extensions)
    if cpu.vector_bits:
        vectors += f": {cpu.vector_bits // 32} floats in one instruction"
    memory = _memory(cpu)
    if cpu.memory_limit:
        memory = f"{memory}, limit {byte_size(cpu.memory_limit)}"
    cores = f"{cpu.physical_cores or 'unknown'} physical, {cpu.logical_cores} logical"
    sockets = cpu.sockets or "unknown"
    return [
        ("cores", f"{cores}; usable {cpu.usable_cores}; sockets {sockets}"),
        ("threads", f"{cpu.threads_per_context} per context"),
        ("caches", ", ".join(f"{name} {size}" for name, size in cpu.caches.items())),
        ("vectors", vectors),
        ("memory", memory),
    ]


def _memory(card: GpuCard | CpuCard) -> str | None:
    if card.memory_total is None or card.memory_free is None:
        return None
    return f"{byte_size(card.memory_total)}, {byte_size(card.memory_free)} free"


# GPUs


def gpu_handles(nvml) -> dict[int, object]:
    """NVML's handles of the GPUs that answer, by NVML's index."""
    count = ask(nvml.nvmlDeviceGetCount) or 0
    handles = {i: ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)}
    return {i: handle for i, handle in handles.items() if handle is not None}


def gpu_cards(nvml) -> tuple[GpuCard, ...]:
    """A card per GPU, in NVML's order; `nvml` is an initialised module like pynvml."""
    handles = gpu_handles(nvml)
    visible: dict[str | int, tuple[int | None, CudaDevice | None]] = {}
    for i, seen in reversed(list(enumerate(cuda_devices()))):
        # Slices of one GPU (MIG) share its address: MXNet uses the first.
        visible[seen.pci_address or i] = i, seen
    cuda = ask(nvml.nvmlSystemGetCudaDriverVersion)
    cards = []
    for index, gpu in handles.items():
        pci = ask(nvml.nvmlDeviceGetPciInfo, gpu)
        address = plain_pci_address(pci.busId) if pci else None
        number, device = visible.get(address or "", (None, None))
        capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, gpu)
        capability = capability and tuple(capability)
        memory = ask(nvml.nvmlDeviceGetMemoryInfo, gpu)
        cards.append(
            GpuCard(
                index=index,
                number=number,
                name=ask(nvml.nvmlDeviceGetName, gpu),
                capability=capability,
                multiprocessors=device and device.multiprocessors,
                cores_per_multiprocessor=CORES_PER_MULTIPROCESSOR.get(capability),
                cores=ask(nvml.nvmlDeviceGetNumGpuCores, gpu),
                memory_total=memory and memory.total,
                memory_free=memory and memory.free,
                driver=ask(nvml.nvmlSystemGetDriverVersion),
                cuda=cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
            )
        )
    return tuple(cards)


# The host


def cpu_card() -> CpuCard:
    """The card of the host."""
    facts, memory = lscpu(), host_memory()
    flags, sockets = facts.get("Flags", "").split(), facts.get("Socket(s)", "")
    extensions = tuple(name for name in VECTOR_EXTENSIONS if name in flags)
    return CpuCard(
        model=cpu_model(),
        sockets=int(sockets) if sockets.isdigit() else None,  # Arm's may be "-"
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count() or usable_cores(),
        usable_cores=usable_cores(),
        threads_per_context=omp_threads() or 1,  # d2lpar._mxnet sets 1
        caches={
            name.removesuffix(" cache"): size
            for name, size in facts.items()
            if re.fullmatch(r"L\d[di]?( cache)?", name)  # by version
        },
        vector_extensions=extensions,
        vector_bits=max((VECTOR_EXTENSIONS[e] for e in extensions), default=None),
        memory_total=memory.total,
        memory_free=memory.free,
        memory_limit=memory.limit,
    )
