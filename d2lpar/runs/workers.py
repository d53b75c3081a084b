"""The measuring process of one of several workers, in place of :mod:`~.measure`.

In addition it joins the others, checks that all measure the same, starts from worker
0's state, reports the traffic, and leaves.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import psutil

from d2lpar import devices, experiments, process
from d2lpar.errors import SettingError
from d2lpar.machine.builds import cuda_devices
from d2lpar.records.kinds import Header, Line
from d2lpar.runs.job import Job
from d2lpar.runs.measure import header_of, record
from d2lpar.runs.resume import Resumable
from d2lpar.workers.node import versions, worker_info


def measured(**job: Any) -> Iterator[Header | Line]:
    """The record of a job that the workers share; see :func:`d2lpar.runs.measure`."""
    from d2lpar.workers.group import Workers

    work = Job(**job)
    chosen = devices.parse(work.devices)[: work.num_devices]
    devices.enable_peer_access(chosen)
    data = experiments.load(work.of.load)(**work.data)
    header = header_of(work, chosen, data)
    workers = Workers(worker_info(), throttled(process.alive))
    workers.check_same(
        **versions(),
        data=header.dataset_sha256,
        seed=str(header.seed),
        settings=json.dumps(header.settings, sort_keys=True),
    )
    check_own_gpus(workers, chosen)
    header = header_of_all(workers, header)
    train = partial(
        experiments.load(work.of.measure_with_workers),
        work.num_devices,
        devices=chosen,
        seed=work.seed,
        data=data,
        workers=workers,
        **work.settings,
    )
    run = None
    if work.of.start:
        run = resumable(workers, work, header)
        train = partial(with_traffic, train)
    yield from record(work, header, train, run, saves=workers.number == 0)
    workers.leave()


def throttled(call: Callable[[], object], seconds: float = 1) -> Callable[[], None]:
    """`call`, skipped within `seconds` of the last time it was called."""
    last = -seconds

    def limited() -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            call()

    return limited


def check_own_gpus(workers, chosen: list) -> None:
    """Raise :class:`SettingError` if two workers have the same GPU among their devices.

    A GPU is known by the host's name and the PCI address. In "dist_async" nothing is
    compared.
    """
    if not workers.synchronous:
        return
    gpus = cuda_devices()
    mine = [gpus[d.device_id].pci_address for d in chosen if d.device_type == "gpu"]
    owners: dict[tuple, int] = {}
    for number, theirs in enumerate(workers.gather([platform.node(), mine])):
        host, addresses = theirs
        for address in addresses:
            owner = owners.setdefault((host, address), number)
            if owner != number:
                raise SettingError(
                    f"workers {owner} and {number} share the GPU {address} of {host}: "
                    "launch with --devices gpu:N, for N GPUs of each worker's own"
                )


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
    )


def resumable(workers, job: Job, header: Header) -> Resumable:
    """The run from worker 0's state; worker 0 alone reads and writes checkpoints.

    It writes one every epoch unless the job says otherwise, so that the launcher can
    restart all workers. In "dist_async" every worker reads it.
    """
    first = workers.number == 0
    run = Resumable(
        header,
        experiments.load(job.of.start)(job.seed),
        job.path,
        every=(job.checkpoint_every or 1) if first else None,
        resume=job.resume if first or not workers.synchronous else None,
    )
    run.state = workers.state_of_first(run.state)
    return run


def with_traffic(train: Callable[..., Iterator[Line]], **how: Any) -> Iterator[Line]:
    """A training whose epochs say how many bytes (`wire_bytes`) were sent for each.

    Those of all processes over the interface between the roles: on loopback all bytes,
    between hosts those of this host. Without a named interface the field stays empty.
    """
    before = bytes_sent()
    for line in train(**how):
        after = bytes_sent()
        if before is not None and after is not None:
            line = msgspec.structs.replace(line, wire_bytes=after - before)
        yield line
        before = bytes_sent()


def bytes_sent() -> int | None:
    """Sent so far over the interface between the roles; None if there is none."""
    interface = os.environ.get("DMLC_INTERFACE", "")
    counter = psutil.net_io_counters(pernic=True).get(interface)
    return None if counter is None else counter.bytes_sent
