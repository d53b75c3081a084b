"""The process of a STEP.py, which ends with the tool."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import numpy

from d2lpar.verify import step


class FailedError(Exception):
    """A subject did not answer as it should; the message is one line."""


class GoneError(FailedError):
    """It has hung, crashed or been killed, and answers no more."""


class Process:
    """The Step of the file `path`, run by the interpreter `python`.

    Each answer has `timeout` seconds. What the file prints is dropped.
    """

    def __init__(self, path: str, python: str, timeout: float):
        self.timeout, self.printed = timeout, tempfile.TemporaryFile()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [python, step.__file__, path, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.printed,
                stderr=self.printed,
                start_new_session=True,  # its workers are in its group, and end with it
            )
        self.connection = Connection(ours.detach())

    def begin(self, n: int, seed: int) -> tuple:
        """Return what the import, `init` and `batch` have made; see Step.begin."""
        self.sizes, start, _, self.offers = facts = self._ask("begin", n, seed)
        self.start = numpy.frombuffer(start)
        return facts

    def update(self, rows, num_devices: int, lr: float, start, name="step", **words):
        """Return what a step adds to the parameters `start`; a row for each replica."""
        rows = [int(row) for row in rows]
        new = self._ask("update", name, start.tobytes(), rows, num_devices, lr, words)
        return numpy.frombuffer(new).reshape(-1, len(start)) - start

    def _ask(self, *message):
        until = time.monotonic() + self.timeout
        try:
            self.connection.send(message)
            while not self.connection.poll(0.2):
                if time.monotonic() > until:
                    self.close()
                    raise GoneError(f"no answer in {self.timeout:g} s")
                if self.process.poll() is not None and not self.connection.poll():
                    raise EOFError  # a worker of the subject may hold the socket open
            answer = self.connection.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            self.printed.seek(0)
            lines = self.printed.read().decode(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no output")
            raise GoneError(f"its process ended with status {code}: {last}") from None
        if isinstance(answer, str):
            raise FailedError(answer)
        return answer

    def close(self) -> None:
        """End the process and all that it has started."""
        self.connection.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
