"""Facts about this machine's devices, one card for each GPU and one for the host."""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass

import psutil

from d2lpar.machine import host
from d2lpar.machine.builds import wheel_for
from d2lpar.machine.gpus import ask_nvml, cuda_devices, why_no_gpu
from d2lpar.text import byte_size

# CUDA cores (float32 units) of one multiprocessor, by compute capability. Source: CUDA
# samples, Common/helper_cuda.h. The least-squares notes have 128 for 7.5.
CORES_PER_MULTIPROCESSOR = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128,  # Maxwell
    (6, 0): 64, (6, 1): 128, (6, 2): 128,  # Pascal: P100, others
    (7, 0): 64, (7, 2): 64, (7, 5): 64,  # Volta: V100; Turing: T4
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,  # Ampere: A100, others; Ada
    (9, 0): 128, (10, 0): 128, (12, 0): 128,  # Hopper: H100; Blackwell: B200, RTX 50
}  # fmt: skip


@dataclass(frozen=True)
class GpuCard:
    """Describe a GPU, ``mx.gpu(number)``; fields that NVML does not know are None.

    Memory is in bytes; `cuda` is the newest CUDA of its driver.
    """

    number: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_total: int | None = None
    memory_free: int | None = None
    driver: str | None = None
    cuda: str | None = None

    @property
    def cores_by_table(self) -> int | None:
        """Return multiprocessors times the cores of one, as the notes count."""
        each = CORES_PER_MULTIPROCESSOR.get(self.capability)
        return each and each * self.multiprocessors


@dataclass(frozen=True)
class CpuCard:
    """Describe the host: memory in bytes, cores within affinity and limits."""

    model: str
    physical_cores: int | None
    logical_cores: int
    usable_cores: int
    threads_per_context: int
    memory_total: int
    memory_free: int


@dataclass(frozen=True)
class Machine:
    """Hold the cards of all devices here."""

    cpu: CpuCard
    gpus: tuple[GpuCard, ...]


def machine() -> Machine:
    """Return the cards of everything here. A missing GPU or driver is no error."""
    return Machine(cpu_card(), tuple(gpu_cards()))


def gpu_cards() -> list[GpuCard]:
    """Return a card for each GPU that CUDA sees, in the order of ``mx.gpu(i)``."""
    devices = cuda_devices()
    cuda = ask_nvml("nvmlSystemGetCudaDriverVersion") if devices else None
    cards = []
    for number, device in enumerate(devices):
        gpu = ask_nvml("nvmlDeviceGetHandleByPciBusId", device.pci_address)
        memory = ask_nvml("nvmlDeviceGetMemoryInfo", gpu)
        cards.append(
            GpuCard(
                number=number,
                name=device.name,
                capability=device.capability,
                multiprocessors=device.multiprocessors,
                memory_total=memory and memory.total,
                memory_free=memory and memory.free,
                driver=ask_nvml("nvmlSystemGetDriverVersion"),
                cuda=cuda and f"{cuda // 1000}.{cuda % 1000 // 10}",
            )
        )
    return cards


def cpu_card() -> CpuCard:
    """Return the card of this host's CPU contexts."""
    memory, cores = host.host_memory(), host.usable_cores()
    return CpuCard(
        model=host.cpu_model(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count() or cores,
        usable_cores=cores,
        threads_per_context=host.omp_threads() or 1,  # d2lpar._mxnet sets 1
        memory_total=memory.total,
        memory_free=memory.free,
    )


def as_text(here: Machine) -> str:
    """Return the cards for a person to read: a title and a line per fact."""
    lines = []
    for gpu in here.gpus:
        capability = ".".join(map(str, gpu.capability))
        if wheel_for(gpu.capability) is None:
            capability += ", for which no wheel of MXNet has code"
        driver, cuda = gpu.driver or "unknown", gpu.cuda or "unknown"
        lines += [
            f"gpu({gpu.number}) {gpu.name}",
            f"  capability       {capability}",
            f"  memory           {_memory_text(gpu)}",
            f"  multiprocessors  {_cores_text(gpu)}",
            f"  driver           {driver}, CUDA {cuda}",
        ]
    cpu, last = here.cpu, here.cpu.usable_cores - 1
    contexts = f"cpu(0) to cpu({last})" if last else "cpu(0)"
    cores = f"{cpu.physical_cores or 'unknown'} physical, {cpu.logical_cores} logical"
    lines += [
        f"{contexts}, contexts on {cpu.model}",
        f"  cores    {cores}; usable {cpu.usable_cores}",
        f"  threads  {cpu.threads_per_context} per context",
        f"  memory   {_memory_text(cpu)}",
    ]
    return "\n".join(lines if here.gpus else [*lines, textwrap.fill(why_no_gpu(), 80)])


def _cores_text(gpu: GpuCard) -> str:
    """Return the multiprocessors and the CUDA cores, by the notes' table, in words."""
    if not gpu.cores_by_table:
        return f"{gpu.multiprocessors}"
    each = CORES_PER_MULTIPROCESSOR[gpu.capability]
    return f"{gpu.multiprocessors} x {each} = {gpu.cores_by_table:,} CUDA cores"


def _memory_text(card: GpuCard | CpuCard) -> str:
    if card.memory_total is None or card.memory_free is None:
        return "unknown"
    return f"{byte_size(card.memory_total)}, {byte_size(card.memory_free)} free"
