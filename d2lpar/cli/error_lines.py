"""Errors as one line on stderr and an exit code, without a traceback.

Exit codes: 0 for success; 1 when `d2lpar doctor` finds that training cannot run; 2 for
an error with a message; 3 when a measuring process was killed or crashed, so that
another attempt may succeed; 130 after Ctrl-C.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import contextmanager

import click

from d2lpar.errors import D2lparError

log = logging.getLogger("d2lpar")


def guard(call: Callable[[], object], raising: bool = False) -> None:
    """Call a command; print an error as one line and exit with its code.

    With `raising`, as in a notebook, errors are raised.
    """
    with _logging_as_lines():
        _call_and_exit(call, raising)


@contextmanager
def _logging_as_lines():
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


def _call_and_exit(call: Callable[[], object], raising: bool) -> None:
    try:
        code = call()
    except (KeyboardInterrupt, click.Abort):
        _leave("interrupted", 130)
    except click.ClickException as error:
        if raising:
            raise
        _leave(error.format_message(), 2)
    except D2lparError as error:
        if raising:
            raise
        _leave(str(error), error.exit_code)
    except OSError as error:
        if raising or error.strerror is None:
            raise
        _leave(f"{error.filename or 'writing a file'}: {error.strerror}", 2)
    else:
        if isinstance(code, int) and code != 0 and not raising:
            sys.exit(code)


def _leave(message: str, code: int) -> None:
    click.echo(f"d2lpar: {message}", err=True)
    sys.exit(code)
