"""The errors of d2lpar, each a line and an exit code on the command line.

Beside them: one-line summaries of third-party errors, and signals as errors.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class D2lparError(Exception):
    """Base of the errors whose one-line message tells the user what to do."""

    exit_code = 2


class MXNetMissingError(D2lparError, ImportError):
    """MXNet, or a shared library it links, cannot be loaded."""


class DeviceError(D2lparError, ValueError):
    """A device does not exist, or this MXNet has no code for it."""


class DataError(D2lparError, ValueError):
    """A data file is missing, truncated, corrupt or of another kind."""


class SettingError(D2lparError, ValueError):
    """A setting is out of range: a negative epoch count, a NaN learning rate."""


class RecordError(D2lparError, ValueError):
    """A file cannot be read as a record."""


class DivergedError(D2lparError, ArithmeticError):
    """The training loss is no longer a number."""


class RunError(D2lparError, RuntimeError):
    """A measuring process ended without finishing its work."""


class DiedError(RunError):
    """A measuring process was killed or crashed; a second attempt may succeed."""

    exit_code = 3


class CheckpointError(D2lparError, ValueError):
    """A checkpoint is damaged, or belongs to another training."""


_TRACE = re.compile(r"\s|$|Traceback|Stack trace|\[bt\]")


def first_line(error: BaseException | str) -> str:
    """Return an error's message in one line, without a trace, or its class's name."""
    lines = [line for line in str(error).splitlines() if not _TRACE.match(line)]
    telling = [line for line in lines if "Error:" in line or "Check failed" in line]
    message = (telling or lines or [""])[0].removeprefix("MXNetError: ")
    return message or ("" if isinstance(error, str) else type(error).__name__)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGINT, SIGTERM and SIGHUP, unless ignored.

    For the main thread: ValueError in another one.
    """

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
