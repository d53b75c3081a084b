"""The program of a measuring process: a :class:`~d2lpar.runs.plan.Job` to lines."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
from msgspec.structs import replace

from d2lpar import __version__, devices, experiments
from d2lpar.machine import host
from d2lpar.machine.builds import gpu_build, mxnet_version
from d2lpar.process import TURN
from d2lpar.records import files
from d2lpar.records.kinds import EPOCHS, Header, Line, PointRecord
from d2lpar.runs.plan import Job
from d2lpar.runs.resume import resumable

log = logging.getLogger("d2lpar")


def lines_of(job: Job) -> Iterator[Header | Line | str]:
    """Yield the records of a job's variants, each with its header first.

    Of several workers one yields the record that all of them measure.
    """
    chosen = devices.contexts(job.devices)
    devices.enable_peer_access(chosen)
    data = experiments.load(job.experiment.load)(**job.data, seed=job.seed)
    if job.turns:
        yield TURN
    for work in job.each_variant():
        header = header_of(work, chosen, data)
        batch = header.settings.get("global_batch_size", 0)
        n = header.settings.get("n_train", batch)
        if batch > n:
            log.warning("a batch of %d: the data has %d, which it takes", batch, n)
        if job.is_worker:
            yield from shared_record(work, header, chosen, data)
        else:
            yield from record(work, header, job.folder, devices=chosen, data=data)


def shared_record(
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
        lenet_channels=None,  # workers train with the book's, see lenet.concise
    )
    keeps = workers.number == 0
    folder = job.folder if keeps else None
    lines = record(job, header, folder, devices=chosen, data=data, workers=workers)
    if keeps:
        yield from lines
    for _ in lines:  # the others train as well
        pass
    workers.leave()


def record(
    job: Job, header: Header, folder: Path | None, **more: Any
) -> Iterator[Header | Line | str]:
    """Yield a measurement's record; a training keeps its checkpoints in `folder`.

    `more` are arguments of the experiment's `measure`, beside the job's settings.
    """
    experiment, settings = job.experiment, dict(job.settings)
    names = [name for name in experiment.start_takes if name in settings]
    of_start = {name: settings.pop(name) for name in names}
    measure = experiments.load(experiment.measure)
    measure = partial(measure, len(job.devices), seed=job.seed, **settings, **more)
    lines: Generator[Header | Line, None, None]
    if experiment.start:
        state = experiments.load(experiment.start)(job.seed, **of_start)
        lines = resumable(
            header, state, measure, folder, job.checkpoint_every, job.resume
        )
    else:
        yield header
        lines = measure()
    for line in lines:
        # A measurement with its own repeats numbers on.
        if job.repeat and isinstance(line, Line):
            repeat = job.repeat * job.settings.get("repeats", 1) + line.repeat
            line = replace(line, repeat=repeat)
        solved = isinstance(line, PointRecord) and (line.x or line.x_begins)
        try:
            yield line
            if job.turns and (solved or isinstance(line, EPOCHS)):
                yield TURN
        except KeyboardInterrupt as interrupt:  # at which a training saves its state
            lines.throw(interrupt)


def header_of(job: Job, chosen: list, data: Any) -> Header:
    """Return the provenance of a record: this machine, this package, this data."""
    commit, dirty = files.git_state()
    kind = chosen[0].device_type
    settings = {**job.settings, **data.sizes, "threads": job.threads}
    if len(set(job.seeds)) > 1:
        settings["seeds"] = list(job.seeds)
    if job.environment:
        settings["environment"] = dict(job.environment)
    facts_of, build = job.experiment.header_facts, {}
    facts = experiments.load(facts_of)(kind) if facts_of else {}
    if kind == "gpu":
        from d2lpar._mxnet import mx

        build = gpu_build([gpu.device_id for gpu in chosen], mx.base._LIB)
    return Header(
        chapter=job.experiment.name,
        preset=job.preset,
        recipe=job.folder.name,
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
