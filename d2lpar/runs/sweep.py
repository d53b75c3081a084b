"""Measure jobs one after the other, each in a fresh process, and keep their records.

The lines of a measuring process go into its record as they come.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import filelock

from d2lpar import devices, experiments, process
from d2lpar.errors import D2lparError, DiedError, RunError
from d2lpar.memory import out_of_memory
from d2lpar.memory.estimate import free_memory
from d2lpar.records import files
from d2lpar.records.atomic import check_replaceable, make_folder, naming
from d2lpar.records.kinds import FrameRecord, Header, Line
from d2lpar.runs.job import Job
from d2lpar.text import byte_size, plural
from d2lpar.workers.node import report_step

log = logging.getLogger("d2lpar")

# An interrupted training has this long to end its step and write a checkpoint.
SECONDS_TO_STOP = 20


def sweep(jobs: list[Job], repeats: int = 1) -> Iterator[Header | Line]:
    """Run all jobs `repeats` times, round-robin, and keep their records.

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
                lines = measure(replace(job, repeat=repeat))
                with contextlib.closing(lines):
                    for text in lines:
                        line = files.from_line(text)
                        if not isinstance(line, Header):
                            _append(partial[number], text)
                        elif number not in partial:
                            at_the_end.enter_context(_locked(job.path, line))
                            partial[number] = _begin(job.path, line, text)
                            at_the_end.callback(_keep_or_remove, partial[number])
                        yield line
        for path in partial.values():
            final = _final(path)
            with naming(final):
                os.replace(path, final)


def measure(job: Job) -> Iterator[bytes]:
    """Run one job in a fresh process; the lines of its record, as they came."""
    module = "d2lpar.runs.workers" if job.is_worker else "d2lpar.runs.job"
    try:
        yield from process.raw_lines(
            f"{module}:measured",
            job.as_json(),
            environment=job.variables(),
            seconds_to_stop=SECONDS_TO_STOP,
            on_alive=report_step,
        )
    except DiedError as error:
        what = f"the process that measured {plural(job.num_devices, 'device')}"
        why = str(error)
        if "signal 9" in why:
            free = byte_size(min(free_memory(_devices(job))))
            why = (
                f"was {why}, by the system if memory ran out; {free} are free now: "
                "run it again, or with a smaller batch"
            )
        raise DiedError(f"{what} {why}") from None
    except RunError as error:
        if not out_of_memory.WORDS.search(str(error)):
            raise
        layers = experiments.load(job.of.layers) if job.of.layers else None
        advice = out_of_memory.advice(
            layers, job.settings, _devices(job), job.data, said=str(error)
        )
        raise RunError(advice) from None


def _devices(job: Job) -> list:
    return devices.parse(job.devices)[: job.num_devices]


@contextlib.contextmanager
def _locked(folder: Path, header: Header) -> Iterator[None]:
    """Hold ``<folder>/.<run>.lock``: two runs would mix their lines in one record."""
    run = files.run_name(header)
    make_folder(folder)
    path = folder / f".{run}.lock"
    lock = filelock.FileLock(path)
    try:
        with naming(path):
            lock.acquire(timeout=0)
    except filelock.Timeout:
        raise RunError(
            f"{folder / run}: another run writes to it; wait until it has ended, or "
            "give another --out"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _begin(folder: Path, header: Header, text: bytes) -> Path:
    """A partial record of a header alone, in place of an earlier one, if any."""
    path = folder / f"{files.run_name(header)}.partial.jsonl"
    check_replaceable(_final(path))
    check_replaceable(path)
    with naming(path):
        path.write_bytes(text)
    return path


def _final(partial: Path) -> Path:
    return partial.with_name(partial.name.replace(".partial.", "."))


def _append(path: Path, text: bytes) -> None:
    # Not "a", which would begin a new file without a header if this one was deleted.
    with naming(path), open(path, "r+b") as f:
        f.seek(0, os.SEEK_END)
        f.write(text)


def _keep_or_remove(path: Path) -> None:
    """Keep a partial record that holds a result."""
    if not path.exists():  # complete, and renamed
        return
    with contextlib.suppress(D2lparError):
        lines = [x for x in files.read(path).lines if not isinstance(x, FrameRecord)]
        if lines:
            log.warning("%s keeps what was measured", path)
            return
    path.unlink(missing_ok=True)
