"""What this process may use of its host: processor, cores, threads, memory, variables.

MXNet crashes or hangs on unexpected values of some environment variables, and has
defaults that do not suit several devices. So the variables are checked, and defaults of
our own are set, before it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import loky
import psutil

from d2lpar.errors import SettingError

# The most threads, or copies, that any machine has a use for.
WHOLE_NUMBERS = {
    "OMP_NUM_THREADS": 1024,
    "MXNET_OMP_MAX_THREADS": 1024,
    "MXNET_CPU_WORKER_NTHREADS": 1024,
    "MXNET_CPU_PRIORITY_NTHREADS": 1024,
    "MXNET_GPU_WORKER_NTHREADS": 1024,
    "MXNET_GPU_COPY_NTHREADS": 1024,
    "MXNET_CPU_TEMP_COPY": 65536,
    "MXNET_GPU_TEMP_COPY": 65536,
}
WORDS = {
    "MXNET_ENGINE_TYPE": ("ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine"),
}

# Environment variables that d2lpar itself has set in this process.
set_by_us: set[str] = set()


@functools.cache
def lscpu() -> dict[str, str]:
    """What ``lscpu -J`` says, by field: {"Model name": ...}; {} where there is none."""
    facts = {}

    def collect(entry: dict) -> dict:  # newer versions nest entries
        if "field" in entry:
            facts[entry["field"].rstrip(":")] = entry["data"] or ""
        return entry

    try:
        done = subprocess.run(
            ["lscpu", "-J"],
            capture_output=True,
            timeout=10,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        json.loads(done.stdout, object_hook=collect)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return facts


def cpu_model() -> str:
    """Name of the processor, such as "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"."""
    return lscpu().get("Model name") or platform.processor() or platform.machine()


def onednn_has_avx2_only() -> bool:
    """Can oneDNN use AVX2 here, and not AVX-512?

    By the processor's flags and by oneDNN's own variable DNNL_MAX_CPU_ISA.
    """
    flags = lscpu().get("Flags", "").split()
    allowed = os.environ.get("DNNL_MAX_CPU_ISA", "").upper() or "ALL"
    avx512 = "avx512f" in flags and allowed.startswith(("ALL", "AVX512"))
    return "avx2" in flags and not avx512 and allowed not in ("SSE41", "AVX")


def usable_cores() -> int:
    """CPU cores this process may use, within its affinity and container limits."""
    return loky.cpu_count()


def omp_threads() -> int | None:
    """Threads of each CPU context by OMP_NUM_THREADS; None where it is not set."""
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return (int(value) or None) if re.fullmatch("[0-9]{1,9}", value) else None


def user_threads() -> int | None:
    """Return the threads that the user set by OMP_NUM_THREADS; None if not set."""
    return omp_threads() if set_by_user("OMP_NUM_THREADS") else None


def threads_per_context(num_devices: int) -> int:
    """OMP_NUM_THREADS for `num_devices` CPU contexts that share this machine's cores.

    The user's own OMP_NUM_THREADS takes precedence.
    """
    return user_threads() or max(1, usable_cores() // num_devices)


def set_by_user(name: str) -> bool:
    """Return whether a variable is set, but not by :func:`set_defaults`."""
    return name in os.environ and name not in set_by_us


def set_defaults(values: Mapping[str, str]) -> None:
    """Set the environment variables that the user has not set, and note which."""
    for name, value in values.items():
        if name not in os.environ:
            os.environ[name] = value
            set_by_us.add(name)


def check_environment() -> None:
    """Raise :class:`SettingError` for a variable that would crash MXNet."""
    for name, most in WHOLE_NUMBERS.items():
        value = os.environ.get(name, "").strip()
        is_number = re.fullmatch("[0-9]{1,9}", value)
        if value and not (is_number and 1 <= int(value) <= most):
            remedy = f"write a whole number, 1 to {most:,}, or unset it"
            if name == "OMP_NUM_THREADS" and "," in value:
                remedy += "; MXNet takes no list"
            raise SettingError(f"{name} {value[:40]!r}: {remedy}")
    for name, words in WORDS.items():
        value = os.environ.get(name, "")
        if value and value not in words:
            remedy = f"write {', '.join(words[:-1])} or {words[-1]}, or unset it"
            raise SettingError(f"{name} {value[:40]!r}: {remedy}")
    role = os.environ.get("DMLC_ROLE", "worker")
    if role != "worker":  # MXNet's import would serve, and never return
        raise SettingError(
            f"DMLC_ROLE {role[:40]!r}: unset DMLC_ROLE; d2lpar launch starts the "
            "schedulers and servers"
        )
    if sys.flags.optimize > 1:
        raise SettingError(
            "PYTHONOPTIMIZE 2 (python -OO) drops the docstrings that MXNet needs: "
            "unset it, or write 1"
        )


class HostMemory(NamedTuple):
    """Bytes: the machine's, what can still be taken, a container's limit or None."""

    total: int
    free: int
    limit: int | None


def host_memory() -> HostMemory:
    """The memory here; what can be taken stays below all limits.

    They are those of a container and of this process (``ulimit -v``, ``ulimit -d``).
    """
    memory = psutil.virtual_memory()
    free = [memory.available]
    limit, used = container_memory()
    if limit is not None and limit >= memory.total:
        limit = None
    if limit is not None:
        free.append(limit - used)
    kinds = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    for name, kind in kinds.items():
        most, _ = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:
            free.append(most - process_status(name))
    return HostMemory(memory.total, max(0, min(free)), limit)


def container_memory(
    group: str | Path = "/proc/self/cgroup", root: str | Path = "/sys/fs/cgroup"
) -> tuple[int | None, int]:
    """(limit, bytes in use) of the tightest control group here, or (None, 0).

    That is this process's group or one around it (version 2). Files that the kernel has
    cached give way, so they do not count as in use.
    """
    limits = []
    with contextlib.suppress(OSError):
        path = Path(group).read_text().rpartition("::/")[2].strip()
        inside = Path(root, path)
        for folder in (inside, *inside.parents):
            with contextlib.suppress(OSError, ValueError):  # none here, or "max"
                limit = int((folder / "memory.max").read_text())
                used = int((folder / "memory.current").read_text())
                cached = (folder / "memory.stat").read_text().partition("inactive_file")
                limits.append((limit, used - int(cached[2].split()[0])))
    return min(limits, key=lambda group: group[0] - group[1], default=(None, 0))


def process_status(name: str) -> int:
    """Bytes in a line of /proc/self/status: VmRSS, VmHWM, VmData, VmSize."""
    with open("/proc/self/status", encoding="ascii") as f:
        line = next(line for line in f if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
