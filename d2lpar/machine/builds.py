"""The installed MXNet, the CUDA libraries that it needs, and its facts in a record.

MXNet is a wheel or the library of ``MXNET_LIBRARY_PATH``; nothing imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from d2lpar.errors import MXNetMissingError
from d2lpar.machine.gpus import ask_nvml, peer_access

FROM_SOURCE = "built from source"

# What libmxnet.so of the cu112 wheel links, each after the libraries that it needs
# itself. The extra `cu112` brings all but the driver's libcuda.
GPU_LIBRARIES = (
    "libcudart.so.11.0", "libnvrtc.so.11.2", "libnvToolsExt.so.1", "libcublasLt.so.11",
    "libcublas.so.11", "libcufft.so.10", "libcurand.so.10", "libcusolver.so.11",
    "libcudnn.so.8", "libnccl.so.2", "libcuda.so.1",
)  # fmt: skip

# The capabilities of GPUs that a wheel has code for, by cuobjdump and MXNet 2's name;
# code for X.y runs on X.z, z >= y. Neither has PTX that a newer driver could compile.
HAS_CODE_FOR = {"cu112": ((5, 0), (8, 9)), "CUDA 13": ((8, 0), (12, 9))}


def check_installed() -> str:
    """Return the MXNet build that Python will import, or raise MXNetMissingError."""
    library = os.environ.get("MXNET_LIBRARY_PATH")
    # MXNet itself takes a wheel's library instead of one that it does not find.
    if library and not (os.path.isabs(library) and os.path.isfile(library)):
        raise MXNetMissingError(
            f"MXNET_LIBRARY_PATH={library} is not the absolute path of a file: "
            "name your libmxnet.so, or unset the variable to use a wheel"
        )
    builds = list(installed_builds())
    if not builds:
        raise MXNetMissingError(
            f"MXNet is not installed: {install_command('cpu')} (CPUs) or "
            f"{install_command('cu112')} (NVIDIA GPU, compute capability 5.0-8.9; "
            "newer GPUs and Macs: docs/installing.md)"
        )
    if len(builds) > 1:
        raise MXNetMissingError(
            f"{' and '.join(builds)} are both installed and overwrite each other: "
            f"pip uninstall {' '.join(builds)}, then install one again"
        )
    return builds[0]


def installed_builds() -> dict[str, str]:
    """Return the versions of the installed MXNets, as {"mxnet": "1.9.1"}.

    With MXNET_LIBRARY_PATH only {"built from source": "1.9.1"}.
    """
    library = os.environ.get("MXNET_LIBRARY_PATH")
    spec = importlib.util.find_spec("mxnet") if library else None
    if spec and spec.origin:
        libinfo = Path(spec.origin).with_name("libinfo.py").read_text("utf-8")
        return {FROM_SOURCE: re.findall('^__version__ = "(.+)"', libinfo, re.M)[0]}
    builds: dict[str, str] = {}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name == "mxnet" or name.startswith("mxnet-cu"):
            builds.setdefault(name, dist.version)
    return builds


def mxnet_version() -> str:
    """Return "1.9.1", "1.9.1, built from source" or "not installed", for records."""
    for name, version in installed_builds().items():
        return f"{version}, {name}" if name == FROM_SOURCE else version
    return "not installed"


def missing_libraries(build: str) -> list[str]:
    """Load what a GPU wheel links; return the names of what cannot be loaded."""
    if build in ("mxnet", FROM_SOURCE):
        return []
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in nvidia.submodule_search_locations or []] if nvidia else []
    missing = []
    for soname in GPU_LIBRARIES:
        in_wheels = [str(f) for root in roots for f in root.glob(f"*/lib/{soname}")]
        try:
            ctypes.CDLL((in_wheels or [soname])[0], mode=ctypes.RTLD_GLOBAL)
        except OSError:
            missing.append(soname)
    return missing


def install_command(extra: str) -> str:
    """Return the command that installs MXNet with the extra "cpu" or "cu112"."""
    command = f"pip install -e '.[{extra}]'"
    # MXNet's metadata asks for NumPy < 2, which Python 3.13 and later do not have.
    if sys.version_info < (3, 13):
        return command
    if extra == "cpu":
        return "pip install --no-deps mxnet==1.9.1"
    return f"{command} && pip install --no-deps mxnet-{extra}==1.9.1"


def remedy_for(capability: tuple[int, int]) -> str | None:
    """Return what runs on GPUs of a capability; None if the installed MXNet does."""
    fit = [k for k, (low, high) in HAS_CODE_FOR.items() if low <= capability <= high]
    for name, version in installed_builds().items():
        wheel = "cu112" if name != "mxnet" else "CUDA 13" if "+cu" in version else ""
        if wheel in fit or name == FROM_SOURCE:  # which d2lpar doctor tries
            return None
    if "cu112" in fit:
        return f"pip uninstall mxnet && {install_command('cu112')}"
    cuda_13 = "the wheel of MXNet 2 for CUDA 13 (docs/installing.md)"
    return cuda_13 if fit else "another GPU"


def gpu_build(numbers: Sequence[int], library: ctypes.CDLL) -> dict:
    """Return MXNet's build and settings on these GPUs; `library` is asked for cuDNN."""
    ((name, version),) = installed_builds().items()
    allowed = os.environ.get("MXNET_ENABLE_GPU_P2P", "1") != "0"
    return {
        "build": name if name == FROM_SOURCE else f"{name} {version}",
        "cudnn": _cudnn_version(library),
        "driver": ask_nvml("nvmlSystemGetDriverVersion"),
        "autotune": os.environ.get("MXNET_CUDNN_AUTOTUNE_DEFAULT", "1"),
        "tf32": os.environ.get("NVIDIA_TF32_OVERRIDE") != "0",
        "peer_access": peer_access(numbers) and allowed,
        "deterministic": os.environ.get("MXNET_ENFORCE_DETERMINISM", "0") != "0",
        "cuda_graphs": os.environ.get("MXNET_ENABLE_CUDA_GRAPHS", "0") not in ("", "0"),
    }


def _cudnn_version(library: ctypes.CDLL) -> str | None:
    with contextlib.suppress(AttributeError):
        number = int(library.cudnnGetVersion())
        major = 10_000 if number >= 90_000 else 1_000  # 90100 is 9.1.0, 8902 is 8.9.2
        return f"{number // major}.{number % major // 100}.{number % 100}"
    return None
