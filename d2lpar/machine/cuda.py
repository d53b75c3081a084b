"""The GPUs as the CUDA driver numbers them, and which MXNet's wheels have code for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

# cuobjdump on mxnet-cu112 and mxnet-cu117 shows machine code for these, and no PTX that
# a newer driver could compile. Code for X.y runs on X.z with z >= y.
BUILD_CAPABILITIES = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
BUILD_RANGE = "5.0-8.9"

# CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, _COMPUTE_CAPABILITY_MAJOR and _MINOR
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76


class CudaDevice(NamedTuple):
    """A GPU in CUDA's own order, which is the order of ``mx.gpu(i)``."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int | None = None
    pci_address: str | None = None


def cuda_devices() -> list[CudaDevice]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible; [] without a driver.

    The driver library itself answers: it allocates nothing on a GPU, and its order is
    MXNet's, which NVML's is not.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    return [_cuda_device(cuda, i) for i in range(count.value)]


def _cuda_device(cuda: ctypes.CDLL, i: int) -> CudaDevice:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), i)
    name, address = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetPCIBusId(address, len(address), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    return CudaDevice(
        name=name.value.decode(),
        capability=(attribute(MAJOR), attribute(MINOR)),
        multiprocessors=attribute(MULTIPROCESSORS),
        pci_address=plain_pci_address(address.value),
    )


def plain_pci_address(address: str | bytes) -> str | None:
    """A PCI address in one spelling: NVML and CUDA differ. None for an empty one.

    >>> plain_pci_address(b"00000000:3B:00.0"), plain_pci_address("0000:3b:00.0")
    ('0:3b:0', '0:3b:0')
    """
    text = address.decode() if isinstance(address, bytes) else address
    parts = text.partition(".")[0].split(":")
    return ":".join(f"{int(part, 16):x}" for part in parts) if all(parts) else None


def peer_access(numbers: Sequence[int]) -> bool | None:
    """Whether each of these GPUs can read the memory of each other.

    None for one GPU, and without a driver that answers.
    """
    pairs = [(a, b) for a in numbers for b in numbers if a != b]
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if not pairs or cuda.cuInit(0) != 0:
        return None
    handles = {i: ctypes.c_int() for i in numbers}
    for i, handle in handles.items():
        cuda.cuDeviceGet(ctypes.byref(handle), i)
    can = ctypes.c_int()
    return all(
        cuda.cuDeviceCanAccessPeer(ctypes.byref(can), handles[a], handles[b]) == 0
        and can.value == 1
        for a, b in pairs
    )


def build_has_code_for(capability: tuple[int, int]) -> bool:
    """Whether MXNet's GPU wheels hold machine code that runs on this capability."""
    major, minor = capability
    return any(major == m and minor >= n for m, n in BUILD_CAPABILITIES)
