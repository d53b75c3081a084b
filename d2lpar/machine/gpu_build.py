"""MXNet build and GPU settings, for records.

Every fact that cannot be found out is None; nothing here raises.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from d2lpar.errors import DeviceError
from d2lpar.machine import cuda
from d2lpar.machine.cards import ask, nvml_session
from d2lpar.machine.mxnet_builds import FROM_SOURCE, installed_builds


def gpu_build(numbers: Sequence[int], library: ctypes.CDLL | None = None) -> dict:
    """The facts for a record on the GPUs of these numbers, in CUDA's order.

    `library` is MXNet's: the CUDA and cuDNN that it links are asked through it.
    "autotune" is MXNET_CUDNN_AUTOTUNE_DEFAULT. "peer_access" is whether the GPUs read
    each other's memory (None for one GPU), once a "device" kvstore has reduced.
    """
    builds = [
        name if name == FROM_SOURCE else f"{name} {version}"
        for name, version in installed_builds().items()
    ]
    peers = cuda.peer_access(numbers)
    allowed = os.environ.get("MXNET_ENABLE_GPU_P2P", "1") != "0"
    return {
        "build": " and ".join(builds) or None,
        "cuda": _cuda_runtime(library),
        "cudnn": _cudnn(library),
        "driver": _driver(),
        "autotune": os.environ.get("MXNET_CUDNN_AUTOTUNE_DEFAULT", "1"),
        "tf32": tf32(os.environ),
        "peer_access": peers and allowed,
        "deterministic": os.environ.get("MXNET_ENFORCE_DETERMINISM", "0") != "0",
    }


def tf32(environ: Mapping[str, str]) -> bool:
    """Whether NVIDIA's libraries may compute float32 in TF32."""
    return environ.get("NVIDIA_TF32_OVERRIDE") != "0"


# A handle finds the functions of the libraries that it links, too.
def _cuda_runtime(library: ctypes.CDLL | None) -> str | None:
    version = ctypes.c_int()
    with suppress(AttributeError, OSError):  # not linked, or linked without its names
        if library and library.cudaRuntimeGetVersion(ctypes.byref(version)) == 0:
            return f"{version.value // 1000}.{version.value % 1000 // 10}"
    # nvcc links the runtime statically unless told otherwise; NVRTC's library has the
    # version of the CUDA that stands beside it.
    major, minor = ctypes.c_int(), ctypes.c_int()
    with suppress(AttributeError, OSError):
        parts = (ctypes.byref(major), ctypes.byref(minor))
        if library and library.nvrtcVersion(*parts) == 0:
            return f"{major.value}.{minor.value}"
    return None


def _cudnn(library: ctypes.CDLL | None) -> str | None:
    with suppress(AttributeError, OSError):
        number = int(library.cudnnGetVersion()) if library else 0
        major = 10_000 if number >= 90_000 else 1_000  # 90100 is 9.1.0, 8902 is 8.9.2
        parts = (number // major, number % major // 100, number % 100)
        return ".".join(map(str, parts)) if number else None
    return None


def _driver() -> str | None:
    with suppress(DeviceError, ImportError), nvml_session() as nvml:
        return ask(nvml.nvmlSystemGetDriverVersion)
    return None
