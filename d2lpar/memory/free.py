"""How much memory is free on the host, within all limits, and on each GPU."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence

from d2lpar.errors import DeviceError
from d2lpar.machine.cards import gpu_cards, host_memory, nvml_session
from d2lpar.text import byte_size


def free_memory(devices: Sequence) -> list[int]:
    """Bytes free on each context.

    CPU contexts share the host's. NVML answers for GPUs; it counts what other processes
    use. Raises :class:`DeviceError` for a GPU whose free memory it does not know.
    """
    if devices[0].device_type == "cpu":
        return [host_free()] * len(devices)
    with nvml_session() as nvml:
        free = {card.number: card.memory_free for card in gpu_cards(nvml)}
    for device in devices:
        if free.get(device.device_id) is None:
            raise DeviceError(
                f"gpu({device.device_id}): NVML does not know how much memory is free; "
                "d2lpar devices shows what it does know"
            )
    return [free[device.device_id] for device in devices]


def report(devices: Sequence) -> Iterator[str]:
    """A line of text for each device: how much memory is free on it."""
    for device, size in zip(devices, free_memory(devices)):
        yield f"free on {device}: {byte_size(size)}"


def host_free() -> int:
    """Bytes free on the host.

    The least of what the system has available, and of what the limits of a container
    and of this process (``ulimit -v``, ``ulimit -d``) leave.
    """
    free = [host_memory().free]
    limits = {"VmSize": resource.RLIMIT_AS, "VmData": resource.RLIMIT_DATA}
    for name, kind in limits.items():
        limit, _ = resource.getrlimit(kind)
        if limit != resource.RLIM_INFINITY:
            free.append(max(0, limit - process_status(name)))
    return min(free)


def process_status(name: str) -> int:
    """Bytes in a line of /proc/self/status: VmRSS, VmHWM, VmData, VmSize."""
    with open("/proc/self/status", encoding="ascii") as f:
        line = next(line for line in f if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
