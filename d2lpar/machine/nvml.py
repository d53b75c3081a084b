"""TODO: one idea."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from d2lpar.errors import DeviceError
from d2lpar.machine import cuda

# GPUs


@contextlib.contextmanager
def nvml_session() -> Iterator:
    """The module pynvml, initialised. Raises :class:`DeviceError` without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        seen = [device.name for device in cuda.cuda_devices()]
        but = f", though CUDA sees {', '.join(seen)}" if seen else ""
        raise DeviceError(
            f"no GPU can be read ({error}){but}: where there is an NVIDIA GPU, install "
            "its driver, or pass it into the container"
        ) from None
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(nvml, query: str, *args):
    """The answer to an NVML query, or None: a GPU need not support every one."""
    with contextlib.suppress(nvml.NVMLError):
        answer = getattr(nvml, query)(*args)
        return answer.decode() if isinstance(answer, bytes) else answer
    return None


def gpu_handles(nvml) -> dict[int, object]:
    """NVML's handles of the GPUs that answer, by NVML's index."""
    count = ask(nvml, "nvmlDeviceGetCount") or 0
    handles = {i: ask(nvml, "nvmlDeviceGetHandleByIndex", i) for i in range(count)}
    return {i: handle for i, handle in handles.items() if handle is not None}


def _bus_of(nvml, gpu) -> str | None:
    pci = ask(nvml, "nvmlDeviceGetPciInfo", gpu)
    return pci and plain_bus(pci.busId)


def plain_bus(bus: str | bytes) -> str:
    """A PCI address in one spelling: NVML and CUDA have different ones.

    >>> plain_bus(b"00000000:3B:00.0"), plain_bus("0000:3b:00.0")
    ('0:3b:0', '0:3b:0')
    """
    text = bus.decode() if isinstance(bus, bytes) else bus
    domain, number, place = text.rstrip("\0").split(":")
    return ":".join(f"{int(part, 16):x}" for part in (domain, number, place[:2]))
