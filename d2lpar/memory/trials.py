"""Trainings of LeNet whose memory is measured, each in a fresh process.

Chapter 11 starts them with :func:`d2lpar.process.answer`, in `ENVIRONMENT`: a peak of
resident memory belongs to a process and never falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from d2lpar.machine.host import process_status

# One temporary buffer in place of 256, and glibc returns arrays of 1 MB or more to the
# system at once: resident memory is then that of the arrays.
ENVIRONMENT = {"MXNET_CPU_TEMP_COPY": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}


def kept(batch_size: int) -> dict[str, int]:
    """Return the resident bytes that a forward pass of LeNet on one CPU leaves.

    They are kept for the backward pass. The images are in memory before.
    """
    from d2lpar import autograd, devices, get_params, init_lenet, lenet, np, npx

    (cpu,) = devices.parse("cpu:1")
    X, params = np.zeros((batch_size, 1, 28, 28)), get_params(init_lenet(0.1), cpu)
    lenet.lenet(X, params)  # keeps nothing, but fills MXNet's temporary buffer
    npx.waitall()
    before = process_status("VmRSS")
    with autograd.record():
        scores = lenet.lenet(X, params)
    scores.wait_to_read()
    return {"bytes": process_status("VmRSS") - before}


def peak(batch_size: int) -> dict[str, int]:
    """Return the peak resident bytes of a process that trains one step on one CPU."""
    from d2lpar import datasets, lenet

    data = datasets.fashion_sample(n_train=batch_size, n_test=200)
    list(lenet.train(1, devices="cpu:1", data=data, num_epochs=1,
                     global_batch_size=batch_size))  # fmt: skip
    # Not ru_maxrss, which a process can inherit from the one that starts it.
    return {"bytes": process_status("VmHWM")}


def after_failures(
    limit: int, batch_sizes: Sequence[int], keep_errors: bool, release: bool
) -> Iterator[dict]:
    """Train an epoch with each batch size in turn, in `limit` bytes; yield what became.

    Each result has the `batch`, the `line` that explains a failure ("" if it trained)
    and the `resident` bytes afterwards; the first is of batch 0, before the limit. The
    errors are kept in a list if `keep_errors`. With `release`,
    :func:`~d2lpar.memory.out_of_memory.release` follows each failure.
    """
    from d2lpar import datasets, devices, lenet
    from d2lpar.memory import out_of_memory
    from d2lpar.memory.estimate import lenet_layers

    one, kept = devices.parse("cpu:1"), []
    sizes = {"n_train": max(batch_sizes), "n_test": 200}
    data = datasets.fashion_sample(**sizes)
    run = partial(lenet.train, devices=one, data=data, num_epochs=1)
    # MXNet enlarges its temporary buffer now: failing at that, it would go on with an
    # address that it has freed.
    list(run(global_batch_size=max(batch_sizes)))
    out_of_memory.release(one)
    yield {"batch": 0, "line": "", "resident": process_status("VmRSS")}
    with out_of_memory.limited(limit):
        for size in batch_sizes:
            settings: dict = {"global_batch_size": size}
            line = ""
            try:
                list(run(**settings))
            except Exception as error:
                if not out_of_memory.is_out_of_memory(error):
                    raise
                if release:
                    out_of_memory.release(one, error)
                line = out_of_memory.advice(
                    lenet_layers, settings, one, sizes, running=True
                )
                if keep_errors:
                    kept.append(error)
            yield {"batch": size, "line": line, "resident": process_status("VmRSS")}
