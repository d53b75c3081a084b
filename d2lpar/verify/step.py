"""A STEP.py in a process of its own, asked for one step at a time.

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
from multiprocessing.connection import Connection

import numpy


class Step:
    """The functions of a STEP.py, on vectors that hold all parameters."""

    def __init__(self, module):
        self.module = module

    def begin(self, n, seed):
        """Make the parameters, n samples and, as sample n, zeros.

        Returns the parameters' sizes and bytes, the samples' bytes, and what is optional.
        """
        self.params = [numpy.asarray(p) for p in self.module.init(seed)]
        X_y = [numpy.asarray(a) for a in self.module.batch(n, seed)]
        if [len(a) for a in X_y] != [n, n]:
            raise ValueError(f"batch({n}, {seed}) has shapes {[a.shape for a in X_y]}")
        self.X_y = [numpy.concatenate([a, numpy.zeros_like(a[:1])]) for a in X_y]
        offers = list(inspect.signature(self.module.step).parameters)
        if hasattr(self.module, "replicas"):
            offers.append("replicas")
        samples = b"".join(a.tobytes() for a in X_y)
        return [p.size for p in self.params], self.pack(self.params), samples, offers

    def update(self, name, start, rows, num_devices, lr, words):
        """Return the bytes of the parameters after a step, or of all replicas."""
        ends = numpy.cumsum([p.size for p in self.params])
        parts = zip(numpy.split(numpy.frombuffer(start), ends[:-1]), self.params)
        params = [part.reshape(p.shape).astype(p.dtype) for part, p in parts]
        X, y = (a[rows] for a in self.X_y)
        new = getattr(self.module, name)(params, X, y, num_devices, lr, **words)
        return b"".join(map(self.pack, new if name == "replicas" else [new]))

    def pack(self, params):
        """Return the bytes of one vector in float64."""
        arrays = [numpy.asarray(p) for p in params]
        shapes = [p.shape for p in arrays]
        if shapes != [p.shape for p in self.params]:
            raise ValueError(f"parameters of shapes {shapes}, which init does not have")
        for k, p in enumerate(arrays):
            if p.dtype.kind != "f" or not numpy.isfinite(p).all():
                raise ValueError(f"parameter {k}, {p.dtype}, is not of finite floats")
        return numpy.concatenate([p.ravel() for p in arrays]).astype(float).tobytes()


def serve(path, connection):
    """Answer calls of a Step's functions until the tool ends this process."""
    folder, file = os.path.split(os.path.abspath(path))
    sys.path[0], sys.argv = folder, [path]  # as if it were run
    step = None
    while True:
        name, *arguments = connection.recv()
        try:
            step = step or Step(importlib.import_module(os.path.splitext(file)[0]))
            answer = getattr(step, name)(*arguments)
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
