"""What this process may use of its host.

That is the processor, cores, threads and memory, and variables of the environment:
MXNet crashes or hangs without a message on some values.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

import loky
import psutil

from d2lpar.errors import SettingError

WHOLE_NUMBERS = ("OMP_NUM_THREADS", "MXNET_CPU_WORKER_NTHREADS", "MXNET_CPU_TEMP_COPY")

# MXNet reads these at its first import; what the user has set keeps its value.
ENGINE_DEFAULTS = {
    # By default 4 buffers for scratch space are shared by all CPU contexts, and
    # operators that hold the same one wait for each other.
    "MXNET_CPU_TEMP_COPY": "256",
    "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
    "MXNET_SUBGRAPH_VERBOSE": "0",
    # Else INT8's dense layers keep the range of the first batch for all that follow.
    "MXNET_MKLDNN_QFC_DYNAMIC_PARAMS": "1",
    "MXNET_ONEDNN_QFC_DYNAMIC_PARAMS": "1",  # of MXNet 2
    "NVIDIA_TF32_OVERRIDE": "0",  # else GPUs silently multiply float32 in TF32
    # `auto` is one context per core, and with more threads the OpenBLAS in MXNet's
    # wheel deadlocks when two contexts multiply large matrices at the same time.
    "OMP_NUM_THREADS": "1",
}

# Environment variables that d2lpar itself has set in this process.
set_by_us: set[str] = set()


@functools.cache
def cpuinfo() -> dict[str, str]:
    """Return the first processor of /proc/cpuinfo: {"model name": ..., ...}, or {}."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0]
        return dict(re.findall(r"^(.+?)\t*: (.+)$", text, re.MULTILINE))
    return {}


def cpu_model() -> str:
    """Return the processor's name, such as "Intel(R) Xeon(R) Gold 6148 CPU"."""
    return cpuinfo().get("model name") or platform.processor() or platform.machine()


def onednn_has_avx2_only() -> bool:
    """Return whether oneDNN can use AVX2 here, and not AVX-512."""
    flags = cpuinfo().get("flags", "").split()
    allowed = os.environ.get("DNNL_MAX_CPU_ISA", "").upper() or "ALL"
    avx512 = "avx512f" in flags and allowed.startswith(("ALL", "AVX512"))
    return "avx2" in flags and not avx512 and allowed not in ("SSE41", "AVX")


def usable_cores() -> int:
    """Return the cores this process may use, within affinity and container limits."""
    return loky.cpu_count()


def omp_threads() -> int | None:
    """Return the threads of each CPU context by OMP_NUM_THREADS; None if not set."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if is_whole_number(value) else None


def user_threads() -> int | None:
    """Return the threads that the user set by OMP_NUM_THREADS; None if not set."""
    return omp_threads() if set_by_user("OMP_NUM_THREADS") else None


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
    for name in WHOLE_NUMBERS:
        value = os.environ.get(name, "")
        if value and not is_whole_number(value):
            raise SettingError(
                f"{name} {value[:40]!r}: write one whole number above 0, or unset it"
            )
    if os.environ.get("DMLC_ROLE", "worker") != "worker":
        raise SettingError("DMLC_ROLE: unset it, or MXNet's import would never return")


def is_whole_number(value: str) -> bool:
    """Return whether the text of a variable is a whole number above 0."""
    return bool(re.fullmatch(" *[0-9]{1,9} *", value)) and int(value) > 0


def host_memory() -> tuple[int, int]:
    """Return the bytes of this machine or container, in all and still available."""
    memory, groups = psutil.virtual_memory(), container_memory()
    total = [memory.total, *(limit for limit, _ in groups)]
    free = [memory.available, *(limit - used for limit, used in groups)]
    return min(total), max(0, min(free))


def container_memory(
    group: str | Path = "/proc/self/cgroup", root: str | Path = "/sys/fs/cgroup"
) -> list[tuple[int, int]]:
    """Return (limit, bytes in use) for each control group (v2), without file caches."""
    limits = []
    with contextlib.suppress(OSError):
        inside = Path(root, Path(group).read_text().rpartition("::/")[2].strip())
        for folder in (inside, *inside.parents):
            with contextlib.suppress(OSError, ValueError):  # none here, or "max"
                limit = int((folder / "memory.max").read_text())
                used = int((folder / "memory.current").read_text())
                cached = (folder / "memory.stat").read_text().partition("inactive_file")
                limits.append((limit, used - int(cached[2].split()[0])))
    return limits
