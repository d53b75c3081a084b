"""NVML, the library behind nvidia-smi: a session, and queries that may fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from d2lpar.errors import DeviceError
from d2lpar.machine.cuda import cuda_devices, plain_pci_address


@contextlib.contextmanager
def nvml_session() -> Iterator:
    """The module pynvml, initialised. Raises :class:`DeviceError` without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        seen = [device.name for device in cuda_devices()]
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


def ask(query: Callable, *args):
    """The answer to a query of NVML, or None where it fails for whatever reason.

    A GPU or a driver need not support every query. Text is str, also where NVML has
    bytes.
    """
    try:
        answer = query(*args)
        return answer.decode() if isinstance(answer, bytes) else answer
    except Exception:
        return None


def as_number(constant: int | tuple[int]) -> int:
    """A constant of pynvml: nvidia-ml-py 13 has tuples among them, by a stray comma."""
    return constant[0] if isinstance(constant, tuple) else constant


def gpu_handles(nvml) -> dict[int, object]:
    """NVML's handles of the GPUs that answer, by NVML's index."""
    count = ask(nvml.nvmlDeviceGetCount) or 0
    handles = {i: ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)}
    return {i: handle for i, handle in handles.items() if handle is not None}


def pci_address(nvml, gpu) -> str | None:
    """Where a GPU is, spelt as :func:`~d2lpar.machine.cuda.plain_pci_address` does."""
    pci = ask(nvml.nvmlDeviceGetPciInfo, gpu)
    return pci and plain_pci_address(pci.busId)
