"""In the measuring process: one job in, the lines of its record out."""

from __future__ import annotations

import itertools
import logging
import platform
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import numpy

from d2lpar import devices, experiments
from d2lpar._version import __version__
from d2lpar.machine import host
from d2lpar.machine.builds import gpu_build, mxnet_version
from d2lpar.machine.environment import raising_interrupts
from d2lpar.records import files, provenance
from d2lpar.records.kinds import Header, Line
from d2lpar.runs.job import Job
from d2lpar.runs.resume import Resumable

log = logging.getLogger("d2lpar")


def measured(**job: Any) -> Iterator[Header | Line]:
    """The record of a job (the fields of :class:`~d2lpar.runs.job.Job`)."""
    work = Job(**job)
    chosen = devices.parse(work.devices)[: work.num_devices]
    devices.enable_peer_access(chosen)
    data = experiments.load(work.of.load)(**work.data)
    header = header_of(work, chosen, data)
    train = partial(
        experiments.load(work.of.measure),
        work.num_devices,
        devices=chosen,
        seed=work.seed,
        data=data,
        **work.settings,
    )
    run = None
    if work.of.start:
        state = experiments.load(work.of.start)(work.seed)
        run = Resumable(
            header, state, work.path, every=work.checkpoint_every, resume=work.resume
        )
    yield from record(work, header, train, run)


def record(
    job: Job, header: Header, train: Any, run: Resumable | None, saves: bool = True
) -> Iterator[Header | Line]:
    """The record of a measurement; with --profile, profiles are written beside it.

    ``train(num_epochs=, state=)`` continues `run`; where that is None, ``train()``
    cannot be resumed. On SIGTERM or Ctrl-C the last finished epoch of `run` is saved,
    unless `saves` is false.
    """
    if run is None:
        lines = itertools.chain([header], train())
    else:
        lines = run.record(
            lambda state: train(num_epochs=run.epochs_to_go, state=state)
        )
    if job.profile:
        from d2lpar.runs.profile import profiled

        lines = profiled(lines, job.path / files.run_name(header))
    lines = _repeat_set(lines, job.repeat)
    if run is None and not job.profile:
        yield from lines  # no cleanup needed: a signal ends it at once
        return
    with raising_interrupts():
        try:
            yield from lines
        except KeyboardInterrupt:
            if run is not None and saves:
                _save_last_epoch(run)
            raise


def _repeat_set(lines: Iterator, repeat: int) -> Iterator[Header | Line]:
    for line in lines:
        if repeat and isinstance(line, Line):
            line = msgspec.structs.replace(line, repeat=repeat)
        yield line


def _save_last_epoch(run: Resumable) -> None:
    try:
        path = run.save()
    except OSError as error:
        log.warning("%s: %s: no checkpoint was written", error.filename, error.strerror)
        return
    if path is not None:
        epoch = run.snapshot.epoch
        log.warning("saved epoch %d to %s; continue with --resume last", epoch, path)


def header_of(job: Job, chosen: list, data: Any) -> Header:
    """The provenance of a job's record: this machine, this package, this data."""
    commit, dirty = provenance.git_state()
    on_cpu = chosen[0].device_type == "cpu"
    return Header(
        chapter=job.experiment,
        preset=job.preset,
        num_devices=len(chosen),
        device_kind=chosen[0].device_type,
        devices=[devices.label(device) for device in chosen],
        threads_per_device=host.omp_threads() if on_cpu else None,
        cores=host.usable_cores(),
        cpu_model=host.cpu_model(),
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=job.seed,
        settings={**job.settings, **data.sizes, "threads": job.threads},
        variant=job.variant,
        command=job.command,
        versions={
            "d2lpar": __version__,
            "mxnet": mxnet_version(),
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        git_commit=commit,
        git_dirty=dirty,
        date=provenance.now(),
        gpu_build={} if on_cpu else gpu_build_of(chosen),
    )


def gpu_build_of(gpus: list) -> dict:
    """MXNet's build and settings on these contexts of GPUs."""
    from d2lpar._mxnet import mx

    return gpu_build([gpu.device_id for gpu in gpus], mx.base._LIB)
