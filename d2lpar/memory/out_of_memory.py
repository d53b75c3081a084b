"""When memory runs out: one line that helps, and the memory back for the next run.

After a failure :func:`release` lets go of what can hold memory: the error, whose
traceback has the frames that failed, with their arrays; pending work, which fails in
turn; and a GPU's pool. More stays until the process ends, among it the temporary
buffers of CPU contexts and CUDA's context; chapter 11 measures how much.

A new process is safer, and `d2lpar run` starts one for each measurement: when MXNet
cannot enlarge a temporary buffer, it continues with the old address, which it has
freed. On a GPU CUDA keeps the error of a failed allocation, which MXNet takes for the
failure of later kernels. At a container's limit, or when the system's memory ends,
Linux kills the process (signal 9), and only its parent can say so.

Source: the GPU wiki ("memory"); MXNet 1.9.1, ``src/storage``, ``src/resource.cc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
import resource
import traceback
from collections.abc import Iterator, Sequence

from d2lpar.errors import DeviceError, first_line, is_from_mxnet
from d2lpar.machine.host import process_status
from d2lpar.memory.estimate import LayersOf, estimate, free_memory, largest_batch
from d2lpar.text import byte_size

# In errors of MXNet's CPU storage, of its pool on a GPU, of CUDA and its libraries,
# whose handles are "not initialized" without memory, of cuDNN when no algorithm's
# workspace fits, and of C++.
WORDS = re.compile(
    "Failed to allocate CPU Memory|cudaMalloc (retry )?failed"
    "|out of memory|ALLOC_FAILED|(CUBLAS|CUDNN|CUSOLVER)_STATUS_NOT_INITIALIZED"
    "|Create (cublas|cusolver) handle failed"
    "|Failed to find any .*convolution algorithm|bad_alloc"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, NumPy's, or MXNet's."""
    if isinstance(error, MemoryError):
        return True
    return is_from_mxnet(error) and WORDS.search(str(error)) is not None


def explain(
    error: BaseException,
    layers: LayersOf | None,
    settings: dict,
    devices: Sequence,
    data: dict | None = None,
) -> str | None:
    """One line for an allocation that failed in this process; None for other errors.

    Releases first what the failed work holds (:func:`release`), so that the memory it
    calls free is what the next run can have. The other arguments are
    :func:`d2lpar.memory.estimate.report`'s.
    """
    if not is_out_of_memory(error):
        return None
    reason = first_line(error)
    release(devices, error)
    return advice(layers, settings, devices, data, said=reason, running=True)


def advice(
    layers: LayersOf | None,
    settings: dict,
    devices: Sequence,
    data: dict | None = None,
    *,
    said: str = "",
    running: bool = False,
) -> str:
    """One line: the devices, what is needed, what is free, and what would fit.

    `said` is the line of the error. With `running` the next run is in this process,
    which has its libraries and data already, not in a new one.
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
    if layers is None:
        size = byte_size(min(free))
        return f"{where}: {size} are free: use less data or a smaller batch"
    need = estimate(layers, settings, len(devices), data, devices[0].device_type)
    taken = need.before_training if running else 0
    lacking = [n - f for n, f in zip(need.by_memory, free)]
    k = lacking.index(max(lacking))  # of the GPUs; CPU contexts share one memory
    fitting = largest_batch(layers, settings, devices, [f + taken for f in free], data)
    if fitting >= need.batch:
        remedy = "it should fit, so something else takes memory: use a smaller batch"
    elif fitting:
        remedy = f"use at most --global-batch-size {fitting}"
    else:
        remedy = "not even a batch of 1 fits: free some of it"
    if "micro_batch_size" in settings:
        remedy += ", or a smaller --micro-batch-size"
    return (
        f"{where}: a batch of {need.batch} needs about "
        f"{byte_size(need.by_memory[k] - taken)} ({need.largest}, takes "
        f"{byte_size(need.largest_size)}), {byte_size(free[k])} are free on "
        f"{devices[k]}: {remedy}"
    )


def release(devices: Sequence = (), error: BaseException | None = None) -> None:
    """Give back what finished or failed work holds, so that the next run can have it.

    Clears the frames of `error` and of its causes; collects cycles; waits for all work,
    and drops the errors of what failed with it; empties the pools of GPUs among
    `devices`; makes the C library return what it keeps (glibc).
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
    """Within the block, this process can take only `more` bytes beyond what it has.

    For demonstrations and tests. The kernel enforces it, by ``RLIMIT_DATA``: on Linux
    all private writable memory, touched or not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = process_status("VmData") + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
