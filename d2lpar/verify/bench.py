"""The calls of a step, on vectors of all parameters, and how far they may be apart."""

import faulthandler
import importlib
import inspect
import signal

import numpy

from d2lpar.errors import RunError, first_line

LR = 0.1  # of every step but one, in `check_step`


class Bench:
    """What a step adds to its parameters, on one device and on several."""

    def __init__(self, step, num_devices: int, batch_size: int, seed=0, timeout=0):
        self.N, self.timeout = num_devices, timeout
        is_name = isinstance(step, str)
        self.module = self.call(importlib.import_module, step) if is_name else step
        self.even_batch = max(2, batch_size // (2 * num_devices)) * 2 * num_devices
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small_batch = num_devices * (3 if num_devices == 2 else 2)
        self.start = self.call(self.begin, self.even_batch + 1, seed)
        ends = numpy.cumsum([p.size for p in self.params])
        self.parts = numpy.split(numpy.arange(len(self.start)), ends)[:-1]
        self.spread = 0 * self.start  # of one device's steps with reordered rows
        self.largest_of_a_sample = 0 * self.start  # the largest step of a single row
        self.share_allowed = 0.0  # of a parameter's elements, outside the tolerance
        self.is_stateless = True  # two steps are two calls: no momentum

    def call(self, function, *arguments):
        """Return what a function returns. Raises RunError for its errors."""
        if self.timeout:  # then this process is the step's own, and is to end
            signal.setitimer(signal.ITIMER_REAL, self.timeout)
            faulthandler.dump_traceback_later(self.timeout + 1, exit=True, file=2)
        try:
            return function(*arguments)
        except (Exception, SystemExit) as e:
            raise RunError(f"{type(e).__name__}: {first_line(e)}"[:300]) from None

    def begin(self, n, seed):
        """Draw n samples, add a row of zeros, and return the parameters as a vector."""
        self.params = [numpy.asarray(p) for p in self.module.init(seed)]
        X_y = [numpy.asarray(a) for a in self.module.batch(n, seed)]
        if [a.shape[:1] for a in X_y] != [(n,), (n,)]:
            raise ValueError(f"batch({n}, {seed}) has shapes {[a.shape for a in X_y]}")
        self.X_y = [numpy.concatenate([a, numpy.zeros_like(a[:1])]) for a in X_y]
        return self.vector(self.params)

    def vector(self, params):
        """Return parameters as one vector of float64."""
        arrays = [numpy.asarray(p, float) for p in params]
        shapes = [p.shape for p in arrays]
        if shapes != [p.shape for p in self.params]:
            raise ValueError(f"parameters of shapes {shapes}, which init does not have")
        return numpy.concatenate([p.ravel() for p in arrays])

    def update(self, name, start, rows, num_devices, lr, words):
        """Call a function of the subject; return the change of all parameters.

        The change is a vector. For `replicas` it is a matrix, with a row per device.
        """
        old = [start[part] for part in self.parts]
        params = [a.reshape(p.shape).astype(p.dtype) for a, p in zip(old, self.params)]
        X, y = (a[[*rows]] for a in self.X_y)
        new = getattr(self.module, name)(params, X, y, num_devices, lr, **words)
        replicas = new if name == "replicas" else [new]
        updates = numpy.array([*map(self.vector, replicas)]) - start
        if num_devices == 1 and not numpy.isfinite(updates).all():
            raise ArithmeticError("the parameters of one device are not finite")
        return updates if name == "replicas" else updates[0]

    def several(self, rows, start=None, name="step", N=None, lr=LR, **words):
        """Return the update of several devices. Raises RunError."""
        start = self.start if start is None else start
        function = getattr(self.module, name, None)
        if function is None:
            raise RunError(f"the file defines no function `{name}`")
        if lacking := words.keys() - inspect.signature(function).parameters:
            raise RunError(f"`{name}` has no argument `{lacking.pop()}`")
        return self.call(self.update, name, start, rows, N or self.N, lr, words)

    def alone(self, rows, start=None, accumulate=None, **words) -> numpy.ndarray:
        """Return the update of one device. Raises RunError, also for nan."""
        return self.several(rows, start, N=1, **words)

    def both(self, rows, **words) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the update of several devices, and what it should be."""
        got = self.several(rows, **words)
        if words.get("name") == "replicas":
            return got, got[0]
        if "steps" in words and self.is_stateless:
            # From the same place: rounding may move a sample over a ReLU's edge.
            first = self.several(rows)
            return got, first + self.alone(rows, self.start + first)
        return got, self.alone(rows, **words)

    def tolerance(self, ref: numpy.ndarray) -> numpy.ndarray:
        """Return how far from `ref` rounding may take a right update's elements."""
        # Ten times the spread of one device over orders, n eps of the sum or of what
        # cancels in it (Higham, 4.2), and half an eps to store a parameter.
        new, moved = self.start + ref, ref != 0
        is_single = numpy.mean((new == new.astype("float32"))[moved]) > 0.5
        eps = numpy.finfo("float32" if is_single else "float64").eps
        tol = numpy.zeros_like(ref)
        for part in self.parts:
            if moved[part].any():
                most = max(abs(ref[part]).max(), self.largest_of_a_sample[part].max())
                rounding = 10 * self.spread[part].max() + self.even_batch * eps * most
                tol[part] = rounding + eps * abs(new[part]).max()
        return tol

    def differing(self, got, ref, times: float = 1) -> list[int]:
        """Return the parameters that are further apart than `times` the tolerance."""
        far = ~(abs(got - ref) <= times * self.tolerance(ref))  # also where it is nan
        shares = [far[..., part].sum() / (part.size or 1) for part in self.parts]
        return [k for k, share in enumerate(shares) if share > self.share_allowed]
