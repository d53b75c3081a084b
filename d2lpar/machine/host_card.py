"""A card for the host that all CPU contexts share: cores, caches, vectors, memory.

Read from /proc and /sys, within the memory limit of a container.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import psutil

from d2lpar.machine.cores import cpu_flags, cpu_model, omp_threads, usable_cores

# The vector instructions by their names in /proc/cpuinfo, narrow to wide, with the bits
# of a register (0: they use the registers of the others); "asimd" is Arm's.
VECTOR_EXTENSIONS = {
    "asimd": 128, "sse2": 128, "avx": 256, "avx2": 256, "fma": 0, "f16c": 0,
    "avx_vnni": 0, "avx512f": 512, "avx512_vnni": 0, "avx512_bf16": 0,
    "avx512_fp16": 0, "amx_bf16": 0, "amx_int8": 0,
}  # fmt: skip

CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cache:
    """`count` caches of `size` bytes, each of which `cpus` logical cores share."""

    name: str
    size: int
    count: int
    cpus: int


@dataclass(frozen=True)
class CpuCard:
    """The host. Memory in bytes, the clock in MHz.

    `usable_cores` are those within affinity and container limits; `usable_physical`
    counts the hyper-threads of a core once. `memory_free` is what a program can still
    take, `memory_limit` a container's limit. `vector_bits` is the width of a register.
    ``--devices auto`` makes a context of `threads_per_context` threads per usable core.
    """

    model: str
    sockets: int | None
    physical_cores: int | None
    logical_cores: int
    usable_physical: int | None
    usable_cores: int
    threads_per_context: int
    clock: int | None
    caches: tuple[Cache, ...]
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
    """The card of the host, from /proc, /sys and, for what they lack, psutil."""
    usable, cores, frequency = usable_cores(), core_of_cpu(), None
    with contextlib.suppress(NotImplementedError, OSError):
        frequency = psutil.cpu_freq()
    allowed = {cores[cpu] for cpu in os.sched_getaffinity(0) if cpu in cores}
    extensions, bits = vector_extensions(cpu_flags())
    memory = host_memory()
    return CpuCard(
        model=cpu_model(),
        sockets=len({package for package, _ in cores.values()}) or None,
        physical_cores=len(set(cores.values())) or psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count() or usable,
        usable_physical=min(usable, len(allowed)) if allowed else None,
        usable_cores=usable,
        threads_per_context=omp_threads() or 1,  # d2lpar._mxnet sets 1
        clock=round(frequency.max or frequency.current) if frequency else None,
        caches=caches(),
        vector_extensions=extensions,
        vector_bits=bits,
        memory_total=memory.total,
        memory_free=memory.free,
        memory_limit=memory.limit,
    )


def _text(path: str | Path) -> str | None:
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return None


def core_of_cpu(cpus: Path = CPUS) -> dict[int, tuple[str, str]]:
    """(socket, core) of every logical core; {} where the system does not name them.

    Hyper-threads of one core share theirs.
    """
    names = {}
    for folder in cpus.glob("cpu[0-9]*"):
        socket = _text(folder / "topology/physical_package_id")
        # The first of its siblings names a core: core_id repeats from die to die.
        core = _text(folder / "topology/thread_siblings_list")
        if socket is not None and core is not None:
            names[int(folder.name[3:])] = (socket, re.split("[-,]", core)[0])
    return names


def caches(cpus: Path = CPUS) -> tuple[Cache, ...]:
    """The caches by level, those of equal size counted together."""
    # By name and size, for each cache the logical cores that share it.
    sharers: dict[tuple[str, int], dict[str, set]] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index*"):
        parts = [_text(folder / n) for n in ("level", "type", "size", "shared_cpu_map")]
        size = re.fullmatch(r"(\d+)([KMG]?)", parts[2] or "")
        if None in parts or not size:
            continue
        kind = {"Data": "d", "Instruction": "i"}.get(parts[1], "")
        factor = 1024 ** " KMG".index(size[2] or " ")
        same = sharers.setdefault((f"L{parts[0]}{kind}", int(size[1]) * factor), {})
        same.setdefault(parts[3], set()).add(folder.parts[-3])
    return tuple(
        Cache(name, size, len(same), max(map(len, same.values())))
        for (name, size), same in sorted(sharers.items())
    )


def vector_extensions(flags: str) -> tuple[tuple[str, ...], int | None]:
    """The extensions among a processor's flags, and the widest register's bits."""
    names = tuple(name for name in VECTOR_EXTENSIONS if name in flags.split())
    return names, max((VECTOR_EXTENSIONS[name] for name in names), default=None)


def host_memory() -> HostMemory:
    """The memory here; what can be taken stays below a container's limit."""
    memory = psutil.virtual_memory()
    limit, used = container_memory()
    if limit is None or limit >= memory.total:
        return HostMemory(memory.total, memory.available, None)
    free = max(0, min(memory.available, limit - used))
    return HostMemory(memory.total, free, limit)


def container_memory(
    groups: str | Path = "/proc/self/cgroup", root: str | Path = "/sys/fs/cgroup"
) -> tuple[int | None, int]:
    """(limit, bytes taken) of this process's control group that has least to spare.

    (None, 0) without a limit. The cache of files, which gives way, is not taken.
    """
    limits = []
    for line in (_text(groups) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2 of control groups
            base, names = Path(root), ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = Path(root, "memory")
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inside = base / path.strip("/")
        folders = [f for f in (inside, *inside.parents) if f.is_relative_to(base)]
        limits += filter(None, (_group_memory(folder, *names) for folder in folders))
    return min(limits, key=lambda group: group[0] - group[1], default=(None, 0))


def _group_memory(folder: Path, limit: str, usage: str) -> tuple[int, int] | None:
    """(limit, bytes taken) of one control group; None without a limit."""
    most, used = (_text(folder / name) or "" for name in (limit, usage))
    # Version 1 says "no limit" as the largest multiple of a page in 63 bits.
    if not (most.isdigit() and used.isdigit() and int(most) < 2**62):
        return None
    stat = _text(folder / "memory.stat") or ""
    cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
    return int(most), int(used) - (int(cached[1]) if cached else 0)
