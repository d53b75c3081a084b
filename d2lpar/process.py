"""Work in a fresh process: a job as JSON in, results as JSON lines out.

MXNet reads its threads and buffers once, when it is imported, may crash its process,
and gives memory back only when the process ends. So measurements, probes and peers each
get a process of their own::

    row = answer(
        "d2lpar.low_precision.measure:in_process",
        {"path": "task.pickle", "precision": "float16", "weights": "trained"},
    )

``python -m d2lpar.process`` reads one JSON line, ``{"call": "module:function", "job":
{...}}``, calls the function with the job's keywords, and writes what it returns or
yields as JSON lines. Any other program that reads a job and prints JSON lines may take
its place, as the peers' scripts do. Beside results a process writes {"error": "one
line"} when it gives up, {"warning": "one line"} for the user, and {"alive": true} as a
heartbeat. It ends when its standard input closes, so that it never outlives the process
that started it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from d2lpar.errors import D2lparError, DiedError, RunError, first_line, is_from_mxnet
from d2lpar.records import files

log = logging.getLogger("d2lpar")

EXTRAS = {"d2l": "book", "mxnet": "cpu", "torch": "peers", "torchvision": "peers"}
_CONTROL = {"error", "warning", "alive"}
# Names the folder for temporary files of a process, which is deleted with it.
SCRATCH = "D2LPAR_SCRATCH"


# In the parent


def results(
    work: str | Sequence[str],
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
) -> Iterator[dict]:
    """What a job's process answers, line by line.

    `work` is "module:function" (or "script.py:function") of a function that a fresh
    Python calls with the job's keywords, or a program's command. `environment` changes
    variables; None unsets one. Raises :class:`RunError` for an error that the process
    reports and after `timeout` seconds, and :class:`DiedError` if it ends otherwise.
    """
    lines = raw_lines(work, job, environment=environment, timeout=timeout)
    with contextlib.closing(lines):
        for line in lines:
            yield json.loads(line)


def answer(
    work: str | Sequence[str],
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
) -> dict:
    """The last of :func:`results`; raises :class:`RunError` if there is none."""
    found = list(results(work, job, environment=environment, timeout=timeout))
    if not found:
        raise RunError(f"{work}: ended without an answer")
    return found[-1]


def raw_lines(
    work: str | Sequence[str],
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str | None] | None = None,
    timeout: float | None = None,
    seconds_to_stop: float = 0,
    on_alive: Callable[[], object] | None = None,
) -> Iterator[bytes]:
    """As :func:`results`, but the lines as they came, with their newlines.

    Where the caller is interrupted or closes the iterator, the process gets SIGTERM and
    `seconds_to_stop` to tidy up. `on_alive` is called at each heartbeat.
    """
    # Temporary files of the process go with it, however it ends.
    with contextlib.ExitStack() as at_the_end:
        scratch = tempfile.mkdtemp(prefix="d2lpar-")
        at_the_end.callback(shutil.rmtree, scratch, ignore_errors=True)
        stderr = at_the_end.enter_context(tempfile.TemporaryFile())
        changes = {**(environment or {}), "TMPDIR": scratch, SCRATCH: scratch}
        command, request = work, job
        if isinstance(work, str):
            command = [sys.executable, "-m", __name__]
            request = {"call": work, "job": job}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=child_environment(changes),
            # Ctrl-C reaches this process alone, which then ends the other: MXNet would
            # finish its queue of work first.
            start_new_session=True,
        )
        at_the_end.callback(_end, process)
        with contextlib.suppress(BrokenPipeError):  # it has died: its status says why
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        timer = None if timeout is None else _kill_after(timeout, process)
        try:
            yield from _lines(process, on_alive)
            code = process.wait()
            if code == -9 and timer is not None and not timer.is_alive():
                raise RunError(f"no answer within {timeout:g} seconds")
            if code != 0:
                stderr.seek(0)
                raise DiedError(crash(code, stderr.read().decode(errors="replace")))
        except (KeyboardInterrupt, GeneratorExit):
            process.terminate()
            _kill_after(seconds_to_stop, process)
            with contextlib.suppress(RunError):
                for _ in _lines(process, on_alive):  # its warnings are passed on
                    pass
            raise
        finally:
            if timer is not None:
                timer.cancel()


def child_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with changes, for a Python that finds this package."""
    paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
    changed = {**os.environ, **changes}
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {name: value for name, value in changed.items() if value is not None}


def crash(status: int, stderr: str) -> str:
    """One clause for a process that crashed: the last line of its traceback.

    >>> crash(1, "ModuleNotFoundError: No module named 'd2l'")
    "d2l is not installed: pip install 'd2lpar[book]'"
    """
    if status == -9:
        return "killed (signal 9)"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else "it wrote nothing"
    absent = re.search(r"No module named '(\w+)'", last)
    if absent and absent[1] in EXTRAS:
        extra = EXTRAS[absent[1]]
        return f"{absent[1]} is not installed: pip install 'd2lpar[{extra}]'"
    return f"ended with status {status}: {last}"


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()


def _kill_after(seconds: float, process: subprocess.Popen) -> threading.Timer:
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def _lines(
    process: subprocess.Popen, on_alive: Callable[[], object] | None
) -> Iterator[bytes]:
    """The results; warnings are logged, an error is raised once the process has ended.

    Its memory is free again by then.
    """
    for line in process.stdout:
        if not (line.startswith(b"{") and line.endswith(b"}\n")):
            continue  # a library's print, or cut short by a kill
        message = json.loads(line)
        if len(message) != 1 or not message.keys() & _CONTROL:
            yield line
        elif "warning" in message:
            log.warning("%s", message["warning"])
        elif "error" in message:
            process.wait()
            raise RunError(message["error"])
        elif on_alive is not None:
            on_alive()


# In the child

_channel: IO[bytes] | None = None
_writing = threading.Lock()


def send(result: Any) -> None:
    """Write one result: a dict, or a line of a record."""
    text = files.to_line(result) if isinstance(result, msgspec.Struct) else ""
    text = text or json.dumps(result, allow_nan=False)
    with _writing:
        _channel.write(text.encode() + b"\n")
        _channel.flush()


def alive() -> None:
    """Tell the parent, if there is one, that the work makes progress."""
    if _channel is not None:
        send({"alive": True})


def main() -> None:
    """Do one job: the program of the fresh process."""
    global _channel
    # Libraries print, and so may MXNet's C++ side: it goes to standard error.
    _channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    handler = logging.Handler()
    handler.emit = lambda record: send({"warning": record.getMessage()})
    log.addHandler(handler)
    log.propagate = False
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    module, _, function = request["call"].rpartition(":")
    try:
        if module.endswith(".py"):
            # Its neighbours can be imported, as by `python script.py`.
            sys.path.insert(0, str(Path(module).parent))
            call = runpy.run_path(module)[function]
        else:
            call = getattr(importlib.import_module(module), function)
        _send_all(call(**request["job"]))
    except D2lparError as error:
        send({"error": str(error)})
    except OSError as error:
        if error.filename is None:
            raise
        send({"error": f"{error.filename}: {error.strerror}"})
    except MemoryError as error:
        _give_up(f"out of memory: {first_line(error)}")
    except Exception as error:
        if not is_from_mxnet(error):
            raise
        _give_up(f"MXNet: {first_line(error)}")


def _send_all(found: Any) -> None:
    if not isinstance(found, Iterator):
        if found is not None:
            send(found)
        return
    try:
        for result in found:
            send(result)
    except KeyboardInterrupt:
        # Between two lines the work has not seen the signal yet.
        with contextlib.suppress(KeyboardInterrupt, StopIteration):
            found.throw(KeyboardInterrupt())
        os._exit(130)  # at once: MXNet would finish its queue of work first


def _give_up(why: str) -> None:
    traceback.print_exc()
    send({"error": why})
    os._exit(0)  # at once: a failed allocation may have damaged MXNet


def _end_with_parent() -> None:
    """End when standard input closes; its temporary files go too."""
    while os.read(0, 4096):  # sys.stdin would be locked when the process ends
        pass
    # Not tempfile.gettempdir(): it is /tmp where the scratch folder has gone already.
    shutil.rmtree(os.environ[SCRATCH], ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    from d2lpar import process  # the module whose functions the work calls

    process.main()
