"""NVML, the library behind nvidia-smi: a session, and queries that may fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from d2lpar.errors import DeviceError
from d2lpar.machine.cuda import cuda_devices


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
    """The answer to a query of NVML, or None where it fails for whatever reason.

    A GPU or a driver need not support every query. Text is str, also where NVML has
    bytes.
    """
    try:
        answer = query(*args)
        return answer.decode() if isinstance(answer, bytes) else answer
    except Exception:
        return None


def gpu_handles(nvml) -> dict[int, object]:
    """NVML's handles of the GPUs that answer, by NVML's index."""
    count = ask(nvml.nvmlDeviceGetCount) or 0
    handles = {i: ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)}
    return {i: handle for i, handle in handles.items() if handle is not None}
