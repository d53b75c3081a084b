"""When memory runs out: one line that helps, and the memory back for the next run.

On a CPU, MXNet 1.9.1 has no pool: an array's memory goes to the C library once its last
reference is gone and the work on it is done, and from there to the system, at once if
the array is large, otherwise with ``malloc_trim``. On a GPU it goes to a pool, which
MXNet empties when an allocation fails, and by ``ctx.empty_cache()``.

After a failure three things hold memory, and :func:`release` ends each: the error,
whose traceback has the frames that failed, with their arrays; pending work, which fails
in turn; and pools. The temporary buffers of CPU contexts and CUDA's context stay until
the process ends.

**Better a new process.** To enlarge a temporary buffer, MXNet frees the old one and
asks for a new one; if that fails it continues with the old address, so that later work
may write where it must not. So `d2lpar run` measures in a fresh process each time. At a
container's limit, or when the system's memory ends, Linux kills the process (signal 9),
and only its parent can say so.

Source: the GPU wiki ("memory"); MXNet 1.9.1, ``src/storage``, ``src/resource.cc``.
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

from d2lpar.errors import DeviceError, first_line, is_from_mxnet
from d2lpar.memory.estimate import estimate, largest_batch
from d2lpar.memory.free import free_memory, process_status
from d2lpar.memory.shapes import LayersOf
from d2lpar.text import byte_size

# In errors of MXNet's CPU storage, of its pool on a GPU, of CUDA and its libraries
# (CUBLAS_STATUS_ALLOC_FAILED, ...; one whose handle finds no memory is "not
# initialized"), of cuDNN when no algorithm's workspace fits, and of C++.
WORDS = re.compile(
    "Failed to allocate CPU Memory|cudaMalloc failed|cudaMalloc retry failed"
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
    """One line: the device, the largest array, what is free, and what would fit.

    `said` is the line of the error, in which NumPy names the array; MXNet does not, so
    the batch's largest is named instead. With `running` the next run is in this
    process, not in a new one.
    """
    device = str(devices[0]) + (f" to {devices[-1]}" if len(devices) > 1 else "")
    reason = f" ({said})" if said else ""
    try:
        free = free_memory(devices)
    except DeviceError:
        return f"out of memory on {device}{reason}: use a smaller batch"
    if layers is None:
        return (
            f"out of memory on {device}{reason}, {byte_size(min(free))} are free: use "
            "less data or a smaller batch"
        )
    need = estimate(layers, settings, len(devices), data, devices[0].device_type)
    needed = need.by_memory(running)
    tightest = min(range(len(needed)), key=lambda k: free[k] - needed[k])
    if need.kind == "gpu":
        device = str(devices[tightest])
    fitting = largest_batch(layers, settings, devices, free, data, running=running)
    if fitting >= need.batch:
        remedy = "it should fit, so something else takes memory: use a smaller batch"
    elif fitting:
        remedy = f"use at most --global-batch-size {fitting}"
    else:
        remedy = "not even a batch of 1 fits: free some of it"
    if "micro_batch_size" in settings:
        remedy += ", or a smaller --micro-batch-size"
    array = f"{need.largest}, takes {byte_size(need.largest_size)}"
    if numpy_says := re.search("Unable to allocate .*", said):
        array = numpy_says[0]
    return (
        f"out of memory on {device}: the batch of {need.batch} needs about "
        f"{byte_size(needed[tightest])} ({array}), {byte_size(free[tightest])} are "
        f"free: {remedy}"
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
            _forget_cuda_errors(device)
            device.empty_cache()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _forget_cuda_errors(device) -> None:
    """Let a GPU work again after a failed allocation.

    CUDA keeps the error for the thread of the engine that met it, and MXNet takes it
    for the failure of each later kernel. Thrust, which sorts for ``np.unique``, resets
    it; repeated, because the engine chooses one of a GPU's threads each time.
    """
    from d2lpar._mxnet import mx, np

    for _ in range(30):
        with contextlib.suppress(mx.MXNetError):
            np.unique(np.array([1.0, 2.0], ctx=device)).wait_to_read()


def _wait_for_all() -> None:
    """Wait until MXNet has nothing to do, whatever failed."""
    if "mxnet" not in sys.modules:
        return
    from d2lpar._mxnet import mx, npx

    for _ in range(1000):  # each wait reports one failure; stop some time
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
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
