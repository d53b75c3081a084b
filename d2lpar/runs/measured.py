"""The work of a measuring process: a :class:`~d2lpar.runs.job.Job` in, lines out."""

from __future__ import annotations

import contextlib
import itertools
import logging
import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy

from d2lpar import __version__, devices, experiments
from d2lpar.errors import raising_interrupts
from d2lpar.machine import host
from d2lpar.machine.builds import gpu_build, mxnet_version
from d2lpar.records import files
from d2lpar.records.kinds import Header, Line
from d2lpar.runs.job import Job
from d2lpar.runs.resume import Resumable

log = logging.getLogger("d2lpar")


def measured(**fields: Any) -> Iterator[Header | Line]:
    """Yield the records of a job's variants; `fields` are those of :class:`Job`."""
    job = Job(**fields)
    chosen, data = prepared(job)
    for work in job.each_variant():
        header = header_of(work, chosen, data)
        warn_of_a_large_batch(header)
        train = measurement(work, work.experiment.measure, chosen, data)
        run = None
        if work.experiment.start:
            run = Resumable(
                header,
                start_of(work),
                work.path,
                every=work.checkpoint_every,
                resume=work.resume,
            )
            if not work.repeat:
                run.warn_of_earlier()
        yield from record(work, header, train, run)


def prepared(job: Job) -> tuple[list, Any]:
    """Return the job's devices as MXNet's contexts, and its data."""
    chosen = devices.contexts(job.devices)
    devices.enable_peer_access(chosen)
    return chosen, experiments.load(job.experiment.load)(**job.data)


def measurement(
    job: Job, function: str, chosen: list, data: Any, **more: Any
) -> Callable[..., Iterator[Line]]:
    """Bind the arguments of a job to a function of its experiment, such as `measure`.

    A training that can be resumed also takes ``num_epochs=`` and ``state=``.
    """
    return partial(
        experiments.load(function),
        job.num_devices,
        devices=chosen,
        seed=job.seed,
        data=data,
        **job.settings,
        **more,
    )


def start_of(job: Job) -> Any:
    """Return the state before the first epoch, of a training that can be resumed."""
    experiment = job.experiment
    settings = {name: job.settings[name] for name in experiment.start_takes}
    return experiments.load(experiment.start)(job.seed, **settings)


def warn_of_a_large_batch(header: Header) -> None:
    """Warn if one batch would hold more than all of the data."""
    batch = header.settings.get("global_batch_size", 0)
    n = header.settings.get("n_train", batch)
    if batch > n:
        log.warning("a batch of %d: the data has %d, which every step takes", batch, n)


def record(
    job: Job,
    header: Header,
    train: Callable[..., Iterator[Line]],
    run: Resumable | None,
    saves: bool = True,
) -> Iterator[Header | Line]:
    """Yield the record of a measurement; with --profile, write profiles beside it.

    ``train(num_epochs=, state=)`` continues `run`; where that is None, ``train()``
    cannot be resumed. On SIGTERM or Ctrl-C the last finished epoch of `run` is saved,
    unless `saves` is false.
    """
    lines: Iterator[Any]
    if run is None:
        lines = itertools.chain([header], train())
    else:
        lines = run.record(
            lambda state: train(num_epochs=run.epochs_to_go, state=state)
        )
    if job.profile:
        from d2lpar.runs.profile import profiled

        lines = profiled(lines, job.path / files.run_name(header))
    # A signal ends at once what needs no cleanup.
    cleans_up = run is not None or job.profile
    with raising_interrupts() if cleans_up else contextlib.nullcontext():
        try:
            for line in lines:
                if job.repeat and isinstance(line, Line):
                    line = msgspec.structs.replace(line, repeat=job.repeat)
                yield line
        except KeyboardInterrupt:
            if run is not None and saves:
                _save(run)
            raise


def _save(run: Resumable) -> None:
    """Save the last finished epoch of an interrupted run, and log where."""
    try:
        path = run.save()
    except OSError as error:
        log.warning("%s: %s: no checkpoint was written", error.filename, error.strerror)
        return
    if path is not None and run.snapshot is not None:
        log.warning(
            "saved epoch %d to %s; continue with --resume last",
            run.snapshot.epoch,
            path,
        )
    for earlier in run.earlier[-1:]:  # the newest of them
        log.warning("the training before this one is kept: --resume %s", earlier)


def header_of(job: Job, chosen: list, data: Any) -> Header:
    """Return the provenance of a record: this machine, this package, this data."""
    commit, dirty = files.git_state()
    kind = chosen[0].device_type
    facts = {}
    if job.experiment.header_facts:
        facts = experiments.load(job.experiment.header_facts)(kind)
    return Header(
        chapter=job.chapter,
        preset=job.preset,
        num_devices=len(chosen),
        device_kind=kind,
        devices=[devices.label(device) for device in chosen],
        threads_per_device=host.omp_threads() if kind == "cpu" else None,
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
        date=files.now(),
        gpu_build={} if kind == "cpu" else gpu_build_of(chosen),
        **facts,
    )


def gpu_build_of(gpus: list) -> dict:
    """Return MXNet's build and settings on these contexts of GPUs."""
    from d2lpar._mxnet import mx

    return gpu_build([gpu.device_id for gpu in gpus], mx.base._LIB)
