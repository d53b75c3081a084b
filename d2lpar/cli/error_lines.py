"""What a person at the keyboard sees when something is wrong: one line, and a code.

Exit codes: 0; 1 when `d2lpar doctor` finds that training cannot run; 2 for anything
wrong that has a message; 3 when a measuring process was killed or crashed, which may
not happen again; 130 after Ctrl-C.
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
    """Run a command; show what a person should see as one line, and exit.

    With `raising` (a notebook) errors pass.
    """
    with _messages_as_lines():
        _call_and_exit(call, raising)


@contextmanager
def _messages_as_lines():
    """Show what the package logs, once: MXNet sets up the root logger, too."""
    if log.handlers:  # a chapter within `d2lpar run`
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
