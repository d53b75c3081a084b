"""The functions of a STEP.py, on vectors that hold all parameters.

`process.py` runs this file as a program, with any interpreter. Therefore it imports
NumPy and the standard library only, and sends no arrays: pickles depend on NumPy.
"""

import importlib
import inspect
import os
import signal
import sys
import threading
import time
import traceback
import zlib
from multiprocessing.connection import Connection

import numpy


class Step:
    """A subject, the module of a STEP.py, and what it is asked about it."""

    def __init__(self, subject):
        self.subject = subject

    def begin(self, n, seed):
        """Make parameters, n samples and, as sample n, zeros.

        Returns the parameters' sizes and bytes, a checksum of the samples, and the
        optional parts of the subject.
        """
        self.like = [numpy.asarray(p) for p in self.subject.init(seed)]
        self.sizes = [p.size for p in self.like]
        X_y = [numpy.asarray(a) for a in self.subject.batch(n, seed)]
        if [len(a) for a in X_y] != [n, n]:
            raise ValueError(f"batch({n}, {seed}) has shapes {[a.shape for a in X_y]}")
        self.X_y = [numpy.concatenate([a, numpy.zeros_like(a[:1])]) for a in X_y]
        offers = list(inspect.signature(self.subject.step).parameters)
        offers += ["replicas"] * hasattr(self.subject, "replicas")
        checksum = zlib.crc32(b"".join(a.tobytes() for a in X_y))
        return self.sizes, self._bytes(self.like), checksum, offers

    def update(self, start, rows, num_devices, lr, name="step", **words):
        """Return the bytes of the parameters after a step, or of all replicas."""
        parts = numpy.split(numpy.frombuffer(start), numpy.cumsum(self.sizes)[:-1])
        params = [a.reshape(p.shape).astype(p.dtype) for a, p in zip(parts, self.like)]
        X, y = (a[numpy.array(rows)] for a in self.X_y)
        function = getattr(self.subject, name)
        new = function(params, X, y, num_devices, lr, **words)
        return b"".join(map(self._bytes, new if name == "replicas" else [new]))

    def _bytes(self, params):
        arrays = [numpy.asarray(p) for p in params]
        shapes = [p.shape for p in arrays]
        if shapes != [p.shape for p in self.like]:
            raise ValueError(f"parameters of shapes {shapes}, which init does not have")
        for k, p in enumerate(arrays):
            if p.dtype.kind != "f" or not numpy.isfinite(p).all():
                raise ValueError(f"parameter {k}, {p.dtype}, is not of finite floats")
        return numpy.concatenate([p.ravel() for p in arrays]).astype(float).tobytes()


def serve(path, connection):
    """Answer calls of a Step's functions until the tool closes the connection."""
    folder, file = os.path.split(os.path.abspath(path))
    sys.path[0], sys.argv = folder, [path]  # as if it were run
    step = None
    while True:
        try:
            name, arguments, words = connection.recv()
        except EOFError:
            return
        try:
            step = step or Step(importlib.import_module(os.path.splitext(file)[0]))
            answer = getattr(step, name)(*arguments, **words)
        except Exception as error:
            lines = "".join(traceback.format_exception_only(type(error), error))
            answer = lines.strip().splitlines()[-1]
        connection.send(answer)


def end_with(tool):
    """End this process, and all that it has started, when the tool has gone."""
    while os.getppid() == tool:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    serve(sys.argv[1], Connection(int(sys.argv[2])))
