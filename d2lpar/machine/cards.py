"""What the GPUs and the host of this machine are, as text to read."""

from __future__ import annotations

import os
import textwrap

import psutil

from d2lpar.machine import host
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


def as_text() -> str:
    """Return a title, and a line per fact, of each GPU and of the host."""
    gpus = cuda_devices()
    driver = ask_nvml("nvmlSystemGetDriverVersion") or "unknown"
    newest = ask_nvml("nvmlSystemGetCudaDriverVersion")
    cuda = f"{newest // 1000}.{newest % 1000 // 10}" if newest else "unknown"
    lines = []
    for number, gpu in enumerate(gpus):
        capability, cores = ".".join(map(str, gpu.capability)), f"{gpu.multiprocessors}"
        if each := CORES_PER_MULTIPROCESSOR.get(gpu.capability):
            cores += f" x {each} = {each * gpu.multiprocessors:,} CUDA cores"
        lines += [
            f"gpu({number}) {gpu.name}",
            f"  capability       {capability}",
            f"  memory           {_of_memory(*gpu.memory())}",
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
