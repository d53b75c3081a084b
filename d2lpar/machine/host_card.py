"""What the host is that all CPU contexts share: cores, caches, vectors, memory.

Read from /proc and /sys; memory counts a container's limit in. Never imports MXNet.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from d2lpar.machine import cores as machine_cores

# What /proc/cpuinfo calls the instructions that arithmetic is made of, narrow to wide,
# and the bits of one register (0: that of the others).
VECTOR_EXTENSIONS = {
    "asimd": 128,  # Arm
    "sse2": 128,
    "avx": 256,
    "avx2": 256,
    "fma": 0,
    "f16c": 0,
    "avx_vnni": 0,
    "avx512f": 512,
    "avx512_vnni": 0,
    "avx512_bf16": 0,
    "avx512_fp16": 0,
    "amx_bf16": 0,
    "amx_int8": 0,
}

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
    """The host: what all CPU contexts share. Memory in bytes, the clock in MHz.

    `usable_cores` counts affinity and container limits in, `usable_physical` counts
    hyper-threads of a core once. `memory_free` is what a program can still take,
    `memory_limit` a container's limit. `vector_bits` is the width of a register. `auto`
    makes `contexts` CPU contexts, of `threads_per_context` threads.
    """

    model: str
    sockets: int | None
    physical_cores: int | None
    logical_cores: int
    usable_physical: int | None
    usable_cores: int
    contexts: int
    threads_per_context: int
    clock: int | None
    caches: tuple[Cache, ...]
    vector_extensions: tuple[str, ...]
    vector_bits: int | None
    memory_total: int
    memory_free: int
    memory_limit: int | None


def cpu_card() -> CpuCard:
    """The card of the host, from /proc, /sys and, for what they lack, psutil."""
    import psutil

    usable, frequency = machine_cores.usable_cores(), None
    with contextlib.suppress(NotImplementedError, OSError):
        frequency = psutil.cpu_freq()
    cores = core_of_cpu()
    allowed = {cores[cpu] for cpu in os.sched_getaffinity(0) if cpu in cores}
    extensions, bits = vector_extensions(_text("/proc/cpuinfo") or "")
    total, free, limit = host_memory()
    return CpuCard(
        model=machine_cores.cpu_model(),
        sockets=len({package for package, _ in cores.values()}) or None,
        physical_cores=len(set(cores.values())) or psutil.cpu_count(logical=False),
        logical_cores=os.cpu_count() or usable,
        usable_physical=min(usable, len(allowed)) if allowed else None,
        usable_cores=usable,
        contexts=usable,
        threads_per_context=machine_cores.omp_threads() or 1,  # what d2lpar._mxnet sets
        clock=round(frequency.max or frequency.current) if frequency else None,
        caches=caches(),
        vector_extensions=extensions,
        vector_bits=bits,
        memory_total=total,
        memory_free=free,
        memory_limit=limit,
    )


def _text(path: str | Path) -> str | None:
    """What a file of the system says, or None where there is none to read."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    return None


def core_of_cpu(cpus: Path = CPUS) -> dict[int, tuple[str, str]]:
    """(socket, core) of every logical core that the system names; {} where it does not.

    Hyper-threads of one core have the same.
    """
    found = {}
    for folder in cpus.glob("cpu[0-9]*"):
        socket = _text(folder / "topology/physical_package_id")
        # The first of its siblings names a core: core_id repeats from die to die.
        core = _text(folder / "topology/thread_siblings_list")
        if socket is not None and core is not None:
            found[int(folder.name[3:])] = (socket, re.split("[-,]", core)[0])
    return found


def caches(cpus: Path = CPUS) -> tuple[Cache, ...]:
    """The caches by level, those of equal size counted together."""
    shares: dict[tuple[str, int], dict[str, set]] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index*"):
        parts = [_text(folder / n) for n in ("level", "type", "size", "shared_cpu_map")]
        size = re.fullmatch(r"(\d+)([KMG]?)", parts[2] or "")
        if None in parts or not size:
            continue
        kind = {"Data": "d", "Instruction": "i"}.get(parts[1], "")
        factor = 1024 ** " KMG".index(size[2] or " ")
        same = shares.setdefault((f"L{parts[0]}{kind}", int(size[1]) * factor), {})
        same.setdefault(parts[3], set()).add(folder.parts[-3])
    return tuple(
        Cache(name, size, len(same), max(map(len, same.values())))
        for (name, size), same in sorted(shares.items())
    )


def vector_extensions(cpuinfo: str) -> tuple[tuple[str, ...], int | None]:
    """Those of the first processor in /proc/cpuinfo, and the widest register's bits."""
    line = re.search(r"^(?:flags|Features)\s*: (.*)$", cpuinfo, re.MULTILINE)
    flags = set(line[1].split()) if line else set()
    found = tuple(name for name in VECTOR_EXTENSIONS if name in flags)
    return found, max((VECTOR_EXTENSIONS[name] for name in found), default=None)


def host_memory() -> tuple[int, int, int | None]:
    """Bytes: the machine's, what can still be taken, and a container's limit or None.

    Where a container has a limit, what can be taken stays below it.
    """
    import psutil

    memory = psutil.virtual_memory()
    limit, used = container_memory()
    if limit is None or limit >= memory.total:
        return memory.total, memory.available, None
    return memory.total, max(0, min(memory.available, limit - used)), limit


def container_memory(
    groups: str | Path = "/proc/self/cgroup", root: str | Path = "/sys/fs/cgroup"
) -> tuple[int | None, int]:
    """The lowest memory limit that this process is under, and how much of it is taken.

    (None, 0) without one. The cache of files, which gives way, does not count as taken.
    """
    lowest: tuple[int | None, int] = (None, 0)
    for line in (_text(groups) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes")  # version 1
        if not controllers:
            names = ("memory.max", "memory.current")
        base = Path(root, "memory" if controllers else "")
        inside = base / path.strip("/")
        for folder in (inside, *inside.parents):
            if not folder.is_relative_to(base):
                break
            limit, used = (_text(folder / name) or "" for name in names)
            # Version 1 says "no limit" as the largest multiple of a page in 63 bits.
            if not (limit.isdigit() and used.isdigit() and int(limit) < 2**62):
                continue
            stat = _text(folder / "memory.stat") or ""
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
            taken = int(used) - (int(cached[1]) if cached else 0)
            if lowest[0] is None or int(limit) - taken < lowest[0] - lowest[1]:
                lowest = int(limit), taken
    return lowest
