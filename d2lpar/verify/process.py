"""A STEP.py in a process of its own, which ends with the tool.

Any interpreter runs this file: it imports only NumPy, and sends bytes, not pickles.
"""

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
from pathlib import Path

import numpy

MARK = "D2LPAR_VERIFY"  # a variable of the process, and of all that it starts


class FailedError(Exception):
    """A subject has answered that it failed; the message is one line."""


class GoneError(Exception):
    """It has hung, crashed or been killed, and answers no more."""


class Subject:
    """The functions of a module, or of its name, on vectors with all parameters."""

    def __init__(self, module):
        self.module = module

    def answer(self, name, *arguments):
        """Return what a method returns, or a line that says why it fails."""
        try:
            return getattr(self, name)(*arguments)
        except (Exception, SystemExit) as error:
            return in_one_line(f"{type(error).__name__}: {error}")

    def begin(self, n, seed):
        """Make n samples and one of zeros; return the parameters' ends and bytes."""
        if isinstance(self.module, str):
            self.module = importlib.import_module(self.module)
        self.params = [numpy.asarray(p) for p in self.module.init(seed)]
        X_y = [numpy.asarray(a) for a in self.module.batch(n, seed)]
        if [a.shape[:1] for a in X_y] != [(n,), (n,)]:
            raise ValueError(f"batch({n}, {seed}) has shapes {[a.shape for a in X_y]}")
        self.X_y = [numpy.concatenate([a, numpy.zeros_like(a[:1])]) for a in X_y]
        self.ends = numpy.cumsum([p.size for p in self.params]).tolist()
        return self.ends, self.pack(self.params)

    def update(self, name, start, rows, num_devices, lr, words):
        """Return the bytes of the parameters after a step, or of all replicas."""
        function = getattr(self.module, name, None)
        if function is None:
            return f"the file defines no function `{name}`"
        for word in words:
            if word not in inspect.signature(function).parameters:
                return f"`{name}` has no argument `{word}`"
        parts = zip(numpy.split(numpy.frombuffer(start), self.ends), self.params)
        params = [part.reshape(p.shape).astype(p.dtype) for part, p in parts]
        X, y = (a[rows] for a in self.X_y)
        new = function(params, X, y, num_devices, lr, **words)
        return b"".join(map(self.pack, new if name == "replicas" else [new]))

    def pack(self, params):
        """Return the bytes of parameters. Raises ValueError."""
        arrays = [numpy.asarray(p, float) for p in params]
        shapes = [p.shape for p in arrays]
        if shapes != [p.shape for p in self.params]:
            raise ValueError(f"parameters of shapes {shapes}, which init does not have")
        return numpy.concatenate([p.ravel() for p in arrays]).tobytes()


class Process:
    """The Subject of a file, which has `timeout` seconds for each answer."""

    def __init__(self, path: str, python: str, timeout: float):
        self.timeout, self.errors = timeout, tempfile.TemporaryFile()
        self.mark = f"{os.getpid()} {time.time_ns()}"
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [python, __file__, path, str(theirs.fileno())],
                env={**os.environ, MARK: self.mark},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,
            )

    def answer(self, *message):
        """Return what the Subject answers. Raises GoneError."""
        try:
            self.connection.send(message)
            if self.connection.poll(self.timeout):
                return self.connection.recv()
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):  # it may have closed its end
                self.process.wait(5)
            self.close()
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").rstrip().split("\n")
            how = f"its process ended with status {self.process.returncode}"
            raise GoneError(
                f"{how}: {in_one_line(lines[-1] or 'no message')}"
            ) from None
        self.close()
        raise GoneError(f"no answer in {self.timeout:g} s")

    def close(self):
        """End the process and all that it has started."""
        self.connection.close()
        end(self.process.pid, self.mark)
        self.process.wait()


def in_one_line(text):
    """Return a text in one line, without the middle of a long one."""
    line = " ".join(text.split())
    return line if len(line) <= 300 else f"{line[:150]} ... {line[-150:]}"


def end(pid, mark):
    """End a subject's process and, on Linux, what it has started in other sessions."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        other = int(environment.parent.name)
        with suppress(OSError):
            if other != pid and f"{MARK}={mark}".encode() in environment.read_bytes():
                os.kill(other, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def end_with(tool):
    """End this process, and all that it has started, when the tool has gone."""
    while os.getppid() == tool:
        time.sleep(0.5)
    end(os.getpid(), os.environ[MARK])


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    path, connection = os.path.abspath(sys.argv[1]), Connection(int(sys.argv[2]))
    os.register_at_fork(after_in_child=connection.close)  # so that its end is seen
    sys.path[0], sys.argv = os.path.dirname(path), sys.argv[1:2]  # as if it were run
    subject = Subject(Path(path).stem)
    with suppress(EOFError, ConnectionError):  # until the tool has gone
        while True:
            connection.send(subject.answer(*connection.recv()))
    end(os.getpid(), os.environ[MARK])
