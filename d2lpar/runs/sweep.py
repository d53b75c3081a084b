"""Measure workloads on 1, 2, ... N devices, each in a fresh process, and keep records.

MXNet reads its threads and buffers once, when it is imported. So every measurement gets
a process of its own (:mod:`d2lpar.runs.child`), started with the right environment, one
after the other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from d2lpar import devices
from d2lpar.datasets import linear
from d2lpar.errors import D2lparError, DiedError, RunError
from d2lpar.machine import cores, load
from d2lpar.memory import out_of_memory
from d2lpar.records import files
from d2lpar.records.atomic import check_replaceable, naming
from d2lpar.records.kinds import EPOCHS, Header, Line, Sample, group
from d2lpar.records.lock import locked
from d2lpar.runs.job import (
    KEEP_FREED_MEMORY,
    Failed,
    Job,
    Progressed,
    Warned,
    environment,
)
from d2lpar.workers.place import show_life

log = logging.getLogger("d2lpar")

# An interrupted training has this long to end its step and write a checkpoint.
SECONDS_TO_STOP = 20


def sweep(jobs: list[Job], repeats: int = 1) -> Iterator[Line]:
    """Run the jobs one after the other, `repeats` times round, and keep their records.

    Yields every line as it arrives, the header of each measurement first. The record of
    a job grows in ``<run>.partial.jsonl``; when all are complete, all are renamed to
    ``<run>.jsonl``. Until then the runs' names are locked: raises :class:`RunError` if
    another sweep holds one of them. A sweep that fails or is interrupted keeps the
    partial records that hold a result, and leaves earlier records as they were.
    """
    partial: dict[int, Path] = {}  # by number of the job
    with contextlib.ExitStack() as at_the_end:
        for repeat in range(repeats):
            for number, job in enumerate(jobs):
                with contextlib.closing(measure(job)) as items:
                    for item in items:
                        if not isinstance(item, Header):
                            item = replace(item, repeat=repeat)
                            _append(partial[number], item)
                        elif number not in partial:
                            run = files.run_name(item)
                            at_the_end.enter_context(locked(job.folder, run))
                            partial[number] = _begin(job.folder, run, item)
                            at_the_end.callback(_keep_or_remove, partial[number])
                        yield item
        for path in partial.values():
            final = _final(path)
            with naming(final):
                os.replace(path, final)


def _begin(folder: Path, run: str, header: Header) -> Path:
    """A partial record of a header alone, in place of an earlier one, if any."""
    path = folder / f"{run}.partial.jsonl"
    check_replaceable(_final(path))
    files.write(path, header, ())
    return path


def _final(partial: Path) -> Path:
    return partial.with_name(partial.name.replace(".partial.", "."))


def _append(path: Path, item: Line) -> None:
    # Not "a", which would begin a new file without a header if this one was deleted.
    with naming(path), open(path, "r+", encoding="utf-8") as f:
        f.seek(0, os.SEEK_END)
        f.write(files.to_line(item) + "\n")


def _keep_or_remove(path: Path) -> None:
    """Keep a partial record that holds a result: lines that count as progress."""
    if not path.exists():  # complete, and renamed
        return
    with contextlib.suppress(D2lparError):
        results = [line for line in files.read(path).lines if line.counts_as_progress]
        for kind, lines in group(results, lambda line: line.kind).items():
            log.warning("%s keeps the %d finished %ss", path, len(lines), kind)
        if results:
            return
    path.unlink(missing_ok=True)


def measure(job: Job) -> Iterator[Line]:
    """Run one job in a fresh process and yield the lines of its record."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        process = _start(job, stderr)
        answers = _answers(process)
        try:
            yield from _lines(job, process, answers)
            code = process.wait()
            if code != 0:
                stderr.seek(0)
                raise DiedError(_cause_of_death(job, code, stderr.read()))
        except (KeyboardInterrupt, GeneratorExit):
            # A training has time to write its checkpoint; its warnings are passed on.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_STOP)
                for answer in iter(answers.get, None):
                    if isinstance(answer, Warned):
                        log.warning("%s", answer.message)
            raise
        finally:
            process.kill()
            process.wait()
            linear.delete_files_of(process.pid)


def _start(job: Job, stderr: IO[str]) -> subprocess.Popen:
    """The measuring process, in its environment, with its job."""
    threads = job.threads or cores.threads_per_context(job.num_devices)
    if job.one_thread_each and job.num_devices > 1 and not job.threads:
        threads = cores.USER_THREADS or 1
    module = "d2lpar.runs.worker_child" if job.is_worker else "d2lpar.runs.child"
    changes = {"OMP_NUM_THREADS": str(threads), **job.gpu_variables}
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**KEEP_FREED_MEMORY, **environment(changes)},
        # Ctrl-C reaches this process alone, which then ends the other: MXNet would
        # finish its queue of work first.
        start_new_session=True,
    )
    with contextlib.suppress(BrokenPipeError):  # it has died: its status will say why
        process.stdin.write(pickle.dumps(job))
        process.stdin.flush()
    return process


def _let_work(process: subprocess.Popen) -> None:
    """Whoever reads the header has agreed to it: training may begin."""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()


def _answers(process: subprocess.Popen) -> queue.Queue:
    """What the process answers, as it comes, and None after the last answer."""
    answers: queue.Queue = queue.Queue()

    def pump() -> None:
        try:
            # A process that is killed may leave its last answer incomplete.
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                while True:
                    answers.put(pickle.load(process.stdout))
        finally:
            answers.put(None)

    threading.Thread(target=pump, daemon=True).start()
    return answers


def _lines(job: Job, process: subprocess.Popen, answers: queue.Queue) -> Iterator[Line]:
    """The lines of the record; raises :class:`RunError` for work that failed."""
    epoch = 0
    with contextlib.ExitStack() as watching:
        for answer in iter(answers.get, None):
            if isinstance(answer, Warned):
                log.warning("%s", answer.message)
            elif isinstance(answer, Progressed):
                show_life()
            elif isinstance(answer, Failed):
                if answer.out_of_memory:
                    process.wait()  # its memory is free again
                    raise RunError(_memory_advice(job, answer.message))
                raise RunError(answer.message)
            else:
                if isinstance(answer, Header) and job.watch:
                    watching.enter_context(load.sampling(process.pid, answers.put))
                elif isinstance(answer, Sample):
                    answer = replace(answer, epoch=epoch + 1)
                elif isinstance(answer, EPOCHS):
                    epoch = answer.epoch
                yield answer
                if isinstance(answer, Header):
                    _let_work(process)


def _cause_of_death(job: Job, code: int, stderr: str) -> str:
    what = f"the process that measured {job.num_devices} device(s)"
    if code == -9:
        return f"{what} was killed (signal 9), perhaps {_memory_advice(job)}"
    last = (stderr.strip().splitlines() or ["it wrote nothing"])[-1]
    return f"{what} ended with status {code}: {last}"


def _memory_advice(job: Job, said: str = "") -> str:
    """The line for a measuring process that has ended: its memory is free again."""
    chosen = devices.parse(job.devices)[: job.num_devices]
    plan = (job.workload.layers, job.settings, chosen, job.data)
    return out_of_memory.advice(*plan, said=said)
