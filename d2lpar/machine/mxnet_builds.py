"""Which MXNet is installed, and the CUDA libraries that its GPU build links.

Neither question needs MXNet: ``d2lpar doctor`` asks both where ``import mxnet`` fails.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

# What libmxnet.so of the cu112 wheel links, each after the libraries that it needs
# itself, with the wheel that brings it. The driver brings libcuda.
GPU_LIBRARIES = {
    "libcudart.so.11.0": "nvidia-cuda-runtime-cu11",
    "libnvrtc.so.11.2": "nvidia-cuda-nvrtc-cu11",
    "libnvToolsExt.so.1": "nvidia-nvtx-cu11",
    "libcublasLt.so.11": "nvidia-cublas-cu11",
    "libcublas.so.11": "nvidia-cublas-cu11",
    "libcufft.so.10": "nvidia-cufft-cu11",
    "libcurand.so.10": "nvidia-curand-cu11",
    "libcusolver.so.11": "nvidia-cusolver-cu11",
    "libcudnn.so.8": '"nvidia-cudnn-cu11<9"',
    "libnccl.so.2": "nvidia-nccl-cu11",
    "libcuda.so.1": None,
}

MXNET_OF = {"cpu": "mxnet==1.9.1", "cu112": "mxnet-cu112==1.9.1"}


def installed_builds() -> dict[str, str]:
    """Versions of the installed MXNets, as {"mxnet": "1.9.1"}; one is right."""
    builds = {}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name == "mxnet" or name.startswith("mxnet-cu"):
            builds.setdefault(name, dist.version)
    return builds


def load_gpu_libraries() -> dict[str, str]:
    """Load what the GPU build links, from NVIDIA's wheels or from the system.

    Returns the libraries that cannot be loaded, each with its remedy; {} when
    ``import mxnet`` will find everything.
    """
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in nvidia.submodule_search_locations or []] if nvidia else []
    missing = {}
    for soname, wheel in GPU_LIBRARIES.items():
        in_wheels = [str(f) for root in roots for f in root.glob(f"*/lib/{soname}")]
        try:
            ctypes.CDLL((in_wheels or [soname])[0], mode=ctypes.RTLD_GLOBAL)
        except OSError:
            remedy = f"pip install {wheel}" if wheel else "install the NVIDIA driver"
            missing[soname] = remedy
    return missing


def install_command(extra: str, python: tuple[int, ...] = sys.version_info) -> str:
    """What installs the MXNet of the extra "cpu" or "cu112" on this version of Python.

    MXNet's metadata asks for NumPy < 2, which has no build for Python 3.13 and later.
    There a resolver refuses MXNet, which works nevertheless: the extra brings the rest.
    """
    command = f"pip install 'd2lpar[{extra}]'"
    if tuple(python[:2]) < (3, 13):
        return command
    alone = f"pip install --no-deps {MXNET_OF[extra]}"
    return alone if extra == "cpu" else f"{command} && {alone}"
