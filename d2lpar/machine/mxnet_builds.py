"""Which MXNet is installed, and the CUDA libraries that its GPU wheel links.

A wheel, or a library that somebody has built: ``MXNET_LIBRARY_PATH``, MXNet's own
variable, names it, and MXNet's Python files come from the import path. Nothing here
imports MXNet.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from d2lpar.errors import MXNetMissingError

FROM_SOURCE = "built from source"

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


def own_library() -> str | None:
    """The library that MXNET_LIBRARY_PATH names; None for the installed wheel's."""
    return os.environ.get("MXNET_LIBRARY_PATH") or None


def check_own_library() -> None:
    """Raise :class:`MXNetMissingError` unless MXNet will load :func:`own_library`.

    MXNet itself takes a wheel's library instead of one that it does not find.
    """
    library = own_library()
    if library is None:
        return
    if not (os.path.isabs(library) and os.path.isfile(library)):
        raise MXNetMissingError(
            f"MXNET_LIBRARY_PATH={library} is not the absolute path of a file: name "
            "your libmxnet.so, or unset the variable to use a wheel"
        )
    if _python_files() is None:
        raise MXNetMissingError(
            f"MXNET_LIBRARY_PATH={library}: MXNet's Python files are not here; add the "
            "folder `python` of MXNet's sources to PYTHONPATH"
        )


def _python_files() -> Path | None:
    """The folder of MXNet's Python files on the import path."""
    spec = importlib.util.find_spec("mxnet")
    return Path(spec.origin).parent if spec and spec.origin else None


def installed_builds() -> dict[str, str]:
    """Versions of the installed MXNets, as {"mxnet": "1.9.1"}; one is right.

    With MXNET_LIBRARY_PATH, {"built from source": "1.9.1"}: MXNet's Python files say
    the version, and wheels do not count.
    """
    if own_library():
        libinfo = (_python_files() or Path()) / "libinfo.py"
        text = libinfo.read_text("utf-8") if libinfo.is_file() else ""
        version = re.search(r'^__version__ = "(.+)"', text, re.MULTILINE)
        return {FROM_SOURCE: version[1] if version else "version unknown"}
    builds = {}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name == "mxnet" or name.startswith("mxnet-cu"):
            builds.setdefault(name, dist.version)
    return builds


def mxnet_version() -> str:
    """For records: "1.9.1", "1.9.1, built from source" or "not installed"."""
    for name, version in installed_builds().items():
        return f"{version}, {name}" if name == FROM_SOURCE else version
    return "not installed"


def missing_libraries(builds: Iterable[str]) -> dict[str, str]:
    """Load what a GPU wheel links, from NVIDIA's wheels or from the system.

    Returns the libraries that cannot be loaded, each with its remedy; {} when
    ``import mxnet`` will find everything. What a library built from source links is not
    known here.
    """
    if {"mxnet", FROM_SOURCE} & set(builds):
        return {}
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
    """The command that installs MXNet with the extra "cpu" or "cu112" on this Python.

    MXNet's metadata asks for NumPy < 2, which has no build for Python 3.13 and later.
    There pip refuses MXNet, which works nevertheless: the extra brings the rest.
    """
    command = f"pip install 'd2lpar[{extra}]'"
    if tuple(python[:2]) < (3, 13):
        return command
    alone = f"pip install --no-deps {MXNET_OF[extra]}"
    return alone if extra == "cpu" else f"{command} && {alone}"
