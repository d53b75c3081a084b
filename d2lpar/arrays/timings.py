"""The sources' array operations in NumPy, PyTorch and MXNet, timed on any devices.

The least-squares notes double 50,000,000 numbers, the CryptoPunks notebook sums
100,000 x 10, the GPU wiki sums sin^2/cos^2 over 10,000 x 10,000, and the GPUSOROBAN
posts multiply two matrices of 15,360 x 15,360. Copies and an all-reduce follow: their
cost decides whether parallel work pays. :mod:`d2lpar.timing` checks every result in
every repetition.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.arrays import operations
from d2lpar.arrays.operations import AS_WRITTEN_64, Sizes, Work
from d2lpar.errors import SettingError
from d2lpar.kernels import KernelError
from d2lpar.machine.host import omp_threads, usable_cores
from d2lpar.records.kinds import TimingRecord
from d2lpar.training import choose

log = logging.getLogger("d2lpar")

MODULES = {"MXNet": "mxnet", "NumPy": "numpy", "PyTorch": "torch"}


def load(**sizes: int) -> Sizes:
    """How large the arrays are: the fields of :class:`~d2lpar.arrays.operations.Sizes`.

    The numbers themselves are drawn where they are measured.
    """
    return Sizes(**sizes)


def measure(
    num_devices: int | None = None,
    *,
    devices: str | Sequence[mx.Context] = "auto",
    seed: int = 0,
    data: Sizes,
    warmup: int = 2,
    repeats: int = 7,
    product_repeats: int | None = None,
) -> Iterator[TimingRecord]:
    """Time every operation, yielding a record for each of its forms and libraries.

    `devices` and `num_devices` are those of :func:`d2lpar.lenet.train`. NumPy and, if
    it is installed, PyTorch are measured beside one device only, with as many threads
    as that CPU context (beside a GPU: all cores). The product, which may take a minute,
    is repeated `product_repeats` times after one warm-up.

    Raises :class:`SettingError` for fewer rows than devices, and
    :class:`~d2lpar.timing.TimingError` for a wrong result.
    """
    chosen = choose(devices, num_devices)
    least = min(data.x2, data.sum_rows, data.trig, data.product)
    if least < len(chosen):
        raise SettingError(
            f"size {least}: cannot be shared by {len(chosen)} devices; use fewer"
        )
    on_cpu = chosen[0].device_type == "cpu"
    threads = (omp_threads() or 1) if on_cpu else usable_cores()
    torch = _torch(threads) if len(chosen) == 1 else None
    for make in operations.OPERATIONS:
        work = make(data, chosen, numpy.random.default_rng(seed), torch)
        if make is operations.product:
            often = product_repeats or repeats
            yield from _time(work, chosen, threads, min(warmup, 1), often)
        else:
            yield from _time(work, chosen, threads, warmup, repeats)
    for num_bytes in data.copies:
        rng = numpy.random.default_rng(seed)
        for work in operations.copies(num_bytes, chosen, rng):
            yield from _time(work, chosen, threads, warmup, repeats)


def _torch(threads: int) -> ModuleType | None:
    """PyTorch with so many threads, or None where it is not installed."""
    if importlib.util.find_spec("torch") is None:
        log.warning("PyTorch is not measured: pip install 'd2lpar[peers]'")
        return None
    import torch

    torch.set_num_threads(threads)
    return torch


def _time(
    work: Work, devices: list[mx.Context], host_threads: int, warmup: int, repeats: int
) -> Iterator[TimingRecord]:
    calls = {("MXNet", form): call for form, call in work.on_devices.items()}
    if len(devices) == 1:
        calls |= work.on_host
    for (library, form), call in calls.items():
        name = f"{work.operation} in {library}, {form}"
        how = {"name": name, "warmup": warmup, "repeats": repeats, **work.checks}
        try:
            if library == "MXNet":
                measured = timing.measure(call, devices, **how)
            else:
                measured = timing.measure_host(call, host_threads, **how)
        except KernelError as error:
            log.warning("%s is not measured: %s", name, error)
            continue
        is_float64 = form == AS_WRITTEN_64
        yield TimingRecord(
            operation=work.operation,
            library=library,
            version=str(importlib.import_module(MODULES[library]).__version__),
            form=form,
            dtype="float64" if is_float64 else "float32",
            shape=list(work.shape),
            num_bytes=work.num_bytes * (2 if is_float64 else 1),
            flops=work.flops,
            seconds=list(measured.seconds),
            naive_seconds=list(measured.naive_seconds),
            warmup_seconds=list(measured.warmup_seconds),
            devices=list(measured.devices),
            threads=measured.threads,
        )
