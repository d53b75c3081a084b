"""Run a solution in a process of its own, so that it cannot read the answers."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection
from typing import Any

ENDED = "its process has ended"


def stream(items: Callable[[], Iterator]) -> Generator[Any, None, None]:
    """Yield the items of a generator from a fork; EOFError if that ends too early."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: MXNet's stop
        process = os.fork()
    if process == 0:
        receiver.close()
        _send_all(items, sender)
    sender.close()
    try:
        while (item := receiver.recv()) is not None:
            (found,) = item
            yield found
    finally:
        receiver.close()
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _send_all(items: Callable[[], Iterator], sender: Connection) -> None:
    try:
        for item in items():
            sender.send((item,))
        sender.send(None)
    finally:
        os._exit(0)


def apart(scenario: Callable, *functions: Callable) -> Any:
    """Return ``scenario(*functions)`` of a fork; its errors become AssertionErrors."""

    def outcome() -> Iterator[tuple]:
        try:
            yield "", scenario(*functions)
        except (Exception, SystemExit) as error:
            yield type(error).__name__, " ".join(str(error).split())

    with contextlib.closing(stream(outcome)) as outcomes:
        try:
            kind, found = next(outcomes)
        except EOFError:
            raise AssertionError(ENDED) from None
    if kind == "NotImplementedError":
        raise NotImplementedError(found)
    if kind:
        raise AssertionError(found if kind == "AssertionError" else f"{kind}: {found}")
    return found
