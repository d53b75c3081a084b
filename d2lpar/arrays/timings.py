"""The sources' array operations in NumPy, PyTorch and MXNet, timed on any devices.

The least-squares notes double 50,000,000 numbers, the CryptoPunks notebook sums
100,000 x 10, the GPU wiki sums sin^2/cos^2 over 10,000 x 10,000, and the GPUSOROBAN
posts multiply two matrices of 15,360 x 15,360. Copies and an all-reduce follow: their
cost decides whether parallel work pays. :mod:`d2lpar.studies.array_work` has the
operations, and :mod:`d2lpar.timing` checks every result in every repetition.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.errors import SettingError
from d2lpar.kernels import on_cpu as kernels_on_cpu
from d2lpar.kernels.kernel import KernelError
from d2lpar.machine.cores import omp_threads, usable_cores
from d2lpar.records.kinds import TimingRecord
from d2lpar.studies import array_work
from d2lpar.studies.array_work import AS_WRITTEN_64, ONE_KERNEL, Sizes, Work
from d2lpar.training import Workload, choose

log = logging.getLogger("d2lpar")

MODULES = {"MXNet": "mxnet", "NumPy": "numpy", "PyTorch": "torch"}


def train(
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

    Nothing is trained; the name is that of every workload's generator. `devices` and
    `num_devices` are :func:`d2lpar.lenet.train`'s. NumPy and, if it is installed,
    PyTorch are measured beside one device only, with as many threads as that CPU
    context (beside a GPU: all cores). The product, which may take a minute, is repeated
    `product_repeats` times after one warm-up.

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
    has_kernels = not on_cpu or _has_compiler()
    often = {"warmup": warmup, "repeats": repeats}
    rarely = {"warmup": min(warmup, 1), "repeats": product_repeats or repeats}
    for make in array_work.OPERATIONS:
        work = make(data, chosen, numpy.random.default_rng(seed), torch)
        if not has_kernels:
            work.on_devices.pop(ONE_KERNEL, None)
        how_often = rarely if make is array_work.product else often
        yield from _time(work, chosen, threads, **how_often)
    for num_bytes in data.copies:
        rng = numpy.random.default_rng(seed)
        for work in array_work.copies(num_bytes, chosen, rng):
            yield from _time(work, chosen, threads, **often)


def _torch(threads: int) -> ModuleType | None:
    if importlib.util.find_spec("torch") is None:
        log.warning("PyTorch is not measured: pip install 'd2lpar[peers]'")
        return None
    import torch

    torch.set_num_threads(threads)
    return torch


def _has_compiler() -> bool:
    """Whether kernels can run on CPUs; warns if not."""
    try:
        return bool(kernels_on_cpu.compiler())
    except KernelError as error:
        log.warning("%r is not measured: %s", ONE_KERNEL, error)
        return False


def _time(
    work: Work, devices: list[mx.Context], host_threads: int, **how_often: int
) -> Iterator[TimingRecord]:
    measures = {
        ("MXNet", form): partial(timing.measure, call, devices)
        for form, call in work.on_devices.items()
    }
    if len(devices) == 1:
        measures |= {
            key: partial(timing.measure_host, call, host_threads)
            for key, call in work.on_host.items()
        }
    for (library, form), measure in measures.items():
        name = f"{work.operation} in {library}, {form}"
        try:
            measured = measure(name=name, **work.checks, **how_often)
        except KernelError as error:
            log.warning("%s, is not measured: %s", name, error)
            continue
        is_float64 = form == AS_WRITTEN_64
        yield TimingRecord(
            operation=work.operation,
            library=library,
            version=importlib.import_module(MODULES[library]).__version__,
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


WORKLOAD = Workload(train, load=Sizes, locate=None, unit="timing")
