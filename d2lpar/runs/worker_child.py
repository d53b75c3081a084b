"""The measuring process of one of several workers, in place of :mod:`~.child`.

Beyond what any measuring process does, it joins the others, compares with them what
must be the same, starts from worker 0's state, reports the traffic, and leaves.
"""

from __future__ import annotations

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
    devices.enable_peer_access(chosen)
    data, run = workload.load(**job.data), None
    header = child.header_of(job, chosen, data)
    group = Workers(place(), at_most_every(1, lambda: tell(Progressed())))
    group.check_same(
        package=package_digest(),
        data=header.dataset_sha256,
        seed=str(header.seed),
        settings=json.dumps(header.settings, sort_keys=True),
    )
    check_own_gpus(group, chosen)
    header = header_of_all(group, header)
    how = {"devices": chosen, "seed": job.seed, "data": data, "workers": group}
    train = workload.train_with_workers
    train = partial(train, job.num_devices, **how, **job.settings)
    if workload.start is not None:
        run, train = resumable(group, job, header), with_traffic(train)
    yield from child.record(job, header, train, run, saves=group.number == 0)
    group.leave()


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
        names = [label.partition(" ") for label in labels]
        workers = range(group.count)
        labels = [f"{n}@{k}{space}{rest}" for k in workers for n, space, rest in names]
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
    """A training whose epochs say how many bytes (`wire_bytes`) were sent for each.

    Those of all processes over the interface between the roles: on loopback all bytes,
    between hosts those of this host. Nothing is said where no interface is named.
    """

    def bytes_sent() -> int | None:
        counters = psutil.net_io_counters(pernic=True)
        counter = counters.get(os.environ.get("DMLC_INTERFACE", ""))
        return None if counter is None else counter.bytes_sent

    def lines(**arguments) -> Iterator[Line]:
        before = bytes_sent()
        for line in train(**arguments):
            now = bytes_sent()
            if None not in (before, now):
                line = replace(line, extra={**line.extra, "wire_bytes": now - before})
            yield line
            before = bytes_sent()

    return lines


if __name__ == "__main__":
    child.main(measured)
