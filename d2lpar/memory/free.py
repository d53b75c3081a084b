"""How much memory is free on the host, within all limits, and on each GPU."""

from __future__ import annotations

import resource
from collections.abc import Sequence

from d2lpar.errors import DeviceError
from d2lpar.machine.gpu_cards import gpu_cards, nvml_session
from d2lpar.machine.host_card import host_memory


def free_memory(devices: Sequence, running: bool = False) -> list[int]:
    """Bytes free on each context for a new process, or for this one if `running`.

    CPU contexts share the host's. NVML answers for GPUs; it counts what other processes
    use. Raises :class:`DeviceError` for a GPU whose free memory it does not know.
    """
    if devices[0].device_type == "cpu":
        return [host_free(running)] * len(devices)
    with nvml_session() as nvml:
        free = {card.number: card.memory_free for card in gpu_cards(nvml)}
    for device in devices:
        if free.get(device.device_id) is None:
            raise DeviceError(
                f"gpu({device.device_id}): NVML does not know how much memory is free; "
                "d2lpar devices shows what it does know"
            )
    return [free[device.device_id] for device in devices]


def host_free(running: bool = False) -> int:
    """Bytes free on the host for a new process, or for this one if `running`.

    The least of what the system has available, and of what the limits of a container
    and of a process (``ulimit -v``, ``ulimit -d``) leave.
    """
    free = [host_memory().free]
    for name, limit in address_limits().items():
        used = process_status(name) if running else 0
        free.append(max(0, limit - used))
    return min(free)


def address_limits() -> dict[str, int]:
    """The limits of this process in bytes, by the /proc/self/status line they cap."""
    kinds = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    limits = {name: resource.getrlimit(kind)[0] for name, kind in kinds.items()}
    return {n: limit for n, limit in limits.items() if limit != resource.RLIM_INFINITY}


def process_status(name: str) -> int:
    """Bytes in a line of /proc/self/status: VmRSS, VmHWM, VmData, VmSize."""
    with open("/proc/self/status", encoding="ascii") as f:
        line = next(line for line in f if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
