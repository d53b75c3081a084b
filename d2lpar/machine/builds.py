"""Which MXNet is installed, and what is below it: CUDA's libraries and the driver.

MXNet is a wheel, or a library that somebody has built: ``MXNET_LIBRARY_PATH``, MXNet's
own variable, names it, and MXNet's Python files come from the import path. Nothing here
imports MXNet.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from d2lpar.errors import DeviceError, MXNetMissingError

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

# cuobjdump on mxnet-cu112 and mxnet-cu117 shows machine code for these, and no PTX that
# a newer driver could compile. Code for X.y runs on X.z with z >= y.
BUILD_CAPABILITIES = ((5, 0), (6, 0), (7, 0), (8, 0), (8, 6))
BUILD_RANGE = "5.0-8.9"

# CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, _COMPUTE_CAPABILITY_MAJOR and _MINOR
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76


# MXNet


def own_library() -> str | None:
    """The library that MXNET_LIBRARY_PATH names; None for the installed wheel's."""
    return os.environ.get("MXNET_LIBRARY_PATH") or None


def check_installed() -> str:
    """Return the name of the MXNet build that Python will import.

    Raises :class:`MXNetMissingError` if there is none, for two that overwrite each
    other, and for :func:`own_library` unless MXNet will load it.
    """
    library = own_library()
    if library:
        _check_own_library(library)
    builds = list(installed_builds())
    if not builds:
        raise MXNetMissingError(
            f"MXNet is not installed: {install_command('cpu')} (any machine) or "
            f"{install_command('cu112')} (NVIDIA GPU, compute capability 5.0-8.9; for "
            "others see docs/installing.md)"
        )
    if len(builds) > 1:
        raise MXNetMissingError(
            f"{' and '.join(builds)} are both installed and overwrite each other: "
            f"pip uninstall {' '.join(builds)}, then install one again"
        )
    return builds[0]


def _check_own_library(library: str) -> None:
    # MXNet itself takes a wheel's library instead of one that it does not find.
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
    builds: dict[str, str] = {}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name == "mxnet" or name.startswith("mxnet-cu"):
            builds.setdefault(name, dist.version)
    return builds


def mxnet_version() -> str:
    """For records: "1.9.1", "1.9.1, built from source" or "not installed"."""
    builds = installed_builds()
    if not builds:
        return "not installed"
    name, version = next(iter(builds.items()))
    return f"{version}, {name}" if name == FROM_SOURCE else version


def missing_libraries(build: str) -> dict[str, str]:
    """Load what a GPU wheel links, from NVIDIA's wheels or from the system.

    Returns the libraries that cannot be loaded, each with its remedy; {} when
    ``import mxnet`` will find everything. What a library built from source links is not
    known here.
    """
    if build in ("mxnet", FROM_SOURCE):
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


def install_command(extra: str, python: tuple[int, int] = sys.version_info[:2]) -> str:
    """The command that installs MXNet with the extra "cpu" or "cu112" on this Python.

    MXNet's metadata asks for NumPy < 2, which has no build for Python 3.13 and later.
    There pip refuses MXNet, which works nevertheless: the extra brings the rest.
    """
    command = f"pip install 'd2lpar[{extra}]'"
    if python < (3, 13):
        return command
    alone = f"pip install --no-deps {MXNET_OF[extra]}"
    return alone if extra == "cpu" else f"{command} && {alone}"


def build_has_code_for(capability: tuple[int, int]) -> bool:
    """Whether MXNet's GPU wheels hold machine code that runs on this capability."""
    major, minor = capability
    return any(major == m and minor >= n for m, n in BUILD_CAPABILITIES)


def tf32(environ: Mapping[str, str]) -> bool:
    """Whether NVIDIA's libraries may compute float32 in TF32."""
    return environ.get("NVIDIA_TF32_OVERRIDE") != "0"


def gpu_build(numbers: Sequence[int], library: ctypes.CDLL | None = None) -> dict:
    """MXNet's build and settings on the GPUs of these numbers, for a record.

    `library` is MXNet's: the CUDA and cuDNN that it links are asked through it.
    "autotune" is MXNET_CUDNN_AUTOTUNE_DEFAULT. "peer_access" is whether the GPUs read
    each other's memory (None for one GPU), once a "device" kvstore has reduced. Every
    fact that cannot be found out is None; nothing here raises.
    """
    builds = [
        name if name == FROM_SOURCE else f"{name} {version}"
        for name, version in installed_builds().items()
    ]
    driver = None
    with contextlib.suppress(DeviceError, ImportError), nvml_session() as nvml:
        driver = ask(nvml.nvmlSystemGetDriverVersion)
    peers = peer_access(numbers)
    allowed = os.environ.get("MXNET_ENABLE_GPU_P2P", "1") != "0"
    return {
        "build": " and ".join(builds) or None,
        "cuda": _cuda_version(library),
        "cudnn": _cudnn_version(library),
        "driver": driver,
        "autotune": os.environ.get("MXNET_CUDNN_AUTOTUNE_DEFAULT", "1"),
        "tf32": tf32(os.environ),
        "peer_access": peers and allowed,
        "deterministic": os.environ.get("MXNET_ENFORCE_DETERMINISM", "0") != "0",
        "cuda_graphs": os.environ.get("MXNET_ENABLE_CUDA_GRAPHS", "0") not in ("", "0"),
    }


# A handle finds the functions of the libraries that it links, too.
def _cuda_version(library: ctypes.CDLL | None) -> str | None:
    major, minor = ctypes.c_int(), ctypes.c_int()
    # Not linked, or linked without its names.
    with contextlib.suppress(AttributeError, OSError):
        if library and library.cudaRuntimeGetVersion(ctypes.byref(major)) == 0:
            return f"{major.value // 1000}.{major.value % 1000 // 10}"
    # nvcc links the runtime statically unless told otherwise; NVRTC's library has the
    # version of the CUDA that stands beside it.
    parts = ctypes.byref(major), ctypes.byref(minor)
    with contextlib.suppress(AttributeError, OSError):
        if library and library.nvrtcVersion(*parts) == 0:
            return f"{major.value}.{minor.value}"
    return None


def _cudnn_version(library: ctypes.CDLL | None) -> str | None:
    with contextlib.suppress(AttributeError, OSError):
        number = int(library.cudnnGetVersion()) if library else 0
        major = 10_000 if number >= 90_000 else 1_000  # 90100 is 9.1.0, 8902 is 8.9.2
        parts = (number // major, number % major // 100, number % 100)
        return ".".join(map(str, parts)) if number else None
    return None


# The driver


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
    cuda, count = _driver_library(), ctypes.c_int()
    if cuda is None or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return []
    devices = []
    for i in range(count.value):
        device, value = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), i)
        name = ctypes.create_string_buffer(128)
        cuda.cuDeviceGetName(name, len(name), device)
        address = ctypes.create_string_buffer(32)
        cuda.cuDeviceGetPCIBusId(address, len(address), device)
        attributes = {}
        for number in (MAJOR, MINOR, MULTIPROCESSORS):
            cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device)
            attributes[number] = value.value
        devices.append(
            CudaDevice(
                name=name.value.decode(),
                capability=(attributes[MAJOR], attributes[MINOR]),
                multiprocessors=attributes[MULTIPROCESSORS],
                pci_address=plain_pci_address(address.value),
            )
        )
    return devices


def _driver_library() -> ctypes.CDLL | None:
    """CUDA's driver library, initialised; None where it or a GPU is missing."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return cuda if cuda.cuInit(0) == 0 else None


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
    cuda, can = _driver_library(), ctypes.c_int()
    pairs = [(a, b) for a in numbers for b in numbers if a != b]
    if cuda is None or not pairs:
        return None
    handles = {i: ctypes.c_int() for i in numbers}
    for i, handle in handles.items():
        cuda.cuDeviceGet(ctypes.byref(handle), i)
    return all(
        cuda.cuDeviceCanAccessPeer(ctypes.byref(can), handles[a], handles[b]) == 0
        and can.value == 1
        for a, b in pairs
    )


@contextlib.contextmanager
def nvml_session() -> Iterator:
    """The module pynvml, initialised. Raises :class:`DeviceError` without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        names = ", ".join(device.name for device in cuda_devices())
        but = f", though CUDA sees {names}" if names else ""
        raise DeviceError(
            f"no GPU can be read ({error}){but}: where there is an NVIDIA GPU, install "
            "its driver, or pass it into the container"
        ) from None
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(query: Callable, *args):
    """The answer to a query of NVML, text as str; None where it is not supported."""
    try:
        answer = query(*args)
        return answer.decode() if isinstance(answer, bytes) else answer
    except Exception:
        return None
