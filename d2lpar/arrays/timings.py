"""The sources' array operations in NumPy, PyTorch and MXNet, timed on any devices."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy

from d2lpar import timing
from d2lpar._mxnet import mx
from d2lpar.arrays import operations
from d2lpar.arrays.operations import Sizes, Work
from d2lpar.epochs import choose
from d2lpar.kernels import KernelError
from d2lpar.machine.host import omp_threads, usable_cores
from d2lpar.records.kinds import TimingRecord

log = logging.getLogger("d2lpar")

LIBRARIES = {"mxnet": "MXNet", "numpy": "NumPy", "torch": "PyTorch"}


def time_all(
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

    NumPy and, if installed, PyTorch stand beside one device, with its threads, or all
    cores and PyTorch's GPU. The product is repeated `product_repeats` times.
    """
    chosen = choose(devices, num_devices)
    on_cpu = chosen[0].device_type == "cpu"
    threads = (omp_threads() or 1) if on_cpu else usable_cores()
    libraries = [numpy] if len(chosen) == 1 else []
    if libraries:
        try:
            libraries.append(importlib.import_module("torch"))
            libraries[-1].set_num_threads(threads)
        except ModuleNotFoundError:
            log.warning("PyTorch is not measured: pip install -e '.[peers]'")
    for make in operations.OPERATIONS:
        counts = {"warmup": warmup, "repeats": repeats}
        if make is operations.product:
            counts = {"warmup": min(warmup, 1), "repeats": product_repeats or repeats}
        for work in make(data, chosen, numpy.random.default_rng(seed)):
            yield from _time(work, chosen, libraries, threads, **counts)
    for num_bytes in data.copies:
        rng = numpy.random.default_rng(seed)
        for work in operations.copies(num_bytes, chosen, rng):
            yield from _time(work, chosen, warmup=warmup, repeats=repeats)


def _time(
    work: Work,
    devices: list[mx.Context],
    libraries: Sequence[ModuleType] = (),
    threads: int = 1,
    **counts: int,
) -> Iterator[TimingRecord]:
    """Time all forms on the devices, then those of the libraries of the host."""
    options = {**counts, **work.checks}
    for form, call in work.on_devices.items():
        name = f"{work.operation} in MXNet, {form}"
        try:
            measured = timing.measure(call, devices, name=name, **options)
        except KernelError as error:
            log.warning("%s is not measured: %s", name, error)
            continue
        yield _record(work, mx, form, measured)
    places = [(library, "cpu") for library in libraries]
    if devices[0].device_type == "gpu":
        gpu = f"cuda:{devices[0].device_id}"
        places += [(torch, gpu) for torch in libraries[1:] if torch.cuda.is_available()]
    for library, place in places:
        arrays: list = [*work.host, *work.out]
        if library is not numpy:
            arrays = [library.from_numpy(array).to(place) for array in arrays]
        for form, function in work.on_host.items():
            call = functools.partial(function, library, *arrays)
            name = f"{work.operation} in {LIBRARIES[library.__name__]}, {form}, {place}"
            clear = operations.clearing(*arrays[len(work.host) :])
            how = {**options, "before": clear, "name": name}
            if place == "cpu":
                measured = timing.measure_host(call, threads, **how)
            else:
                measured = timing.measure_torch(call, devices[0], **how)
            yield _record(work, library, form, measured)


def _record(
    work: Work, library: ModuleType, form: str, measured: timing.Timing
) -> TimingRecord:
    return TimingRecord(
        operation=work.operation,
        library=LIBRARIES[library.__name__],
        version=str(library.__version__),
        form=form,
        dtype="float32",
        shape=list(work.shape),
        num_bytes=work.num_bytes,
        flops=work.flops,
        seconds=list(measured.seconds),
        naive_seconds=list(measured.naive_seconds),
        warmup_seconds=list(measured.warmup_seconds),
        devices=list(measured.devices),
        threads=measured.threads,
    )
