"""The CPU cores of this process, and how many threads a CPU context has."""

from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path

import loky


def usable_cores() -> int:
    """CPU cores this process may use, within its affinity and container limits."""
    return loky.cpu_count()


@functools.cache
def _cpu_facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor; {} where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    return dict(re.findall(r"^(.*?)\s*: (.*)$", first, re.MULTILINE))


def cpu_model() -> str:
    """Name of the processor, such as "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"."""
    return _cpu_facts().get("model name") or platform.processor() or platform.machine()


def cpu_flags() -> str:
    """The instruction sets of the processor, as /proc/cpuinfo names them."""
    return _cpu_facts().get("flags") or _cpu_facts().get("Features", "")


def omp_threads() -> int | None:
    """Threads of each CPU context by OMP_NUM_THREADS; None where it is not set."""
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return (int(value) or None) if re.fullmatch("[0-9]{1,9}", value) else None


# The user's own setting, read before d2lpar._mxnet sets a default.
USER_THREADS = omp_threads()


def threads_per_context(num_devices: int) -> int:
    """OMP_NUM_THREADS for `num_devices` CPU contexts that share this machine's cores.

    The user's own OMP_NUM_THREADS takes precedence.
    """
    return USER_THREADS or max(1, usable_cores() // num_devices)
