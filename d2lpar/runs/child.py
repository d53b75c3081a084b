"""The program of a measuring process: a :class:`~d2lpar.runs.job.Job` to lines."""

from __future__ import annotations

import json
import logging
import os
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
from d2lpar.process import TURN
from d2lpar.records import files
from d2lpar.records.kinds import EPOCHS, Header, Line, PointRecord
from d2lpar.runs.job import Job
from d2lpar.runs.resume import Resumable

log = logging.getLogger("d2lpar")


def lines_of(job: Job) -> Iterator[Header | Line | str]:
    """Yield the records of a job's variants, each with its header first."""
    chosen = devices.contexts(job.devices)
    devices.enable_peer_access(chosen)
    data = experiments.load(job.experiment.load)(**job.data)
    if job.is_worker:
        yield from lines_by_workers(job, chosen, data)
        return
    if job.turns:
        yield TURN
    for work in job.each_variant():
        header = header_of(work, chosen, data)
        batch = header.settings.get("global_batch_size", 0)
        n = header.settings.get("n_train", batch)
        if batch > n:
            log.warning("a batch of %d: the data has %d, which it takes", batch, n)
        train = measurement(work, work.experiment.measure, chosen, data)
        run = None
        if work.experiment.start:
            every, resume = work.checkpoint_every, work.resume
            state = start_of(work)
            run = Resumable(header, state, work.folder, every=every, resume=resume)
        yield from record(work, header, train, run)


def measurement(
    job: Job, function: str, chosen: list, data: Any, **more: Any
) -> Callable[..., Iterator[Line]]:
    """Bind a job's arguments to a function of its experiment, such as `measure`."""
    return partial(
        experiments.load(function),
        len(job.devices),
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


def record(
    job: Job,
    header: Header,
    train: Callable[..., Iterator[Line]],
    run: Resumable | None,
    saves: bool = True,
) -> Iterator[Header | Line]:
    """Yield a measurement's record; a stopped one `saves` its last epoch."""
    if run is None:
        yield header
        yield from repeated(job, train())
        return
    lines = run.record(lambda state: train(num_epochs=run.epochs_to_go, state=state))
    with raising_interrupts():
        try:
            yield from repeated(job, lines)
        except KeyboardInterrupt:
            if saves and (path := run.save()):
                log.warning(
                    "saved; continue with: d2lpar run %s --num-devices=%d --resume=%s",
                    job.chapter, len(job.devices), path,
                )  # fmt: skip
            raise


def repeated(job: Job, lines: Iterator) -> Iterator:
    """Number the lines of a repeat; a measurement with its own repeats numbers on."""
    for line in lines:
        if job.repeat and isinstance(line, Line):
            repeat = job.repeat * job.settings.get("repeats", 1) + line.repeat
            line = msgspec.structs.replace(line, repeat=repeat)
        yield line
        if job.turns and ends_a_turn(line):
            yield TURN


def ends_a_turn(line: Line) -> bool:
    """Return whether an epoch or a solve ends with this line."""
    return isinstance(line, EPOCHS) or bool(
        isinstance(line, PointRecord) and (line.x or line.x_begins)
    )


def header_of(job: Job, chosen: list, data: Any) -> Header:
    """Return the provenance of a record: this machine, this package, this data."""
    commit, dirty = files.git_state()
    seeds = {"seeds": list(job.seeds)} if job.seeds else {}
    kind = chosen[0].device_type
    facts, build = {}, {}
    if job.experiment.header_facts:
        facts = experiments.load(job.experiment.header_facts)(kind)
    if kind == "gpu":
        from d2lpar._mxnet import mx

        build = gpu_build([gpu.device_id for gpu in chosen], mx.base._LIB)
    return Header(
        chapter=job.chapter,
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
        settings={**job.settings, **data.sizes, "threads": job.threads, **seeds},
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


# One of several workers


def lines_by_workers(job: Job, chosen: list, data: Any) -> Iterator[Header | Line]:
    """Yield this worker's record of a job that several workers share."""
    from d2lpar.workers.group import Workers
    from d2lpar.workers.node import worker_info

    (work,) = job.each_variant()
    header = header_of(work, chosen, data)
    workers = Workers(worker_info())
    workers.check_same(
        **{name: header.versions[name] for name in ("d2lpar", "mxnet", "numpy")},
        commit=str(header.git_commit),
        data=header.dataset_sha256,
        seed=str(header.seed),
        settings=json.dumps(header.settings, sort_keys=True),
    )
    header = header_of_all(workers, header)
    function = work.experiment.measure_with_workers
    train = measurement(work, function, chosen, data, workers=workers)
    run, first = None, workers.number == 0
    if work.experiment.start:
        # Worker 0 alone writes checkpoints; in "dist_async" every worker reads one.
        every = (work.checkpoint_every or 1) if first else None
        resume = resume_of(work) if first or not workers.synchronous else None
        state = start_of(work)
        run = Resumable(header, state, work.folder, every=every, resume=resume)
        run.state = workers.state_of_first(run.state)
        train = partial(with_traffic, train)
    yield from record(work, header, train, run, saves=first)
    workers.leave()


def resume_of(job: Job) -> str | None:
    """Return `resume` of a job: "last" if this launch has written a checkpoint."""
    since = float(os.environ.get("D2LPAR_RESUME_SINCE", "inf"))  # set by a restart
    for path in job.folder.glob("[!.]*.safetensors"):
        if path.stat().st_mtime >= since:
            return "last"
    return job.resume


def header_of_all(workers: Any, header: Header) -> Header:
    """Return the header of a worker's record, extended to all workers' devices."""
    labels = header.devices
    if workers.count > 1:  # "cpu(0)@1 (1 thread of 2 cores)" is a device of worker 1
        names = [label.partition(" ") for label in labels]
        labels = [
            f"{name}@{number}{space}{rest}"
            for number in range(workers.count)
            for name, space, rest in names
        ]
    return msgspec.structs.replace(
        header,
        num_devices=len(labels),
        devices=labels,
        variant=workers.info.variant,
        command=workers.info.launched_by + header.command.removeprefix("d2lpar "),
        workers=workers.count,
        servers=workers.info.servers,
        lenet_channels=None,  # workers train with the book's, see lenet.workers
    )


def with_traffic(
    train: Callable[..., Iterator[Line]], **arguments: Any
) -> Iterator[Line]:
    """Yield a training's epochs, each with the bytes this host sent, `wire_bytes`."""
    import psutil

    def bytes_sent() -> int:
        return psutil.net_io_counters(True)[os.environ["DMLC_INTERFACE"]].bytes_sent

    before = bytes_sent()
    for line in train(**arguments):
        yield msgspec.structs.replace(line, wire_bytes=bytes_sent() - before)
        before = bytes_sent()
