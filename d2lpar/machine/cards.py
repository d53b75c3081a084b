"""Facts about this machine's devices, a card for each GPU."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
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


def as_text(gpus: Sequence[GpuCard]) -> str:
    """Return the cards of GPUs and of this host to read: a title, a line per fact."""
    lines = []
    for gpu in gpus:
        capability, cores = ".".join(map(str, gpu.capability)), f"{gpu.multiprocessors}"
        driver, cuda = gpu.driver or "unknown", gpu.cuda or "unknown"
        if wheel_for(gpu.capability) is None:
            capability += ", for which no wheel of MXNet has code"
        if each := CORES_PER_MULTIPROCESSOR.get(gpu.capability):
            cores += f" x {each} = {gpu.cores_by_table:,} CUDA cores"
        lines += [
            f"gpu({gpu.number}) {gpu.name}",
            f"  capability       {capability}",
            f"  memory           {_of_memory(gpu.memory_total, gpu.memory_free)}",
            f"  multiprocessors  {cores}",
            f"  driver           {driver}, CUDA {cuda}",
        ]
    usable = host.usable_cores()
    physical = psutil.cpu_count(logical=False) or "unknown"
    contexts = f"cpu(0) to cpu({usable - 1})" if usable > 1 else "cpu(0)"
    lines += [
        f"{contexts}, contexts on {host.cpu_model()}",
        f"  cores    {physical} physical, {os.cpu_count()} logical; usable {usable}",
        f"  threads  {host.omp_threads() or 1} per context",  # d2lpar._mxnet sets 1
        f"  memory   {_of_memory(*host.host_memory())}",
    ]
    return "\n".join(lines if gpus else [*lines, textwrap.fill(why_no_gpu(), 80)])


def _of_memory(total: int | None, free: int | None) -> str:
    if total is None or free is None:
        return "unknown"
    return f"{byte_size(total)}, {byte_size(free)} free"
