"""A card for the host that all CPU contexts share: cores, vectors, memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from d2lpar.machine.cores import (
    cpu_flags,
    cpu_model,
    lscpu,
    omp_threads,
    usable_cores,
)

# The vector instructions by their names among the flags, narrow to wide, with the bits
# of a register (0: they use the registers of the others); "asimd" is Arm's.
VECTOR_EXTENSIONS = {
    "asimd": 128, "sse2": 128, "avx": 256, "avx2": 256, "fma": 0, "f16c": 0,
    "avx_vnni": 0, "avx512f": 512, "avx512_vnni": 0, "avx512_bf16": 0,
    "avx512_fp16": 0, "amx_bf16": 0, "amx_int8": 0,
}  # fmt: skip
CACHES = ("L1d", "L1i", "L2", "L3")


@dataclass(frozen=True)
class CpuCard:
    """The host. Memory in bytes; `caches` in lscpu's words, by name.

    `usable_cores` are those within affinity and container limits. `memory_free` is what
    a program can still take, `memory_limit` a container's limit. `vector_bits` is the
    width of a register. ``--devices auto`` makes a context of `threads_per_context`
    threads per usable core.
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


class HostMemory(NamedTuple):
    """Bytes: the machine's, what can still be taken, a container's limit or None."""

    total: int
    free: int
    limit: int | None


def cpu_card() -> CpuCard:
    """The card of the host."""
    facts, memory = lscpu(), host_memory()
    flags = cpu_flags().split()
    extensions = tuple(name for name in VECTOR_EXTENSIONS if name in flags)
    return CpuCard(
        model=cpu_model(),
        sockets=int(facts["Socket(s)"]) if "Socket(s)" in facts else None,
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count() or usable_cores(),
        usable_cores=usable_cores(),
        threads_per_context=omp_threads() or 1,  # d2lpar._mxnet sets 1
        caches={k: facts[f"{k} cache"] for k in CACHES if f"{k} cache" in facts},
        vector_extensions=extensions,
        vector_bits=max((VECTOR_EXTENSIONS[e] for e in extensions), default=None),
        memory_total=memory.total,
        memory_free=memory.free,
        memory_limit=memory.limit,
    )


def host_memory() -> HostMemory:
    """The memory here; what can be taken stays below a container's limit."""
    memory = psutil.virtual_memory()
    limit, used = container_memory()
    if limit is None or limit >= memory.total:
        return HostMemory(memory.total, memory.available, None)
    free = max(0, min(memory.available, limit - used))
    return HostMemory(memory.total, free, limit)


def container_memory(
    group: str | Path = "/proc/self/cgroup", root: str | Path = "/sys/fs/cgroup"
) -> tuple[int | None, int]:
    """(limit, bytes in use) of this process's control group, version 2, or (None, 0).

    Files that the kernel has cached give way, so they do not count as in use.
    """
    try:
        path = Path(group).read_text().strip().rpartition("::")[2]
        folder = Path(root, path.strip("/"))
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = dict(
            line.split() for line in (folder / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):
        return None, 0
    if not limit.isdigit():
        return None, 0
    return int(limit), used - int(stat.get("inactive_file", 0))
