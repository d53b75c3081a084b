"""The measuring process, ``python -m d2lpar.runs.child``: one job in, a record out.

It reads a :class:`~d2lpar.runs.job.Job` from its standard input, and writes the lines
of the record to its standard output, with the other answers of
:mod:`d2lpar.runs.job` in between. After the header it waits for a byte before it works:
another run may have the same name. It ends when its standard input does, so that it
never outlives the process that started it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pickle
import platform
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial

import numpy

from d2lpar import devices
from d2lpar._version import __version__
from d2lpar.datasets import linear
from d2lpar.errors import D2lparError, first_line, is_from_mxnet
from d2lpar.machine import cores
from d2lpar.machine.gpu_build import gpu_build
from d2lpar.machine.interrupts import raising_interrupts
from d2lpar.machine.mxnet_builds import mxnet_version
from d2lpar.memory import out_of_memory
from d2lpar.records import files, provenance
from d2lpar.records.kinds import Header, Line
from d2lpar.runs.job import Failed, Job, Warned
from d2lpar.runs.resume import Resumable

log = logging.getLogger("d2lpar")

Tell = Callable[[object], None]  # sends a line or another answer to the parent
Train = Callable[..., Iterator[Line]]


def main(measure: Callable[[Job, Tell], Iterator[Line]]) -> None:
    """Be the measuring process: send the lines of ``measure(job, tell)``."""
    tell = _answer_channel()
    handler = logging.Handler()
    handler.emit = lambda record: tell(Warned(record.getMessage()))
    log.addHandler(handler)
    try:
        job, may_work = pickle.load(sys.stdin.buffer), threading.Event()
        follow = threading.Thread(target=_follow_parent, args=(may_work,), daemon=True)
        follow.start()
        lines = measure(job, tell)
        try:
            for line in lines:
                tell(line)
                if isinstance(line, Header):
                    may_work.wait()
        except KeyboardInterrupt:
            # Between two lines, the work has not seen the signal yet.
            with contextlib.suppress(KeyboardInterrupt):
                lines.throw(KeyboardInterrupt())
            os._exit(130)  # at once: MXNet would finish its queue of work first
    except D2lparError as error:
        tell(Failed(str(error)))
    except OSError as error:
        if error.filename is None:
            raise
        tell(Failed(f"{error.filename}: {error.strerror}"))
    except Exception as error:
        if out_of_memory.is_out_of_memory(error):
            tell(Failed(first_line(error), out_of_memory=True))
            os._exit(0)  # at once: a failed allocation may have damaged MXNet
        if not is_from_mxnet(error):
            raise
        traceback.print_exc()
        tell(Failed(f"MXNet: {first_line(error)}"))


def _answer_channel() -> Tell:
    """A function that sends answers; standard output itself becomes standard error.

    Workloads print, and so may MXNet's C++ side: nothing of it may reach the parent.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lock = threading.Lock()

    def tell(answer: object) -> None:
        with lock:
            pickle.dump(answer, answers)
            answers.flush()

    return tell


def measured(job: Job, tell: Tell) -> Iterator[Line]:
    """The record of a job: its header, then what the training yields."""
    workload, chosen = job.workload, devices.parse(job.devices)[: job.num_devices]
    devices.enable_peer_access(chosen)
    data, run = workload.load(**job.data), None
    header = header_of(job, chosen, data)
    how = {"devices": chosen, "seed": job.seed, "data": data, **job.settings}
    if workload.start is not None:
        begin = header, workload.start(job.seed), job.folder
        run = Resumable(*begin, every=job.checkpoint_every, resume=job.resume)
    yield from record(job, header, partial(workload.train, job.num_devices, **how), run)


def record(
    job: Job, header: Header, train: Train, run: Resumable | None, saves: bool = True
) -> Iterator[Line]:
    """The record of a training; with --profile, profiles are written beside it.

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

        lines = profiled(lines, job.folder / files.run_name(header))
    if run is None and not job.profile:
        yield from lines  # there is nothing to tidy up: a signal ends it at once
        return
    with raising_interrupts():
        try:
            yield from lines
        except KeyboardInterrupt:
            if run is not None and saves:
                _save_at_the_end(run)
            raise


def _save_at_the_end(run: Resumable) -> None:
    try:
        path = run.save()
    except OSError as error:
        log.warning("%s: %s: no checkpoint was written", error.filename, error.strerror)
        return
    if path is not None:
        log.warning("%s keeps epoch %d: --resume last", path, run.snapshot.epoch)


def header_of(job: Job, chosen: list, data) -> Header:
    """Where the record of a job comes from: this machine, this package, this data."""
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


def _follow_parent(may_work: threading.Event) -> None:
    """Set the event at the first byte; end with the last."""
    while os.read(0, 4096):  # sys.stdin would be locked when the process ends
        may_work.set()
    linear.delete_files_of(os.getpid())
    os._exit(1)


if __name__ == "__main__":
    main(measured)
