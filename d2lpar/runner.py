"""Measure one workload on 1, 2, ... N devices, each count in a fresh process.

MXNet reads its threads and buffers once, when it is imported; so every measurement gets
a process of its own, started with the right environment, one after the other. The
process (``python -m d2lpar.runner``) reads its job as JSON from standard input and
writes a record's lines to standard output. It ends when its standard input does, so
that it never outlives the one who started it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import logging
import math
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from d2lpar import devices, out_of_memory, records, watching, workers
from d2lpar._version import __version__
from d2lpar.errors import D2lparError, DiedError, RunError, SettingError
from d2lpar.records import Header, Line, Run

log = logging.getLogger("d2lpar")

# Every step allocates and frees activations of 10 MB. The C library would give each one
# back to the system at once, and the page faults of all devices wait for one lock: with
# these, two CPU contexts are about 8 % faster. Read when a process starts.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}


# A training that is interrupted ends its step and writes a checkpoint, within this.
SECONDS_TO_STOP = 20


@dataclass(frozen=True)
class Job:
    """What one measuring process is to do.

    `train` names a generator function, "module:function", that is called as
    ``train(num_devices, devices=..., seed=..., data=..., **settings)`` and yields
    the lines of a record; `load` names the function that is called with `data` for the
    data set. `variant` is the name of one method of several. `threads` is the number of
    threads of a CPU context; None shares the cores out. `profile_in` is the folder for
    profiles (see :mod:`d2lpar.profiling`); None takes none. With `one_thread_each`
    several contexts do not share the cores out but take a thread each, as work must
    that goes to OpenBLAS (see :func:`d2lpar.least_squares.solve`). With `watch` the
    record also has a line each second of how busy the devices are.

    `checkpoints_in` is the folder for checkpoints, of workloads that have a state:
    every `checkpoint_every` epochs (None: not), and when the run is interrupted.
    `resume` is a checkpoint's path, or "last" for the newest one in that folder;
    `num_epochs` then counts from the beginning of the training.
    """

    chapter: str
    preset: str
    train: str
    devices: str
    num_devices: int
    seed: int
    settings: dict
    data: dict
    command: str
    threads: int | None = None
    load: str = "d2lpar.datasets:load"
    variant: str = ""
    profile_in: str | None = None
    one_thread_each: bool = False
    watch: bool = False
    checkpoints_in: str | None = None
    checkpoint_every: int | None = None
    resume: str | None = None


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
                        final = out / f"{records.run_name(item)}.jsonl"
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
        f.write(records.to_line(item) + "\n")


def _keep_or_remove(path: Path) -> None:
    with contextlib.suppress(D2lparError):
        run = records.read(path)
        for what in ("epochs", "points", "timings", "steps"):
            finished = len(getattr(run, what))
            if finished:
                log.warning("%s keeps the %d finished %s", path, finished, what)
                return
    path.unlink(missing_ok=True)


def finished_runs(jobs_headers: list[Header], out: Path) -> list[Run]:
    """The record files of a complete sweep, as read back."""
    return [records.read(out / f"{records.run_name(h)}.jsonl") for h in jobs_headers]


def _measure(job: Job) -> Iterator[Line]:
    """Start one measuring process and yield what it reports."""
    environment = {**KEEP_FREED_MEMORY, **os.environ}
    threads = job.threads or devices.threads_per_context(job.num_devices)
    if job.one_thread_each and job.num_devices > 1 and not job.threads:
        threads = devices.USER_THREADS or 1
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parents[1]), environment.get("PYTHONPATH", "")]
    ).rstrip(os.pathsep)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "d2lpar.runner"],
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
                    workers.show_life()
                elif kind == "out-of-memory":
                    process.wait()  # its memory comes back
                    raise RunError(_out_of_memory(job, json.loads(line)["message"]))
                elif kind == "error":
                    raise RunError(json.loads(line)["message"])
                else:
                    item = records.from_line(line)
                    if isinstance(item, Header) and job.watch:
                        watch.enter_context(_watching(process.pid, lines))
                    elif isinstance(item, records.Sample):
                        item = replace(item, epoch=epoch + 1)
                    elif isinstance(item, records.EPOCHS):
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
    return watching.sampling(pid, lambda s: lines.put(records.to_line(s)))


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
    workers.on_step = workers.at_most_every(1, lambda: tell('{"kind": "alive"}'))
    items = _work(job)
    try:
        for item in items:
            tell(records.to_line(item))
    except KeyboardInterrupt:
        # Where the signal came between two lines, the work does not know of it yet.
        with contextlib.suppress(KeyboardInterrupt):
            items.throw(KeyboardInterrupt())
        os._exit(130)  # at once: MXNet would finish its queue of work first
    except D2lparError as error:
        tell(json.dumps({"kind": "error", "message": str(error)}))
    except Exception as error:
        if out_of_memory.is_out_of_memory(error):
            said = out_of_memory.last_line(error)
            tell(json.dumps({"kind": "out-of-memory", "message": said}))
            os._exit(0)  # at once: a failed allocation may have harmed MXNet
        if type(error).__name__ != "MXNetError":
            raise
        traceback.print_exc()
        tell(json.dumps({"kind": "error", "message": first_line(error)}))


def _work(job: Job) -> Iterator[Line]:
    train, load = _named(job.train), _named(job.load)
    chosen = devices.parse(job.devices)[: job.num_devices]
    data = load(**job.data)
    header = _header(job, chosen, data)
    common = {"devices": chosen, "seed": job.seed, "data": data}
    if workers.place() is not None:
        header, common["workers"] = workers.joined(header, train)
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
        from d2lpar.profiling import profiled

        lines = profiled(lines, Path(job.profile_in) / records.run_name(header))
    yield from lines
    if "workers" in common:
        common["workers"].leave()


def _resumable(
    job: Job, header: Header, start: Callable, train: Callable, common: dict
) -> Iterator[Line]:
    """The lines of a training that writes checkpoints, also when it is interrupted."""
    from d2lpar.resumable import Resumable

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
        return lines if group is None else workers.with_traffic(lines)

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

    commit, dirty = records.git_state()
    on_cpu = chosen[0].device_type == "cpu"
    return Header(
        chapter=job.chapter,
        preset=job.preset,
        num_devices=len(chosen),
        device_kind=chosen[0].device_type,
        devices=[devices.label(device) for device in chosen],
        threads_per_device=devices.omp_threads() if on_cpu else None,
        cores=devices.usable_cores(),
        cpu_model=devices.cpu_model(),
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
        date=records.now(),
    )


def _named(name: str):
    """What "module:function" names."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def _as_json(value: object) -> object:
    """NaN and infinities as text: JSON has none, and `train` will refuse them."""
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if finite else str(value)


def first_line(error: Exception) -> str:
    """The line of an MXNet error that means something, without its C++ trace."""
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if "Error:" in line or "Check failed" in line]
    return f"MXNet: {(telling or lines or ['unknown error'])[0]}"


def _out_of_memory(job: Job, said: str = "") -> str:
    """The line for a measuring process that has ended: its memory is free again."""
    chosen = devices.parse(job.devices)[: job.num_devices]
    plan = (job.train, job.settings, chosen, job.data)
    return out_of_memory.advice(*plan, said=said)


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    child()
