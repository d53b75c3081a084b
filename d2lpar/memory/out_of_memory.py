"""One line that helps when memory has run out.

Sources: the GPU wiki ("memory"); MXNet 1.9.1, ``src/storage``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from d2lpar.errors import DeviceError
from d2lpar.memory.estimate import free_memory, largest_batch
from d2lpar.text import byte_size

# Errors of MXNet's storage, of CUDA and its libraries (without memory their handles are
# "not initialized", and no algorithm's workspace fits), and of C++.
WORDS = re.compile(
    "Failed to allocate CPU Memory|cudaMalloc (retry )?failed"
    "|out of memory|ALLOC_FAILED|(CUBLAS|CUDNN|CUSOLVER)_STATUS_NOT_INITIALIZED"
    "|Create (cublas|cusolver) handle failed"
    "|Failed to find any .*convolution algorithm|bad_alloc"
)


def advice(
    devices: Sequence, said: str, lenets_batch: int | None = None, **sizes: int
) -> str:
    """Return one line: the devices, what is free, what would fit.

    `said` is the error's line, `lenets_batch` the global batch of a training of LeNet,
    None of other work, and `sizes` are its `n_train` and `n_test`.
    """
    where = f"out of memory on {devices[0]}"
    if len(devices) > 1:
        where += f" to {devices[-1]}"
    where += f" ({said.removeprefix('out of memory: ')})"
    try:
        free = free_memory(devices)
    except DeviceError:
        return f"{where}: use a smaller batch"
    remedy = "use less data or a smaller batch"
    if lenets_batch is not None:
        fitting = largest_batch(devices, free, **sizes)
        if fitting >= lenets_batch:
            remedy = "it should fit, so something else takes memory: " + remedy
        elif fitting:
            remedy = f"use at most --global-batch-size {fitting}"
        else:
            remedy = "not even a batch of 1 fits: free some of it"
    return f"{where}: {byte_size(min(free))} are free: {remedy}"
