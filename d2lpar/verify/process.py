"""A STEP.py in a process of its own, which ends with the tool.

Any interpreter runs this file: it imports only NumPy, and sends bytes, not pickles.
"""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import numpy


class FailedError(Exception):
    """A subject did not answer as it should; the message is one line."""


class GoneError(FailedError):
    """It has hung, crashed or been killed, and answers no more."""


class Process:
    """The Subject of a file; each answer has `timeout` seconds."""

    def __init__(self, path: str, python: str, timeout: float):
        self.timeout, self.printed = timeout, tempfile.TemporaryFile()
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [python, __file__, path, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.printed,
                stderr=self.printed,
                start_new_session=True,  # its workers are in its group, and end with it
            )

    def begin(self, n: int, seed: int, lr: float) -> None:
        self.sizes, start = self._ask("begin", n, seed)
        self.start, self.lr = numpy.frombuffer(start), lr

    def update(self, rows, num_devices, start=None, lr=None, name="step", **words):
        """Return what a step adds to the parameters; `replicas`: a row for each."""
        start = self.start if start is None else start
        rows, lr = [int(row) for row in rows], lr or self.lr
        new = self._ask("update", name, start.tobytes(), rows, num_devices, lr, words)
        updates = numpy.frombuffer(new).reshape(-1, len(start)) - start
        return updates if name == "replicas" else updates[0]

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


class Subject:
    """The functions of a STEP.py, on vectors that hold all parameters."""

    def __init__(self, module):
        self.module = module

    def begin(self, n, seed):
        """Make n samples and one of zeros; return the parameters' sizes and bytes."""
        self.params = [numpy.asarray(p) for p in self.module.init(seed)]
        X_y = [numpy.asarray(a) for a in self.module.batch(n, seed)]
        if [len(a) for a in X_y] != [n, n]:
            raise ValueError(f"batch({n}, {seed}) has shapes {[a.shape for a in X_y]}")
        self.X_y = [numpy.concatenate([a, numpy.zeros_like(a[:1])]) for a in X_y]
        return [p.size for p in self.params], self.pack(self.params)

    def update(self, name, start, rows, num_devices, lr, words):
        """Return the bytes of the parameters after a step, or of all replicas."""
        ends = numpy.cumsum([p.size for p in self.params])
        parts = zip(numpy.split(numpy.frombuffer(start), ends[:-1]), self.params)
        params = [part.reshape(p.shape).astype(p.dtype) for part, p in parts]
        X, y = (a[rows] for a in self.X_y)
        function = getattr(self.module, name, None)
        if function is None:
            raise NotImplementedError(f"the file defines no function `{name}`")
        takes = inspect.signature(function).parameters.values()
        names = {p.name for p in takes}
        for word in words:
            if word not in names and all(p.kind is not p.VAR_KEYWORD for p in takes):
                raise NotImplementedError(f"`{name}` has no argument `{word}`")
        new = function(params, X, y, num_devices, lr, **words)
        return b"".join(map(self.pack, new if name == "replicas" else [new]))

    def pack(self, params):
        arrays = [numpy.asarray(p) for p in params]
        shapes = [p.shape for p in arrays]
        if shapes != [p.shape for p in self.params]:
            raise ValueError(f"parameters of shapes {shapes}, which init does not have")
        vector = numpy.concatenate([p.ravel() for p in arrays])
        if vector.dtype.kind != "f" or not numpy.isfinite(vector).all():
            raise ValueError("parameters that are not finite floats")
        return vector.astype(float).tobytes()


def serve(path, connection):
    """Answer calls of a Subject's functions until the tool ends this process."""
    folder, file = os.path.split(os.path.abspath(path))
    sys.path[0], sys.argv = folder, [path]  # as if it were run
    subject = None
    while True:
        name, *arguments = connection.recv()
        try:
            subject = subject or Subject(importlib.import_module(file[: -len(".py")]))
            answer = getattr(subject, name)(*arguments)
        except NotImplementedError as error:  # an optional part, named in plain words
            answer = str(error)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".splitlines()[0]
        connection.send(answer)


def end_with(tool):
    """End this process, and all that it has started, when the tool has gone."""
    while os.getppid() == tool:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    serve(sys.argv[1], Connection(int(sys.argv[2])))
