"""Measure one workload on 1, 2, ... N devices, each count in a fresh process.

MXNet reads its threads and buffers once, when it is imported; so every measurement gets
a process of its own, started with the right environment, one after the other. The
process (``python -m d2lpar.runs.sweep``) reads its job as JSON from standard input and
writes a record's lines to standard output. It ends when its standard input does, so
that it never outlives the one who started it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from d2lpar import devices
from d2lpar.errors import D2lparError, DiedError, RunError
from d2lpar.machine import cores, load
from d2lpar.memory import out_of_memory
from d2lpar.records import files, kinds
from d2lpar.records.kinds import (
    Header,
    Line,
    PointRecord,
    Run,
    StepRecord,
    TimingRecord,
)
from d2lpar.runs.job import KEEP_FREED_MEMORY, Job
from d2lpar.workers import group

log = logging.getLogger("d2lpar")


# A training that is interrupted ends its step and writes a checkpoint, within this.
SECONDS_TO_STOP = 20


def sweep(jobs: list[Job], repeats: int, out: Path) -> Iterator[Line]:
    """Run the jobs one after the other, `repeats` times round, and keep their records.

    Yields every line as it arrives, the header of each measurement first. Each job's
    record grows in ``<run>.partial.jsonl``; when all are complete, all are renamed to
    ``<run>.jsonl``. A sweep that fails or is interrupted keeps the partial records that
    hold an epoch, and leaves earlier records as they were.
    """
    partial: dict[int, Path] = {}
    complete: dict[Path, Path] = {}
    try:
        for repeat in range(repeats):
            for number, job in enumerate(jobs):
                for item in _measure(job):
                    if isinstance(item, Header) and number not in partial:
                        final = out / f"{files.run_name(item)}.jsonl"
                        partial[number] = final.with_suffix(".partial.jsonl")
                        complete[partial[number]] = final
                        _append(partial[number], item, mode="w")
                    elif not isinstance(item, Header):
                        item = replace(item, repeat=repeat)
                        _append(partial[number], item)
                    yield item
        for path, final in complete.items():
            os.replace(path, final)
    finally:
        for path in complete:
            if path.exists():
                _keep_or_remove(path)


def follow(job: Job) -> Iterator[Line]:
    """Run a job as one of several workers, which keeps no record: worker 0 does."""
    return _measure(job)


def _append(path: Path, item: Line, mode: str = "a") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, mode, encoding="utf-8") as f:
        f.write(files.to_line(item) + "\n")


def _keep_or_remove(path: Path) -> None:
    with contextlib.suppress(D2lparError):
        run = files.read(path)
        kinds = {
            "epochs": run.epochs,
            "points": run.of(PointRecord),
            "timings": run.of(TimingRecord),
            "steps": run.of(StepRecord),
        }
        for what, lines in kinds.items():
            finished = len(lines)
            if finished:
                log.warning("%s keeps the %d finished %s", path, finished, what)
                return
    path.unlink(missing_ok=True)


def finished_runs(jobs_headers: list[Header], out: Path) -> list[Run]:
    """The record files of a complete sweep, as read back."""
    return [files.read(out / f"{files.run_name(h)}.jsonl") for h in jobs_headers]


def _measure(job: Job) -> Iterator[Line]:
    """Start one measuring process and yield what it reports."""
    environment = {**KEEP_FREED_MEMORY, **os.environ}
    threads = job.threads or cores.threads_per_context(job.num_devices)
    if job.one_thread_each and job.num_devices > 1 and not job.threads:
        threads = cores.USER_THREADS or 1
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "d2lpar.runs.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=environment,
            # Ctrl-C reaches this process alone, which then ends the other: MXNet would
            # finish its queue of work first.
            start_new_session=True,
        )
        lines, epoch = _read_aside(process), 0
        watch = contextlib.ExitStack()
        try:
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
            for line in _arriving(lines):
                kind = json.loads(line).get("kind")
                if kind == "note":
                    log.warning("%s", json.loads(line)["message"])
                elif kind == "alive":
                    group.show_life()
                elif kind == "out-of-memory":
                    process.wait()  # its memory comes back
                    raise RunError(_out_of_memory(job, json.loads(line)["message"]))
                elif kind == "error":
                    raise RunError(json.loads(line)["message"])
                else:
                    item = files.from_line(line)
                    if isinstance(item, Header) and job.watch:
                        watch.enter_context(_watching(process.pid, lines))
                    elif isinstance(item, kinds.Sample):
                        item = replace(item, epoch=epoch + 1)
                    elif isinstance(item, kinds.EPOCHS):
                        epoch = item.epoch
                    yield item
            code = process.wait()
            if code != 0:
                stderr.seek(0)
                raise DiedError(_why_it_ended(job, code, stderr.read()))
        except (KeyboardInterrupt, GeneratorExit):
            _let_it_stop(process, lines)
            raise
        finally:
            watch.close()
            process.kill()
            process.wait()


def _watching(pid: int, lines: queue.Queue) -> contextlib.AbstractContextManager:
    """Samples of a measuring process join the lines that it writes."""
    return load.sampling(pid, lambda s: lines.put(files.to_line(s)))


def _read_aside(process: subprocess.Popen) -> queue.Queue:
    """The process's lines as they come, and None after the last."""
    lines: queue.Queue = queue.Queue()

    def pump() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=pump, daemon=True).start()
    return lines


def _arriving(lines: queue.Queue) -> Iterator[str]:
    """Lines until the end, waiting in such a way that a signal is never held up."""
    while True:
        with contextlib.suppress(queue.Empty):
            line = lines.get(timeout=0.5)
            if line is None:
                return
            yield line


def _let_it_stop(process: subprocess.Popen, lines: queue.Queue) -> None:
    """Give a training the time to write its checkpoint, and pass on what it says."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_STOP)
        for line in _arriving(lines):
            if json.loads(line).get("kind") == "note":
                log.warning("%s", json.loads(line)["message"])


def _why_it_ended(job: Job, code: int, stderr: str) -> str:
    what = f"the process that measured {job.num_devices} device(s)"
    if code == -9:
        return f"{what} was killed (signal 9), perhaps {_out_of_memory(job)}"
    last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"{what} ended with status {code}: {last}"


def _out_of_memory(job: Job, said: str = "") -> str:
    """The line for a measuring process that has ended: its memory is free again."""
    chosen = devices.parse(job.devices)[: job.num_devices]
    plan = (job.train, job.settings, chosen, job.data)
    return out_of_memory.advice(*plan, said=said)
