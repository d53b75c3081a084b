"""Measure jobs one after the other, each in a fresh process, and keep their records."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from d2lpar import process
from d2lpar.errors import DiedError, RunError
from d2lpar.records import files
from d2lpar.records.atomic import naming
from d2lpar.records.kinds import Header, Line, Run
from d2lpar.runs.plan import Job
from d2lpar.text import plural

log = logging.getLogger("d2lpar")


class GrowingRecord:
    """A record that grows in ``<run>.partial.jsonl`` until its sweep is complete.

    An interrupted or longer record of the same run is kept under its date.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        run = files.run_name(header)
        self.lines: list[Header | Line] = []
        self.path = folder / f"{run}.partial.jsonl"
        self.final = folder / f"{run}.jsonl"
        self.file = open(self.path, "a+", encoding="utf-8")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise RunError(
                f"{self.path}: another run writes to it; wait until it has ended, or "
                "give another --out"
            ) from None
        kept_if_longer(self.path, 1)  # of an interrupted run
        self.file.truncate(0)
        self.append(header)

    def append(self, line: Header | Line) -> None:
        """Add a line."""
        self.lines.append(line)
        with naming(self.path):
            print(files.to_line(line), file=self.file, flush=True)

    def finish(self) -> Run:
        """Rename the complete record to its final name, and return it."""
        if kept := kept_if_longer(self.final, len(self.lines)):
            log.warning("%s was longer, and is kept as %s", self.final, kept.name)
        os.replace(self.path, self.final)
        header, *lines = self.lines
        return Run(header, tuple(lines), self.final)

    def close(self) -> None:
        """Release the file; an unfinished one stays if it holds a result."""
        if len(self.lines) == 1:
            self.path.unlink(missing_ok=True)
        elif self.path.exists():
            log.warning("%s keeps what was measured", self.path)
        self.file.close()


def date_of(path: Path) -> str:
    """Return the UTC time of a record's last line."""
    changed = datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)
    return changed.isoformat(timespec="seconds")[:19]


def kept_if_longer(path: Path, lines: int) -> Path | None:
    """Copy a record of more than so many lines to "cpu2.of-2026-...jsonl"."""
    content = path.read_bytes() if path.exists() else b""
    if content.count(b"\n") <= lines:
        return None
    run, date = path.name.split(".")[0], date_of(path).replace(":", "")
    copy = path.with_name(f"{run}.of-{date}.jsonl")
    copy.write_bytes(content)
    return copy


def sweep(
    jobs: list[Job], on_line: Callable[[Header | Line], object] = lambda line: None
) -> list[Run]:
    """Run all repeats of the jobs; write and return their records.

    The processes of one repeat take turns, epoch by epoch or solve by solve, so that a
    machine that drifts slows all of them. `on_line` gets every line as it arrives, and
    a run's header before the lines of each turn. Partial records that hold a result
    are kept.
    """
    folder = jobs[0].folder
    turns = tuple(len(job.devices) for job in jobs) if len(jobs) > 1 else ()
    records: dict[str, GrowingRecord] = {}  # by name of the run
    with ExitStack() as at_the_end:
        for repeat in range(len(jobs[0].seeds)):
            waiting = []
            for job in jobs if repeat % 2 == 0 else reversed(jobs):  # A B, B A
                lines = run_job(replace(job, repeat=repeat, turns=turns))
                at_the_end.enter_context(closing(lines))
                if turns:
                    next(lines)  # all start together, and wait for their turn
                waiting.append((lines, None))
            while waiting:
                lines, record = waiting.pop(0)
                if record:
                    on_line(record.lines[0])
                for line in lines:
                    if line is process.TURN:
                        waiting.append((lines, record))
                        break
                    if isinstance(line, Header):
                        run = files.run_name(line)
                        if run not in records:  # else of an earlier repeat
                            records[run] = GrowingRecord(folder, line)
                            at_the_end.callback(records[run].close)
                        record = records[run]
                    else:
                        record.append(line)
                    on_line(line)
        finals = [record.final for record in records.values()]
        if old := [f"{p.name} of {date_of(p)}" for p in finals if p.exists()]:
            log.warning("in %s this replaces %s", folder, ", ".join(old))
        return [record.finish() for record in records.values()]


def run_job(job: Job) -> Iterator[Header | Line]:
    """Run one job in a fresh process; yield the lines of its record as they come."""
    try:
        yield from process.results(
            "d2lpar.runs.child:lines_of",
            {"job": job},
            environment=job.variables(),
            seconds_to_stop=20,  # to end a step and write a checkpoint
            in_turn=bool(job.turns),
        )
    except DiedError as error:
        measured = plural(len(job.devices), "device")
        raise DiedError(f"the process that measured {measured}: {error}") from None
    except RunError as error:
        from d2lpar.datasets import fashion
        from d2lpar.memory import out_of_memory

        why, lenet = str(error), {}
        if out_of_memory.WORDS.search(why):
            if job.experiment.room == "d2lpar.lenet":
                batch = job.settings["global_batch_size"]
                lenet = {"lenets_batch": batch, **fashion.load(**job.data).sizes}
            why = out_of_memory.advice(job.devices, why, **lenet)
        raise RunError(why) from None
