"""The program of a measuring process: a :class:`~d2lpar.runs.plan.Job` to lines."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy
from msgspec.structs import replace

from d2lpar import __version__, devices, experiments
from d2lpar.errors import raising_interrupts
from d2lpar.machine import host
from d2lpar.machine.builds import gpu_build, mxnet_version
from d2lpar.process import TURN
from d2lpar.records import files
from d2lpar.records.kinds import EPOCHS, Header, Line, PointRecord
from d2lpar.runs.plan import Job
from d2lpar.runs.resume import Resumable

log = logging.getLogger("d2lpar")


def lines_of(job: Job) -> Iterator[Header | Line | str]:
    """Yield the records of a job's variants, each with its header first.

    Of several workers one yields the record that all of them measure.
    """
    chosen = devices.contexts(job.devices)
    devices.enable_peer_access(chosen)
    data = experiments.load(job.experiment.load)(**job.data)
    if job.turns:
        yield TURN
    for work in job.each_variant():
        header = header_of(work, chosen, data)
        batch = header.settings.get("global_batch_size", 0)
        n = header.settings.get("n_train", batch)
        if batch > n:
            log.warning("a batch of %d: the data has %d, which it takes", batch, n)
        if job.is_worker:
            yield from lines_by_workers(work, header, chosen, data)
        else:
            yield from record(work, header, measurement(work, chosen, data))


def lines_by_workers(
    job: Job, header: Header, chosen: list, data: Any
) -> Iterator[Header | Line | str]:
    """Yield the record that several workers share, if this is the first of them."""
    from d2lpar.workers.group import Workers

    workers = Workers()
    workers.check_same(
        f"{header.versions} {header.git_commit} {header.dataset_sha256} {header.seed} "
        f"{header.settings}"
    )
    own = header.command.removeprefix("d2lpar ")
    header = replace(
        header,
        num_devices=workers.count * len(chosen),
        devices=workers.count * header.devices,
        command=f"d2lpar launch --workers {workers.count} -- {own}",
        workers=workers.count,
        servers=int(os.environ["DMLC_NUM_SERVER"]),
        lenet_channels=None,  # workers train with the book's, see lenet.workers
    )
    keeps = workers.number == 0
    train = measurement(job, chosen, data, workers=workers)
    for line in record(job, header, train, keeps):  # the others train as well
        if keeps:
            yield line
    workers.leave()


def measurement(
    work: Job, chosen: list, data: Any, **more: Any
) -> Callable[..., Iterator[Line]]:
    """Bind a job's arguments to its experiment's `measure`, or that with workers."""
    experiment = work.experiment
    name = experiment.measure_with_workers if work.is_worker else experiment.measure
    of_start = experiment.start_takes
    settings = {k: value for k, value in work.settings.items() if k not in of_start}
    return partial(
        experiments.load(name),
        len(work.devices),
        devices=chosen,
        seed=work.seed,
        data=data,
        **settings,
        **more,
    )


def record(
    job: Job, header: Header, train: Callable[..., Iterator[Line]], keeps: bool = True
) -> Iterator[Header | Line | str]:
    """Yield a measurement's record; a training that is stopped saves its last epoch."""
    experiment = job.experiment
    if not experiment.start:
        yield header
        yield from repeated(job, train())
        return
    taken = {k: v for k, v in job.settings.items() if k in experiment.start_takes}
    state = experiments.load(experiment.start)(job.seed, **taken)
    every = job.checkpoint_every if keeps else None
    run = Resumable(header, state, job.folder, every=every, resume=job.resume)
    lines = run.record(lambda state, n: train(state=state, num_epochs=n))
    with raising_interrupts():
        try:
            yield from repeated(job, lines)
        except KeyboardInterrupt:
            if keeps and (path := run.save()):
                log.warning("saved; continue with the same flags and --resume=%s", path)
            raise


def repeated(job: Job, lines: Iterator) -> Iterator:
    """Number the lines of a repeat; a measurement with its own repeats numbers on."""
    for line in lines:
        if job.repeat and isinstance(line, Line):
            repeat = job.repeat * job.settings.get("repeats", 1) + line.repeat
            line = replace(line, repeat=repeat)
        yield line
        solved = isinstance(line, PointRecord) and (line.x or line.x_begins)
        if job.turns and (solved or isinstance(line, EPOCHS)):
            yield TURN


def header_of(job: Job, chosen: list, data: Any) -> Header:
    """Return the provenance of a record: this machine, this package, this data."""
    commit, dirty = files.git_state()
    kind = chosen[0].device_type
    settings = {**job.settings, **data.sizes, "threads": job.threads}
    if job.seeds:
        settings["seeds"] = list(job.seeds)
    if job.environment:
        settings["environment"] = dict(job.environment)
    facts, build = {}, {}
    if job.experiment.header_facts:
        facts = experiments.load(job.experiment.header_facts)(kind)
    if kind == "gpu":
        from d2lpar._mxnet import mx

        build = gpu_build([gpu.device_id for gpu in chosen], mx.base._LIB)
    return Header(
        chapter=job.experiment.name,
        preset=job.preset,
        recipe=job.recipe,
        turns=list(job.turns),
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
        settings=settings,
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
        gpu_build=build,
        **facts,
    )
