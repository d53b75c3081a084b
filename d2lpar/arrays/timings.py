"""The sources' array operations in NumPy, PyTorch and MXNet, timed on any devices.

The least-squares notes double 50,000,000 numbers, the CryptoPunks notebook sums
100,000 x 10, the GPU wiki sums sin^2/cos^2 over 10,000 x 10,000, and the GPUSOROBAN
posts multiply two matrices of 15,360 x 15,360. Copies and an all-reduce follow: their
cost decides whether parallel work pays. :mod:`d2lpar.timing` checks every result in
every repetition.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.arrays import operations
from d2lpar.arrays.operations import AS_WRITTEN_64, ONE_KERNEL, Sizes, Work
from d2lpar.devices import label
from d2lpar.errors import SettingError
from d2lpar.kernels import KernelError
from d2lpar.machine.host import omp_threads, usable_cores
from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import TimingRecord
from d2lpar.training import choose

log = logging.getLogger("d2lpar")

MODULES = {"MXNet": "mxnet", "NumPy": "numpy", "PyTorch": "torch"}


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
    as that CPU context; beside a GPU with all cores, and PyTorch on that GPU as well,
    if it has CUDA. The product, which may take a minute, is repeated `product_repeats`
    times after one warm-up.

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
    torch: ModuleType | None = None
    if len(chosen) == 1:
        try:
            torch = importlib.import_module("torch")
            torch.set_num_threads(threads)
        except ModuleNotFoundError:
            log.warning("PyTorch is not measured: pip install 'd2lpar[peers]'")
    for make in operations.OPERATIONS:
        work = make(data, chosen, numpy.random.default_rng(seed))
        if make is operations.product:
            count = product_repeats or repeats
            yield from _time(work, chosen, threads, min(warmup, 1), count, torch)
        else:
            yield from _time(work, chosen, threads, warmup, repeats, torch)
    for num_bytes in data.copies:
        rng = numpy.random.default_rng(seed)
        for work in operations.copies(num_bytes, chosen, rng):
            yield from _time(work, chosen, threads, warmup, repeats)


def report(devices: Sequence[mx.Context], n: int) -> Iterator[str]:
    """Double `n` numbers on each device and on the host, and copy them: text lines.

    Each line has both clocks of :mod:`d2lpar.timing`.
    """
    for device in devices:
        yield f"{n:,} numbers on {label(device)}"
        rng = numpy.random.default_rng(0)
        doubled = operations.x2(Sizes(x2=n), [device], rng)
        del doubled.on_devices[ONE_KERNEL]  # chapter 13's, which needs a compiler
        for work in (doubled, *operations.copies(4 * n, [device], rng)):
            for timed in _time(work, [device], host_threads=1, warmup=2, repeats=7):
                ms = 1e3 * summarize(timed.seconds).median
                naive = 1e3 * summarize(timed.naive_seconds).median
                name = f"{timed.operation} in {timed.library}, {timed.form}"
                yield f"{ms:10.3f} ms, naive clock {naive:10.3f} ms  {name}"


def _time(
    work: Work,
    devices: list[mx.Context],
    host_threads: int,
    warmup: int,
    repeats: int,
    torch: ModuleType | None = None,
) -> Iterator[TimingRecord]:
    """Time all forms on the devices; NumPy, and PyTorch if given, beside one device."""
    how = {"warmup": warmup, "repeats": repeats, **work.checks}
    for form, call in work.on_devices.items():
        name = f"{work.operation} in MXNet, {form}"
        try:
            measured = timing.measure(call, devices, name=name, **how)
        except KernelError as error:
            log.warning("%s is not measured: %s", name, error)
            continue
        yield _record(work, "MXNet", form, measured)
    if len(devices) > 1:
        return
    for form, call in work.in_numpy.items():
        name = f"{work.operation} in NumPy, {form}"
        measured = timing.measure_host(call, host_threads, name=name, **how)
        yield _record(work, "NumPy", form, measured)
    if torch is None or work.in_torch is None:
        return
    places = ["cpu"]
    if devices[0].device_type == "gpu" and torch.cuda.is_available():
        places.append(f"cuda:{devices[0].device_id}")
    for place in places:
        forms, written = work.in_torch(torch, place)
        for form, call in forms.items():
            options = {**how, "name": f"{work.operation} in PyTorch, {form}, {place}"}
            if place == "cpu":
                measured = timing.measure_host(call, host_threads, **options)
            else:
                options["before"] = operations.clearing(*written)
                measured = timing.measure_torch(call, devices[0], **options)
            yield _record(work, "PyTorch", form, measured)


def _record(
    work: Work, library: str, form: str, measured: timing.Timing
) -> TimingRecord:
    is_float64 = form == AS_WRITTEN_64
    return TimingRecord(
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
