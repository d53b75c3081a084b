"""Run a function in a fresh process.

MXNet reads its threads and buffers once, may crash, and gives memory back only at the
end. The process has the parent's ``sys.path``, and does not run ``__main__`` again.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from d2lpar.errors import D2lparError, DiedError, RunError, first_line

log = logging.getLogger("d2lpar")

# A worker yields TURN to pause until the parent, which gets it, asks for more.
TURN = "d2lpar: the next turn"


# In the parent


def results(
    work: str,
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
    seconds_to_stop: float = 0,
    in_turn: bool = False,
) -> Iterator[Any]:
    """Yield what `work`, "module:function", returns or yields for the keywords `job`.

    `environment` changes variables. On an interrupt or close the process gets SIGTERM
    and `seconds_to_stop` to tidy up. With `in_turn`, :data:`TURN` is the first result.
    Raises :class:`RunError` for an error it reports and after `timeout` seconds,
    :class:`DiedError` if it ends otherwise.
    """
    ours, theirs = Pipe()
    with tempfile.TemporaryDirectory(prefix="d2lpar-") as scratch:
        output = Path(scratch, "output")  # what libraries print
        start = f"_begin({theirs.fileno()}, {scratch!r})"
        code = f"import sys; sys.path = {sys.path}; from d2lpar.process import _begin"
        with output.open("wb") as file:
            child = subprocess.Popen(
                [sys.executable, "-c", f"{code}; {start}"],
                env={**os.environ, **(environment or {}), "TMPDIR": scratch},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,  # the terminal is the parent's
                stdout=file,  # libraries print, and so may MXNet's C++ side
                stderr=file,
                # Ctrl-C reaches the parent alone, which then ends this process: MXNet
                # would finish its queue of work first.
                start_new_session=True,
            )
        theirs.close()
        try:
            with suppress(OSError):  # it has ended: _received says why
                ours.send((work, dict(job)))
            if in_turn:
                yield TURN  # several processes can be started before the first works
            yield from _received(child, ours, output, timeout)
        except (KeyboardInterrupt, GeneratorExit):
            if seconds_to_stop:
                child.terminate()
            with suppress(RunError):  # its last warnings are passed on
                for _ in _received(child, ours, output, seconds_to_stop):
                    pass
            raise
        finally:
            _end_session(child.pid)  # first: a second Ctrl-C may end this
            child.wait()
            ours.close()


def answer(work: str, job: Mapping[str, Any], **options: Any) -> Any:
    """Return the last of :func:`results`, with its keywords as `options`."""
    *_, last = results(work, job, **options)
    return last


def _received(
    child: subprocess.Popen, pipe: Connection, output: Path, timeout: float | None
) -> Iterator[Any]:
    """Yield a process's results, log its warnings; raise if it fails or is too slow."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        if not pipe.poll(None if deadline is None else deadline - time.monotonic()):
            raise RunError(f"no answer within {timeout:g} seconds")
        try:
            kind, content = pipe.recv()
        except (EOFError, OSError):  # it ended without a message
            status = child.wait()
            if status == -signal.SIGKILL:
                why = "killed (signal 9); if memory ran out, use a smaller batch"
                raise DiedError(why) from None
            how = f"status {status}" if status >= 0 else signal.Signals(-status).name
            *_, last = output.read_text(errors="replace").strip().split("\n")
            last = last[:300] or "it printed nothing"
            raise DiedError(f"ended with {how}: {last}") from None
        if kind == "result":
            yield content
        elif kind == "turn":
            yield TURN
            pipe.send(None)
        elif kind == "warning":
            log.warning("%s", content)
        else:
            child.wait()  # its memory is free again
            if kind == "end":
                return
            raise (RunError if kind == "error" else DiedError)(content)


def _end_session(number: int) -> None:
    """Kill a process and all that it has started."""
    with suppress(OSError):
        os.killpg(number, signal.SIGKILL)


# In the child

_pipe: Connection | None = None
_sending = threading.Lock()
_turns = threading.Semaphore(0)


def _send(kind: str, content: Any = None) -> None:
    with _sending:
        _pipe.send((kind, content))


def _begin(number: int, scratch: str) -> None:
    """Do the work that the pipe names; send its results and then how it ended."""
    global _pipe
    _pipe = Connection(number)
    # What the work starts may not hold the pipe: the parent would not see its end.
    os.set_inheritable(number, False)
    os.register_at_fork(after_in_child=_pipe.close)
    work, job = _pipe.recv()
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    handler = logging.Handler()
    handler.emit = lambda record: _send("warning", record.getMessage())
    log.addHandler(handler)
    log.propagate = False
    module, _, function = work.partition(":")
    try:
        outcome = getattr(importlib.import_module(module), function)(**job)
        results = outcome if isinstance(outcome, Iterator) else iter([outcome])
        try:
            for result in results:
                if result is TURN:
                    _send("turn")
                    _turns.acquire()
                else:
                    _send("result", result)
        except KeyboardInterrupt:
            # Between two results the work has not seen the signal yet.
            with suppress(KeyboardInterrupt, StopIteration):
                results.throw(KeyboardInterrupt())
            os._exit(130)  # at once: MXNet would finish its queue of work first
        _send("end")
    except BaseException as error:
        _send(*_message_of(error))
    # At once: a failed allocation may have damaged MXNet, and what the work has started
    # may never end.
    os._exit(0)


def _message_of(error: BaseException) -> tuple[str, str]:
    """Return the kind of message, and in one line why the work failed."""
    line = first_line(error)[:300]
    if isinstance(error, D2lparError):
        return "error", str(error)
    if isinstance(error, MemoryError):
        return "error", f"out of memory: {line}"
    if type(error).__name__ == "MXNetError":
        return "error", f"MXNet: {line}"
    if isinstance(error, OSError) and error.filename is not None:
        return "error", f"{error.filename}: {error.strerror}"
    return "died", f"failed: {type(error).__name__}: {line}"


def _end_with_parent(scratch: str) -> None:
    """End, and remove the temporary files, when the parent's end of the pipe closes.

    Until then the parent sends turns.
    """
    with suppress(EOFError, OSError):
        while True:
            _pipe.recv()
            _turns.release()
    shutil.rmtree(scratch, ignore_errors=True)
    _end_session(os.getpid())
