"""Errors as one line on stderr and an exit code, without a traceback.

Exit codes: 0 for success; 1 when `d2lpar doctor` finds that training cannot run; 2 for
an error with a message; 3 when a measuring process was killed or crashed, so that
another attempt may succeed; 130 after Ctrl-C, SIGTERM and SIGHUP.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from d2lpar.errors import D2lparError
from d2lpar.machine.environment import raising_interrupts

log = logging.getLogger("d2lpar")


def guard(call: Callable[[], object], raising: bool = False) -> object:
    """Call a command; print an error as one line and exit with its code.

    SIGTERM and SIGHUP end it as Ctrl-C does. With `raising`, as in a notebook, errors
    are raised. Returns what the call returned.
    """
    _open_closed_streams()
    with _logging_as_lines(), raising_interrupts():
        try:
            code = call()
            sys.stdout.flush()  # a full disk behind it is an error, too
        except (Exception, KeyboardInterrupt) as error:
            message, code = _message_and_code(error)
            if raising or message is None:
                raise
            with suppress(OSError):  # where the terminal has been closed
                click.echo(f"d2lpar: {printable(message)}", err=True)
        if isinstance(code, int) and code != 0 and not raising:
            sys.exit(code)
        return code


def printable(text: str) -> str:
    """The text with escape sequences and the like, as in names of files, spelled out.

    >>> printable("\x1b[31mx.jsonl")
    '\\\\x1b[31mx.jsonl'
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def _open_closed_streams() -> None:
    """Open what was closed, as by ``2>&-``, on the null device.

    Else the next file that is opened, a record for example, would get the number of
    standard error, and MXNet's messages.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False)
            setattr(sys, name, stream)


def _message_and_code(error: BaseException) -> tuple[str | None, int]:
    """None for an error that only its traceback explains."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted", 130
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split()), 2
    if isinstance(error, D2lparError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.strerror is not None:
        # What we write to has a name: what is left are the terminal and its pipes, and
        # a working directory that somebody has removed.
        gone = isinstance(error, FileNotFoundError)
        nameless = "the working directory" if gone else "standard output"
        return f"{error.filename or nameless}: {error.strerror}", 2
    return None, 1


@contextmanager
def _logging_as_lines() -> Iterator[None]:
    """Print the package's log messages once, although MXNet sets up the root logger."""
    if log.handlers:  # set by `d2lpar run`, for the chapter that it runs
        yield
        return
    handler, propagate = logging.StreamHandler(), log.propagate
    handler.setFormatter(logging.Formatter("d2lpar: %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
