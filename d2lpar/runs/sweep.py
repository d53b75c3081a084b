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

from d2lpar import experiments, process
from d2lpar.errors import DiedError, RunError
from d2lpar.records import files
from d2lpar.records.atomic import check_replaceable, make_folder, naming, replacing
from d2lpar.records.kinds import FrameRecord, Header, Line
from d2lpar.runs.job import Job

log = logging.getLogger("d2lpar")

# An interrupted training has this long to end its step and write a checkpoint.
SECONDS_TO_STOP = 20


class PartialRecord:
    """A record that grows in ``<run>.partial.jsonl`` until its sweep is complete.

    A partial record of an earlier run stays until this one has its first result.

    Meanwhile the name of the run is locked by ``.<run>.lock``: two runs would mix their
    lines in one record.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.name = folder / run
        self.path = folder / f"{run}.partial.jsonl"
        self.final = folder / f"{run}.jsonl"
        self.lock = filelock.FileLock(folder / f".{run}.lock")
        self.held: list[bytes] = []  # lines before the first result

    def begin(self, header: bytes) -> None:
        """Lock the name; hold the header back until the first result.

        Raises :class:`RunError` if another run holds the name, and OSError for a folder
        or device in the place of one of the files.
        """
        make_folder(self.path.parent)
        check_replaceable(self.final)
        check_replaceable(self.path)
        try:
            with naming(self.lock.lock_file):
                self.lock.acquire(timeout=0)
        except filelock.Timeout:
            raise RunError(
                f"{self.name}: another run writes to it; wait until it has ended, or "
                "give another --out"
            ) from None
        self.held = [header]

    def append(self, line: bytes, is_result: bool) -> None:
        """Add a line, with its newline; raises OSError if the file was deleted.

        The first result replaces the partial record of an earlier run.
        """
        if self.held:
            self.held.append(line)
            if is_result:
                self._write_held()
            return
        # Not "a", which would begin a new file without a header.
        with naming(self.path), open(self.path, "r+b") as f:
            f.seek(0, os.SEEK_END)
            f.write(line)

    def _write_held(self) -> None:
        with replacing(self.path) as tmp:
            tmp.write_bytes(b"".join(self.held))
        self.held = []

    def finish(self) -> None:
        """Rename the complete record to its final name."""
        if self.held:  # a run without a result
            self._write_held()
        with naming(self.final):
            os.replace(self.path, self.final)

    def release(self) -> None:
        """Release the name; say where the results of an unfinished run are."""
        if self.lock.is_locked and not self.held and self.path.exists():
            log.warning("%s keeps what was measured", self.path)
        self.lock.release()


def sweep(jobs: list[Job], repeats: int = 1) -> Iterator[Header | Line]:
    """Run all jobs `repeats` times, round-robin, and keep their records.

    Yields every line as it arrives, the header of each measurement first. When all are
    complete, all records get their final names. A sweep that fails or is interrupted
    keeps the partial records that hold a result, and leaves earlier records as they
    were. Raises what :meth:`PartialRecord.begin` and :func:`measure` raise.
    """
    records: dict[str, PartialRecord] = {}  # by name of the run
    with contextlib.ExitStack() as at_the_end:
        for repeat in range(repeats):
            for job in jobs:
                with contextlib.closing(measure(replace(job, repeat=repeat))) as lines:
                    for text in lines:
                        line = files.from_line(text)
                        if isinstance(line, Header):
                            run = files.run_name(line)
                            if run not in records:  # else of an earlier repeat
                                records[run] = PartialRecord(job.path, run)
                                at_the_end.callback(records[run].release)
                                records[run].begin(text)
                            record = records[run]
                        else:
                            record.append(text, not isinstance(line, FrameRecord))
                        yield line
        for record in records.values():
            record.finish()


def measure(job: Job) -> Iterator[bytes]:
    """Run one job in a fresh process; yield the lines of its record as they come.

    Raises :class:`DiedError` if the process was killed, and :class:`RunError` for an
    error that it reports; where memory ran out, with what would fit.
    """
    module = "d2lpar.runs.workers" if job.is_worker else "d2lpar.runs.measured"
    try:
        yield from process.raw_lines(
            f"{module}:measured",
            job.as_json(),
            environment=job.variables(),
            seconds_to_stop=SECONDS_TO_STOP,
        )
    except DiedError as error:
        raise DiedError(_died(job, str(error))) from None
    except RunError as error:
        raise RunError(_advice(job, str(error))) from None


def _died(job: Job, why: str) -> str:
    """Return one line on the death of a measuring process, with a remedy."""
    from d2lpar.memory.estimate import free_memory
    from d2lpar.text import byte_size, plural

    if "signal 9" in why:
        free = byte_size(min(free_memory(job.devices)))
        why = (
            f"was {why}, by the system if memory ran out; {free} are free now: run it "
            "again, or with a smaller batch"
        )
    return f"the process that measured {plural(job.num_devices, 'device')} {why}"


def _advice(job: Job, why: str) -> str:
    """Return an error of a measuring process; add what would fit if memory ran out."""
    from d2lpar.memory import out_of_memory

    if not out_of_memory.WORDS.search(why):
        return why
    layers = experiments.load(job.experiment.layers) if job.experiment.layers else None
    return out_of_memory.advice(layers, job.settings, job.devices, job.data, said=why)
