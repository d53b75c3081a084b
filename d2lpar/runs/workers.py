"""The measuring process of one of several workers, in place of :mod:`~.measured`.

In addition it joins the others, checks that all measure the same, starts from worker
0's state, reports the traffic, and leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import psutil

from d2lpar.records.kinds import Header, Line
from d2lpar.runs.job import Job
from d2lpar.runs.measured import header_of, measurement, prepared, record, start_of
from d2lpar.runs.resume import Resumable
from d2lpar.workers.node import worker_info


def measured(**fields: Any) -> Iterator[Header | Line]:
    """Yield the record of a job that several workers share."""
    from d2lpar.workers.group import Workers

    (work,) = Job(**fields).each_variant()
    chosen, data = prepared(work)
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
    run = None
    first = workers.number == 0
    if work.experiment.start:
        # Worker 0 alone reads and writes checkpoints, one every epoch by default, so
        # that the launcher can restart all. In "dist_async" every worker reads.
        run = Resumable(
            header,
            start_of(work),
            work.path,
            every=(work.checkpoint_every or 1) if first else None,
            resume=resume_of(work) if first or not workers.synchronous else None,
        )
        run.warn_of_earlier()  # of worker 0, which alone saves
        run.state = workers.state_of_first(run.state)
        train = partial(with_traffic, train)
    yield from record(work, header, train, run, saves=first)
    workers.leave()


def resume_of(job: Job) -> str | None:
    """What the job resumes from: "last" if this launch has written a checkpoint."""
    since = float(os.environ.get("D2LPAR_RESUME_SINCE", "inf"))  # set by a restart
    for path in job.path.glob("[!.]*.safetensors"):
        if path.stat().st_mtime >= since:
            return "last"
    return job.resume


def header_of_all(workers, header: Header) -> Header:
    """The header of a worker's record, extended to the devices of all workers."""
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
        lenet_channels=None,  # workers train with the book's, see lenet_workers
    )


def with_traffic(train: Callable[..., Iterator[Line]], **how: Any) -> Iterator[Line]:
    """A training whose epochs say how many bytes (`wire_bytes`) were sent for each.

    Those of all processes over the interface between the roles: on loopback all bytes,
    between hosts those of this host.
    """
    before = bytes_sent()
    for line in train(**how):
        yield msgspec.structs.replace(line, wire_bytes=bytes_sent() - before)
        before = bytes_sent()


def bytes_sent() -> int:
    """Sent so far over the interface between the roles."""
    counters = psutil.net_io_counters(pernic=True)
    return counters[os.environ["DMLC_INTERFACE"]].bytes_sent
