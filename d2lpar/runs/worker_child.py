"""The measuring process of one of several workers, in place of :mod:`~.child`.

Beyond what any measuring process does, it joins the others, compares with them what
must be the same, starts from worker 0's state, reports the traffic, and leaves.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import psutil

from d2lpar import devices
from d2lpar.errors import SettingError
from d2lpar.machine.cuda import cuda_devices
from d2lpar.records.kinds import Header, Line
from d2lpar.runs import child
from d2lpar.runs.job import Job, Progressed
from d2lpar.runs.resume import Resumable
from d2lpar.workers.place import at_most_every, package_digest, place


def measured(job: Job, tell: child.Tell) -> Iterator[Line]:
    """The record of a job that the workers share; see :func:`child.measured`."""
    from d2lpar.workers.group import Workers

    workload, chosen = job.workload, devices.parse(job.devices)[: job.num_devices]
    data = workload.load(**job.data)
    header = child.header_of(job, chosen, data)
    group = Workers(place(), at_most_every(1, lambda: tell(Progressed())))
    check_same(group, header)
    check_own_gpus(group, chosen)
    header = header_of_all(group, header)
    train = partial(
        workload.train_with_workers,
        job.num_devices,
        devices=chosen,
        seed=job.seed,
        data=data,
        workers=group,
        **job.settings,
    )
    if workload.start is None:
        lines = itertools.chain([header], train())
    else:
        run = resumable(group, job, header)
        lines = child.interruptible(run, with_traffic(train), saves=group.number == 0)
    yield from child.with_profile(job, header, lines)
    group.leave()


def check_same(group, header: Header) -> None:
    """Raise :class:`SettingError` unless all workers measure the same."""
    group.check_same(
        package=package_digest(),
        data=header.dataset_sha256,
        seed=str(header.seed),
        settings=json.dumps(header.settings, sort_keys=True),
    )


def check_own_gpus(group, chosen: list) -> None:
    """Raise :class:`SettingError` if two workers have the same GPU among their devices.

    Known by the host's name and the PCI address. In "dist_async" nothing is compared.
    """
    if not group.synchronous:
        return
    gpus = cuda_devices()
    mine = [gpus[d.device_id].pci_address for d in chosen if d.device_type == "gpu"]
    content = json.dumps([[platform.node(), address] for address in mine]).encode()
    owners: dict[tuple, int] = {}
    for number, theirs in enumerate(map(json.loads, group.gather(content))):
        for host, address in theirs:
            owner = owners.setdefault((host, address), number)
            if owner != number:
                raise SettingError(
                    f"workers {owner} and {number} share the GPU {address} of {host}: "
                    "launch with --devices gpu:N, for N GPUs of each worker's own"
                )


def header_of_all(group, header: Header) -> Header:
    """The header of a worker's record, extended to the devices of all workers."""
    labels = header.devices
    if group.count > 1:  # "cpu(0)@1 (1 thread of 2 cores)" is a device of worker 1
        names = [label.split(" ", 1) for label in labels]
        labels = [
            " ".join([f"{name}@{k}", *rest])
            for k in range(group.count)
            for name, *rest in names
        ]
    return replace(
        header,
        num_devices=len(labels),
        devices=labels,
        variant=group.place.variant,
        command=group.place.launched_by + header.command.removeprefix("d2lpar "),
        workers=group.count,
        servers=group.place.servers,
    )


def resumable(group, job: Job, header: Header) -> Resumable:
    """The run from worker 0's state; worker 0 alone reads and writes checkpoints.

    It writes one every epoch unless the job says otherwise, so that the launcher can
    start all workers again. In "dist_async" every worker reads it.
    """
    first = group.number == 0
    run = Resumable(
        header,
        job.workload.start(job.seed),
        job.folder,
        every=(job.checkpoint_every or 1) if first else None,
        resume=job.resume if first or not group.synchronous else None,
    )
    run.state = group.state_of_first(run.state)
    return run


def with_traffic(train: child.Train) -> child.Train:
    """A training whose epochs say how many bytes (`wire_bytes`) were sent for each."""

    def lines(**arguments) -> Iterator[Line]:
        before = bytes_sent()
        for line in train(**arguments):
            now = bytes_sent()
            if None not in (before, now):
                line = replace(line, extra={**line.extra, "wire_bytes": now - before})
            yield line
            before = bytes_sent()

    return lines


def bytes_sent() -> int | None:
    """The bytes that all processes have sent over the interface between the roles.

    On loopback these are all, between hosts those of this host. None where no interface
    is named.
    """
    counters = psutil.net_io_counters(pernic=True)
    counter = counters.get(os.environ.get("DMLC_INTERFACE", ""))
    return None if counter is None else counter.bytes_sent


if __name__ == "__main__":
    child.main(measured)
