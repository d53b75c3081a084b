"""Where memory runs out: one line that helps, and the memory back for the next run.

**What is returned when.** On a CPU, MXNet 1.9.1 has no pool. An array's memory goes to
the C library once its last reference has gone and the work on it is done, and on to the
system: at once if the array is large, else with ``malloc_trim``. On a GPU it goes to a
pool (``MXNET_GPU_MEM_POOL_TYPE``: Naive keeps pieces by their size, Round by powers of
2, Unpooled none), which is emptied when an allocation fails, which is then tried again;
when less than ``MXNET_GPU_MEM_POOL_RESERVE`` = 5 % are free; and by
``ctx.empty_cache()`` (which a CPU context refuses).

After a failure three things hold on to memory, and :func:`release` ends each: the
error, whose traceback has the frames that failed, with their arrays; work that waits,
and fails in turn; and pools. What stays are the temporary buffers of CPU contexts (see
:mod:`d2lpar.memory.estimate`), and CUDA's context, until the process ends.

**How it is told.** MXNet on a CPU: MXNetError "Failed to allocate CPU Memory", at the
next wait, without a size; on a GPU "cudaMalloc retry failed: out of memory"; NumPy:
MemoryError, with the shape. Where a container's limit is reached, or the system's
memory ends, Linux kills the process (signal 9), and only its parent can say so.

**Better a new process.** For a larger temporary buffer MXNet frees the old one, asks
for the new one, and if that fails goes on with the old address: what runs next may
write where it must not. Under a limit, the next training in Gluon on two contexts ended
in a segmentation fault each time of three. Where the buffers had their size already, 50
runs of which every other failed left nothing behind and took no harm. So `d2lpar run`
measures in a process of its own each time: nothing of a failure can reach the next.

Source: seed 002 ("memory"); MXNet 1.9.1, ``src/storage``, ``src/resource.cc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence

from d2lpar.errors import DeviceError
from d2lpar.memory import estimate
from d2lpar.memory.estimate import as_text

# Of MXNet's errors: of its CPU storage, of its pool on a GPU, of CUDA and its
# libraries (CUBLAS_STATUS_ALLOC_FAILED, ...), and of C++.
WORDS = (
    "Failed to allocate CPU Memory",
    "cudaMalloc failed",
    "cudaMalloc retry failed",
    "out of memory",
    "ALLOC_FAILED",
    "bad_alloc",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, NumPy's, or MXNet's."""
    if isinstance(error, MemoryError):
        return True
    of_mxnet = type(error).__name__ == "MXNetError"
    return of_mxnet and any(words in str(error) for words in WORDS)


def last_line(error: BaseException) -> str:
    """What an error says without MXNet's C++ trace; "" for one without words."""
    return (str(error).strip().splitlines() or [""])[-1]


def explain(
    error: BaseException,
    train: str,
    settings: dict,
    devices: Sequence,
    data: dict | None = None,
) -> str | None:
    """One line for an allocation that failed; None for any other error.

    Gives back what the failed work holds first (:func:`release`), so that what it calls
    free is what the next run has. The arguments are :func:`d2lpar.memory.estimate.report`'s.
    """
    if not is_out_of_memory(error):
        return None
    said = last_line(error)
    release(devices, error)
    return advice(train, settings, devices, data, said=said, running=True)


def advice(
    train: str,
    settings: dict,
    devices: Sequence,
    data: dict | None = None,
    *,
    said: str = "",
    running: bool = False,
) -> str:
    """The line: the allocation, the device, what is free, and what would fit.

    Also for a process that has ended, by its parent. `said` is the error's last line:
    NumPy names the array in it, MXNet does not, and then it is the batch's largest.
    Among GPUs the device is the one with least to spare. `running` says that the next
    run is in this process, too, not in a new one.
    """
    try:
        free = estimate.free_memory(devices, running)
    except DeviceError as problem:
        said = said or str(problem)
        return f"out of memory on {_names(devices)} ({said}): use a smaller batch"
    kind = devices[0].device_type
    need = estimate.estimate(train, settings, len(devices), data, kind)
    if need is None:
        what = f" ({said})" if said else ""
        return (
            f"out of memory on {_names(devices)}{what}, where {as_text(min(free))} are "
            "free: use less data or a smaller batch"
        )
    if kind == "cpu":
        device, left, wanted = _names(devices), free[0], need.total
        wanted -= need.of("process") if running else 0
    else:
        k = min(range(len(devices)), key=lambda k: free[k] - need.on(k))
        device, left, wanted = str(devices[k]), free[k], need.on(k)
    what = f"{need.largest}, takes {as_text(need.largest_size)}"
    if said.startswith("Unable to allocate"):  # NumPy, with the shape
        what = said[0].lower() + said[1:]
    micro = settings.get("micro_batch_size")
    each = f" by {micro}" if micro else ""
    remedy = _remedy(train, settings, devices, free, data, running, need.batch)
    return (
        f"out of memory on {device}: {what}, and the batch of {need.batch}{each} "
        f"{as_text(wanted)}, where {as_text(left)} are free: {remedy}"
    )


def _names(devices: Sequence) -> str:
    """ "cpu(0)", or "cpu(0) to cpu(3)": contexts that share one memory."""
    first, last = devices[0], devices[-1]
    return str(first) if len(devices) == 1 else f"{first} to {last}"


def _remedy(
    train: str,
    settings: dict,
    devices: Sequence,
    free: Sequence[int],
    data: dict | None,
    running: bool,
    batch: int,
) -> str:
    plan = (train, settings, devices, free, data)
    largest = estimate.largest_batch(*plan, running=running)
    if largest >= batch:
        return (
            "by the estimate it fits, so something else takes memory: use a "
            f"--global-batch-size well below {batch}"
        )
    flags = [f"--global-batch-size {largest}"] if largest else []
    if "micro_batch_size" in settings:
        micro = estimate.largest_batch(
            *plan, running=running, setting="micro_batch_size"
        )
        flags += [f"--micro-batch-size {micro}"] if micro else []
    if not flags:
        return "not even a batch of 1 fits: free some of it"
    return f"use at most {' or '.join(flags)}"


def release(devices: Sequence = (), error: BaseException | None = None) -> None:
    """Give back what work that has ended or failed holds, so that the next has it.

    Clears the frames of `error` and of those it came from; collects cycles; waits for
    all work, and drops the errors of what failed with it; empties the pools of GPUs
    among `devices`; has the C library return what it keeps (glibc).
    """
    _wait_for_all()  # first: an array is not freed while its failure is not told
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
    if "mxnet" not in sys.modules:
        return
    from d2lpar._mxnet import mx, npx

    for _ in range(1000):  # one wait tells of one failure; never for ever
        try:
            return npx.waitall()
        except mx.MXNetError:
            continue


@contextlib.contextmanager
def limited(more: int) -> Iterator[None]:
    """Within it, this process can take `more` bytes beyond what it has, and no others.

    For demonstrations and tests. The kernel refuses what is beyond, by ``RLIMIT_DATA``:
    on Linux all private memory that can be written, touched or not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = estimate.process_status("VmData") + more
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
