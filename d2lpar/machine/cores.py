"""The processor as lscpu describes it, usable cores, and threads of a CPU context."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import subprocess

import loky


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


def usable_cores() -> int:
    """CPU cores this process may use, within its affinity and container limits."""
    return loky.cpu_count()


def cpu_model() -> str:
    """Name of the processor, such as "Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz"."""
    return lscpu().get("Model name") or platform.processor() or platform.machine()


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
