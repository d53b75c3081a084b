"""The NVIDIA GPUs here, as CUDA's driver and NVML see them.

The driver has the order of ``mx.gpu(i)``, and NVML has more facts. Nothing is allocated
on a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple


class CudaDevice(NamedTuple):
    """Describe a GPU; in a list, ``mx.gpu(i)`` is the i-th."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int = 0
    pci_address: str = ""

    def memory(self) -> tuple[int | None, int | None]:
        """Return the bytes of its memory, in all and free; None if NVML has none."""
        gpu = ask_nvml("nvmlDeviceGetHandleByPciBusId", self.pci_address)
        memory = ask_nvml("nvmlDeviceGetMemoryInfo", gpu)
        return (memory.total, memory.free) if memory else (None, None)


def cuda_devices() -> list[CudaDevice]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible; [] without a driver."""
    cuda, count = _driver_library(), ctypes.c_int()
    if cuda is None or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    devices = []
    for i in range(count.value):
        device, value = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), i)
        name, address = (ctypes.create_string_buffer(128) for _ in range(2))
        cuda.cuDeviceGetName(name, len(name), device)
        cuda.cuDeviceGetPCIBusId(address, len(address), device)
        attributes = []
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR, _MULTIPROCESSOR_COUNT
        for number in (75, 76, 16):
            cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            attributes.append(value.value)
        major, minor, multiprocessors = attributes
        model, pci = name.value.decode(), address.value.decode()
        devices.append(CudaDevice(model, (major, minor), multiprocessors, pci))
    return devices


def _driver_library() -> ctypes.CDLL | None:
    """Load and initialise CUDA's driver library; None if it or a GPU is missing."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return cuda if cuda.cuInit(0) == 0 else None


def peer_access(numbers: Sequence[int]) -> bool | None:
    """Return whether these GPUs can read each other's memory; None for one GPU."""
    cuda, can = _driver_library(), ctypes.c_int()
    if cuda is None or len(numbers) < 2:
        return None
    handles = [ctypes.c_int() for _ in numbers]
    for handle, i in zip(handles, numbers):
        cuda.cuDeviceGet(ctypes.byref(handle), i)
    return all(
        cuda.cuDeviceCanAccessPeer(ctypes.byref(can), a, b) == 0 and can.value == 1
        for a, b in itertools.permutations(handles, 2)
    )


def ask_nvml(query: str, *args: Any) -> Any:
    """Call a function of pynvml by its name; return None where NVML has no answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return getattr(pynvml, query)(*args)
    except pynvml.NVMLError:
        return None


def why_no_gpu() -> str:
    """Return why CUDA sees no GPU: how many NVML sees, and the remedies."""
    return (
        f"CUDA sees no GPU (NVML sees {ask_nvml('nvmlDeviceGetCount') or 'none'}): "
        "where there is an NVIDIA GPU, install its driver, pass it into the container, "
        "or unset CUDA_VISIBLE_DEVICES"
    )
