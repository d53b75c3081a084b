"""TODO: one idea."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

# cuobjdump on mxnet-cu112 and mxnet-cu117: machine code for these, and no PTX that a
# newer driver could compile. Code for X.y runs on X.z with z >= y.
BUILD_CAPABILITIES = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
BUILD_RANGE = "5.0-8.9"


class CudaDevice(NamedTuple):
    """A GPU in CUDA's own order, which is the order of ``mx.gpu(i)``."""

    name: str
    capability: tuple[int, int]


def cuda_devices() -> list[CudaDevice]:
    """GPUs as the CUDA driver numbers them, CUDA_VISIBLE_DEVICES counted in.

    Asks the driver library itself: it allocates nothing on a GPU, and its order is the
    one that MXNet sees (NVML's is not). Empty without a driver.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    found = []
    for i in range(count.value):
        device, number = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), i)
        name = ctypes.create_string_buffer(128)
        cuda.cuDeviceGetName(name, len(name), device)
        capability = []
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
        for attribute in (75, 76):
            cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
            capability.append(number.value)
        found.append(CudaDevice(name.value.decode(), (capability[0], capability[1])))
    return found


def build_has_code_for(capability: tuple[int, int]) -> bool:
    """Whether MXNet's GPU wheels hold machine code that runs on this capability."""
    major, minor = capability
    return any(major == m and minor >= n for m, n in BUILD_CAPABILITIES)
