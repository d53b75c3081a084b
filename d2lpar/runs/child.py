"""TODO: one idea."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import logging
import math
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from d2lpar import devices
from d2lpar._version import __version__
from d2lpar.errors import D2lparError, SettingError, first_line
from d2lpar.machine import cores
from d2lpar.memory import out_of_memory
from d2lpar.records import files, provenance
from d2lpar.records.kinds import Header, Line
from d2lpar.runs.job import Job
from d2lpar.workers import group as workers_group

log = logging.getLogger("d2lpar")


def child() -> None:
    """The measuring process: one job in, a record's lines out."""
    # MXNet's C++ side may print: keep the real standard output for the record alone.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def tell(line: str) -> None:
        out.write(line + "\n")
        out.flush()

    handler = logging.Handler()
    handler.emit = lambda r: tell(
        json.dumps({"kind": "note", "message": r.getMessage()})
    )
    log.addHandler(handler)
    workers_group.on_step = workers_group.at_most_every(
        1, lambda: tell('{"kind": "alive"}')
    )
    items = _work(job)
    try:
        for item in items:
            tell(files.to_line(item))
    except KeyboardInterrupt:
        # Where the signal came between two lines, the work does not know of it yet.
        with contextlib.suppress(KeyboardInterrupt):
            items.throw(KeyboardInterrupt())
        os._exit(130)  # at once: MXNet would finish its queue of work first
    except D2lparError as error:
        tell(json.dumps({"kind": "error", "message": str(error)}))
    except Exception as error:
        if out_of_memory.is_out_of_memory(error):
            said = first_line(error)
            tell(json.dumps({"kind": "out-of-memory", "message": said}))
            os._exit(0)  # at once: a failed allocation may have harmed MXNet
        if type(error).__name__ != "MXNetError":
            raise
        traceback.print_exc()
        message = f"MXNet: {first_line(error)}"
        tell(json.dumps({"kind": "error", "message": message}))


def _work(job: Job) -> Iterator[Line]:
    train, load = _named(job.train), _named(job.load)
    chosen = devices.parse(job.devices)[: job.num_devices]
    data = load(**job.data)
    header = _header(job, chosen, data)
    common = {"devices": chosen, "seed": job.seed, "data": data}
    if workers_group.place() is not None:
        header, common["workers"] = workers_group.joined(header, train)
    start = getattr(sys.modules[train.__module__], "start", None)
    if start is not None:
        lines = _resumable(job, header, start, train, common)
    elif job.resume is not None or job.checkpoint_every is not None:
        flag = "checkpoint-every" if job.resume is None else "resume"
        raise SettingError(f"--{flag}: this chapter's work is not left and taken up")
    else:
        records_ = train(job.num_devices, **common, **job.settings)
        lines = itertools.chain([header], records_)
    if job.profile_in:
        from d2lpar.runs.profile import profiled

        lines = profiled(lines, Path(job.profile_in) / files.run_name(header))
    yield from lines
    if "workers" in common:
        common["workers"].leave()


def _resumable(
    job: Job, header: Header, start: Callable, train: Callable, common: dict
) -> Iterator[Line]:
    """The lines of a training that writes checkpoints, also when it is interrupted."""
    from d2lpar.runs.resume import Resumable

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    folder = Path(job.checkpoints_in or ".")
    group = common.get("workers")
    keeps, every, resume = True, job.checkpoint_every, job.resume
    if group is not None:
        keeps = group.number == 0  # checkpoints, from which all workers resume
        every = (every or 1) if keeps else None  # 1: to start again from
        resume = resume if keeps or not group.synchronous else None
    run = Resumable(header, start(job.seed), folder, every, resume)
    if group is not None:
        run.state = group.state_of_first(run.state)
    settings = {**job.settings, "num_epochs": run.epochs_to_go}

    def go_on(state) -> Iterator[Line]:
        lines = train(job.num_devices, **common, **settings, state=state)
        return lines if group is None else workers_group.with_traffic(lines)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield from run.record(go_on)
    except KeyboardInterrupt:
        if job.checkpoints_in is None or not keeps:
            raise
        path = run.save()
        if path is not None:
            log.warning("%s keeps epoch %d: --resume last", path, run.snapshot.epoch)
        raise


def _header(job: Job, chosen: list, data) -> Header:
    from d2lpar._mxnet import mx

    commit, dirty = provenance.git_state()
    on_cpu = chosen[0].device_type == "cpu"
    return Header(
        chapter=job.chapter,
        preset=job.preset,
        num_devices=len(chosen),
        device_kind=chosen[0].device_type,
        devices=[devices.label(device) for device in chosen],
        threads_per_device=cores.omp_threads() if on_cpu else None,
        cores=cores.usable_cores(),
        cpu_model=cores.cpu_model(),
        dataset=data.name,
        dataset_sha256=data.sha256,
        synthetic=data.synthetic,
        seed=job.seed,
        settings={
            **{name: _as_json(value) for name, value in job.settings.items()},
            **data.sizes,
            "threads": job.threads,
        },
        variant=job.variant,
        command=job.command,
        versions={
            "d2lpar": __version__,
            "mxnet": mx.__version__,
            "numpy": importlib.import_module("numpy").__version__,
            "python": platform.python_version(),
        },
        git_commit=commit,
        git_dirty=dirty,
        date=provenance.now(),
    )


def _named(name: str):
    """What "module:function" names."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def _as_json(value: object) -> object:
    """NaN and infinities as text: JSON has none, and `train` will refuse them."""
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else str(value)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    child()
