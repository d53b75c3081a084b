"""When memory runs out: one line that helps, and the memory back.

A new process is safer: MXNet may use an address that it has freed. Sources: the GPU
wiki ("memory"); MXNet 1.9.1, ``src/storage``, ``src/resource.cc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence

from d2lpar.errors import DeviceError, SettingError, is_from_mxnet
from d2lpar.machine.host import process_status
from d2lpar.memory.estimate import free_memory, largest_batch, lenet_need
from d2lpar.text import byte_size

# Errors of MXNet's storage, of CUDA and its libraries (without memory their handles are
# "not initialized", and no algorithm's workspace fits), and of C++.
WORDS = re.compile(
    "Failed to allocate CPU Memory|cudaMalloc (retry )?failed"
    "|out of memory|ALLOC_FAILED|(CUBLAS|CUDNN|CUSOLVER)_STATUS_NOT_INITIALIZED"
    "|Create (cublas|cusolver) handle failed"
    "|Failed to find any .*convolution algorithm|bad_alloc"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy or MXNet says that memory ran out."""
    if isinstance(error, MemoryError):
        return True
    return is_from_mxnet(error) and WORDS.search(str(error)) is not None


def advice(
    devices: Sequence,
    lenets_batch: int | None = None,
    *,
    said: str = "",
    running: bool = False,
    **sizes: int,
) -> str:
    """Return one line: the devices, what is needed, what is free, what would fit.

    `lenets_batch` is the global batch of a training of LeNet, None of other work, and
    `sizes` are its `n_train` and `n_test`. `said` is the error's line; with `running`
    the next run is in this process.
    """
    where = f"out of memory on {devices[0]}"
    if len(devices) > 1:
        where += f" to {devices[-1]}"
    if said:
        where += f" ({said.removeprefix('out of memory: ')})"
    try:
        free = free_memory(devices)
    except DeviceError:
        return f"{where}: use a smaller batch"
    if lenets_batch is None:
        remedy = "use less data or a smaller batch"
        return f"{where}: {byte_size(min(free))} are free: {remedy}"
    kind = devices[0].device_type
    need = lenet_need(lenets_batch, len(devices), kind=kind, **sizes)
    taken = 0
    if running:
        taken = need.bytes_at("each GPU" if kind == "gpu" else "process")
    lacking = [n - f for n, f in zip(need.by_memory, free)]
    k = lacking.index(max(lacking))  # of the GPUs; CPU contexts share one memory
    fitting = largest_batch(devices, [f + taken for f in free], **sizes)
    if fitting >= need.batch:
        remedy = "it should fit, so something else takes memory: use a smaller batch"
    elif fitting:
        remedy = f"use at most --global-batch-size {fitting}"
    else:
        remedy = "not even a batch of 1 fits: free some of it"
    return (
        f"{where}: a batch of {need.batch} needs about "
        f"{byte_size(need.by_memory[k] - taken)} ({need.largest}, takes "
        f"{byte_size(need.largest_size)}), {byte_size(free[k])} are free on "
        f"{devices[k]}: {remedy}"
    )


def release(devices: Sequence = (), error: BaseException | None = None) -> None:
    """Give back what finished or failed work holds.

    That is the frames of `error` and of its causes, pending errors, and the pools of
    GPUs and of glibc.
    """
    _wait_for_all()  # first: an array is not freed while its failure is unreported
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    gc.collect()
    _wait_for_all()
    for device in devices:
        if device.device_type == "gpu":
            device.empty_cache()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _wait_for_all() -> None:
    """Wait until MXNet has nothing to do, whatever failed."""
    from d2lpar._mxnet import mx, npx

    for _ in range(1000):  # each wait reports one failed operation; then give up
        try:
            return npx.waitall()
        except mx.MXNetError:
            continue


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """Let this process take only `more` bytes of memory within the block.

    By ``RLIMIT_DATA``: private writable memory. Raises :class:`SettingError` unless on
    Linux.
    """
    if not sys.platform.startswith("linux"):
        raise SettingError(f"{sys.platform}: memory can be limited on Linux only")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = process_status("VmData") + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
