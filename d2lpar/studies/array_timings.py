"""The seeds' array work as a workload: the same operations in NumPy, MXNet, PyTorch.

Seed 000 doubles 50,000,000 numbers, 003 sums 100,000 x 10, 002 sums sin^2/cos^2 over
10,000 x 10,000, 004 multiplies two matrices of 15,360 x 15,360; then the two costs that
decide whether parallel work pays: copies, and an all-reduce. MXNet's work is shared out
over the devices by rows; :mod:`d2lpar.studies.array_work` has the operations, each in several
forms, and :mod:`d2lpar.timing` checks every result in every repetition.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.errors import SettingError
from d2lpar.kernels import on_cpu as kernels_on_cpu
from d2lpar.kernels.kernel import KernelError
from d2lpar.machine import cores
from d2lpar.records.kinds import TimingRecord
from d2lpar.studies import array_work
from d2lpar.studies.array_work import AS_WRITTEN_64, ONE_KERNEL, Sizes, Work
from d2lpar.training import Workload, choose

log = logging.getLogger("d2lpar")

# What of a Work is checked while it is timed.
CHECKS = ("expected", "join", "rtol", "before")


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
    """Measure every operation, yielding one record each form of it and library.

    Named like every workload's generator, for the runner; nothing is trained. `devices`
    and `num_devices` are :func:`d2lpar.lenet.train`'s. NumPy and, where it is
    installed, PyTorch are measured beside one device only, with as many threads as that
    CPU context (all cores, where the runner started it). Of the product there are
    `product_repeats` after one warm-up, as it may take a minute each time.

    Raises :class:`SettingError` for fewer rows than devices, and
    :class:`~d2lpar.timing.TimingError` for a result that is wrong.
    """
    chosen = choose(devices, num_devices)
    least = min(data.x2, data.sum_rows, data.trig, data.product)
    if least < len(chosen):
        raise SettingError(f"size {least}: cannot be shared by {len(chosen)} devices")
    on_cpu = chosen[0].device_type == "cpu"
    threads = (cores.omp_threads() or 1) if on_cpu else cores.usable_cores()
    torch = _torch(threads) if len(chosen) == 1 else None
    kernels = _can_compile(chosen)
    for make in (
        array_work.x2,
        array_work.copy,
        array_work.total,
        array_work.trig,
        array_work.product,
    ):
        work = make(data, chosen, numpy.random.default_rng(seed), torch)
        is_product = make is array_work.product
        times = {
            "warmup": min(warmup, 1) if is_product else warmup,
            "repeats": (product_repeats or repeats) if is_product else repeats,
        }
        for form, fn in work.on_devices.items():
            if form != ONE_KERNEL or kernels:
                yield _on_devices(work, form, fn, chosen, times)
        if len(chosen) == 1:
            for (library, form), fn in work.on_host.items():
                yield _on_host(work, library, form, fn, threads, times)
        del work, fn  # the arrays of one operation at a time
    times = {"warmup": warmup, "repeats": repeats}
    for num_bytes in data.copies:
        rng = numpy.random.default_rng(seed)
        for work in array_work.copies(num_bytes, chosen, rng):
            for form, fn in work.on_devices.items():
                yield _on_devices(work, form, fn, chosen, times)


def _torch(threads: int):
    if importlib.util.find_spec("torch") is None:
        log.warning("PyTorch is not measured: pip install 'd2lpar[peers]'")
        return None
    import torch

    torch.set_num_threads(threads)
    return torch


def _can_compile(chosen: list) -> bool:
    """Whether kernels can be measured; says so where not."""
    if chosen[0].device_type == "gpu":
        return True
    try:
        return bool(kernels_on_cpu.compiler())
    except KernelError as error:
        log.warning("%r is not measured: %s", ONE_KERNEL, error)
        return False


def _on_devices(work: Work, form: str, fn, chosen: list, times: dict) -> TimingRecord:
    checks = {name: getattr(work, name) for name in CHECKS}
    name = f"{work.operation} in MXNet, {form}"
    measured = timing.measure(fn, chosen, name=name, **checks, **times)
    return _record(work, "MXNet", mx.__version__, form, measured)


def _on_host(work: Work, library: str, form: str, fn, threads: int, times: dict):
    checks = {name: getattr(work, name) for name in CHECKS}
    name = f"{work.operation} in {library}, {form}"
    measured = timing.measure_host(fn, threads, name=name, **checks, **times)
    module = importlib.import_module({"NumPy": "numpy", "PyTorch": "torch"}[library])
    return _record(work, library, module.__version__, form, measured)


def _record(work: Work, library: str, version: str, form: str, measured):
    twice = form == AS_WRITTEN_64
    return TimingRecord(
        operation=work.operation,
        library=library,
        version=version,
        form=form,
        dtype="float64" if twice else "float32",
        shape=list(work.shape),
        num_bytes=work.num_bytes * (2 if twice else 1),
        flops=work.flops,
        seconds=list(measured.seconds),
        naive_seconds=list(measured.naive_seconds),
        warmup_seconds=list(measured.warmup_seconds),
        devices=list(measured.devices),
        threads=measured.threads,
    )


WORKLOAD = Workload(train, load=array_work.sizes, locate=None, unit="timing")
