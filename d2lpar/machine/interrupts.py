"""SIGTERM and SIGHUP end a command as Ctrl-C does: it tidies up, and says so."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SECONDS_TO_LEAVE_IT = 0.01  # the destructor or callback


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """In the block these signals raise KeyboardInterrupt, each unless it is ignored.

    Python prints and drops an exception that a destructor raises, and MXNet's arrays
    have destructors: an interrupt in one of them is sent again. Does nothing outside
    the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, _interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt(number)


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
        return
    number = (*dropped.exc_value.args, signal.SIGINT)[0]
    again = threading.Timer(_SECONDS_TO_LEAVE_IT, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
