"""The calls of a step, on vectors of all parameters, and how far they may be apart."""

from __future__ import annotations

import importlib
import inspect
import signal
from contextlib import suppress
from typing import Any

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError, first_line
from d2lpar.verify.mistakes import SENTENCES

LR = 0.1  # of every step but one, in `calls`


class RefusedError(RunError):
    """The subject does not offer what is asked, so nothing is compared."""


class Bench:
    """One batch and one start of a step, and what one device makes of them."""

    def __init__(self, step, num_devices, batch_size=64, seed=0, timeout=0.0):
        self.N, self.timeout = num_devices, timeout
        self.rows = range(max(2, batch_size // (2 * num_devices)) * 2 * num_devices)
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small_batch = num_devices * (3 if num_devices == 2 else 2)
        self.other = self  # a bench with another batch
        self.steps_of_one: dict[tuple, numpy.ndarray] = {}
        self.is_stateless = True  # two steps are two calls: no momentum
        self.eps = 2.0**-52  # of the type in which parameters are stored
        self.form = "mean"  # of the rows' gradients, or "sum", "weighted", "other"
        self.start = self.call(self.begin, step, seed)
        ends = numpy.cumsum([p.size for p in self.params])
        self.parts = numpy.split(numpy.arange(len(self.start)), ends)[:-1]
        self.spread = 0 * self.start  # of one device's steps with reordered rows
        self.noise = 0 * self.start  # of 16 bits, relative to the largest element

    def call(self, function, *arguments):
        """Return what a function returns. Raises RunError for its errors."""
        if self.timeout:  # then this process is the step's own, and is to end
            signal.setitimer(signal.ITIMER_REAL, self.timeout)
        try:
            return function(*arguments)
        except (Exception, SystemExit) as e:
            line = f"{type(e).__name__}: {first_line(e)}"[:300]
            # A library that starts processes wraps their errors in one of its own.
            refused = "NotImplementedError" in f"{type(e).__name__} {e}"
            raise (RefusedError if refused else RunError)(line) from None

    def begin(self, step, seed: int) -> numpy.ndarray:
        """Draw the batch, add a row of zeros, and return the parameters as a vector."""
        is_name = isinstance(step, str)
        self.module = importlib.import_module(step) if is_name else step
        n = len(self.rows) + 1
        if lacks := self.lacks("init", ()) or self.lacks("batch", ()):
            raise ValueError(f"{lacks} (docs/verify.md)")
        self.params = [numpy.asarray(p) for p in self.module.init(seed)]
        X_y = [numpy.asarray(a) for a in self.module.batch(n, seed)]
        if [a.shape[:1] for a in X_y] != [(n,), (n,)]:
            raise ValueError(f"batch({n}, {seed}) has shapes {[a.shape for a in X_y]}")
        self.X_y = [numpy.concatenate([a, numpy.zeros_like(a[:1])]) for a in X_y]
        return self.vector(self.params)

    def vector(self, params) -> numpy.ndarray:
        """Return parameters as one vector of float64."""
        arrays = [numpy.asarray(p, float) for p in params]
        shapes = [p.shape for p in arrays]
        if shapes != [p.shape for p in self.params]:
            raise ValueError(f"parameters of shapes {shapes}, which init does not have")
        return numpy.concatenate([p.ravel() for p in arrays])

    def arrays(self, vector) -> list[numpy.ndarray]:
        """Return a vector as parameters, with their shapes and dtypes."""
        pieces = (vector[part] for part in self.parts)
        return [a.reshape(p.shape).astype(p.dtype) for a, p in zip(pieces, self.params)]

    def lacks(self, name: str, words) -> str:
        """Return which function or argument the subject has not, or ""."""
        if (function := getattr(self.module, name, None)) is None:
            return f"the file defines no function `{name}`"
        lacking = [w for w in words if w not in inspect.signature(function).parameters]
        return f"`{name}` has no argument `{lacking[0]}`" if lacking else ""

    def several(self, rows, done=0, name="step", N=None, lr=LR, **words):
        """Return the change of all parameters on several devices, as a vector.

        It comes after the update `done`, and is that of the rate LR, by proportion. For
        `replicas` it is a matrix, with a row per device. The norm to which a step clips
        is the bench's. Raises RunError.
        """
        if lacks := self.lacks(name, words):
            raise RefusedError(lacks)
        if "clip_norm" in words:
            words["clip_norm"] = self.clip_norm

        def update():
            params, X_y = self.arrays(self.start + done), [a[[*rows]] for a in self.X_y]
            start, function = self.vector(params), getattr(self.module, name)
            new = function(params, *X_y, N or self.N, lr, **words)
            replicas = new if name == "replicas" else [new]
            updates = (numpy.array([*map(self.vector, replicas)]) - start) * (LR / lr)
            if N == 1 and not numpy.isfinite(updates).all():
                raise ArithmeticError("the parameters of one device are not finite")
            return updates if name == "replicas" else updates[0]

        return self.call(update)

    def alone(self, rows, done=0, accumulate=None, **words) -> numpy.ndarray:
        """Return the update of one device, computed once. Raises RunError for nan."""
        key = (*rows, (self.start + done).tobytes(), *words.items())
        if key not in self.steps_of_one:
            self.steps_of_one[key] = self.several(rows, done, N=1, **words)
        return self.steps_of_one[key]

    def both(self, rows, **words) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the update of several devices, and what it should be."""
        got = self.several(rows, **words)
        if self.is_stateless and words.pop("steps", None):
            # From the same place: rounding may move a sample over a ReLU's edge.
            first = self.several(rows, **words)
            return got, first + self.alone(rows, first, **words)
        return got, self.alone(rows, **words)

    def most(self, vector) -> numpy.ndarray:
        """Return the largest absolute value of its parameter for each element."""
        most = [abs(vector[part]).max(initial=0) for part in self.parts]
        return numpy.repeat(most, [*map(len, self.parts)])

    def tolerance(self, ref: numpy.ndarray) -> numpy.ndarray:
        """Return how far from `ref` rounding may take a right update's elements."""
        # Ten times the spread of one device over orders, n eps of the sum (Higham,
        # 4.2), and half an eps to store a parameter. Gradients are in float32 at
        # least, or the noise says so.
        off = len(self.rows) * min(self.eps, 2.0**-23) + 4 * self.noise
        tol = 10 * self.spread + off * self.most(ref)
        return (tol + self.eps * self.most(self.start + ref)) * (self.most(ref) != 0)

    def differing(self, got, ref, times: float = 1) -> list[int]:
        """Return the parameters that are further apart than `times` the tolerance."""
        far = ~(abs(got - ref) <= times * self.tolerance(ref))  # also where it is nan
        return [k for k, part in enumerate(self.parts) if far[..., part].any()]

    def is_rough(self, N: int) -> bool:
        """Return whether a step on N devices jumps when parameters hardly move.

        16 bits make steps: a smooth function's second difference is far below its
        first one. The kinks of a ReLU are too rare for it.
        """
        for seed in range(3):
            random = numpy.random.default_rng(seed)
            far = self.start * random.choice([-(2.0**-14), 2.0**-14], self.start.size)
            here, there, back = (
                self.several(self.rows, k * far, N=N) for k in (0, 1, -1)
            )
            if norm(there + back - 2 * here) < 0.3 * norm(there - here):
                return False
        return True

    def measure(self) -> str:
        """Measure how one device's step rounds, and comes from its rows.

        Returns why nothing can be judged by it, or "".
        """
        ref = self.alone(self.rows)
        size = float(norm(ref))
        self.clip_norm = size / LR / (4 * self.N)  # below each shard's norm
        if not size:
            return SENTENCES["changes nothing"]
        mantissas, _ = numpy.frexp((self.start + ref)[ref != 0])
        for bits in (24, 11, 8):  # float32, float16, bfloat16
            if (mantissas * 2.0**bits % 1 == 0).mean() > 0.5:
                self.eps = 2.0 ** (1 - bits)
        orders = [numpy.random.default_rng(k).permutation(self.rows) for k in range(3)]
        again = [self.several(order, N=1) for order in (self.rows, *orders)]
        far = abs(again - ref).max(0)
        self.spread = self.most(far)
        if norm(far) > 0.01 * size:
            worst = numpy.argmax([norm(far[part]) for part in self.parts])
            return SENTENCES["unequal"].format(far=f"{norm(far) / size:.0%}", k=worst)
        if not (rests := self.rests(ref)):
            return ""  # it takes no parts of a batch
        if not any((one != ref).any() for one in self.steps_of_one.values()):
            return SENTENCES["same rows"]
        sizes = {form: float(norm(rest)) for form, rest in rests.items()}
        fits = [f for f in sizes if sizes[f] <= 2 * norm(self.tolerance(ref))]
        best = next(form for form in sizes if sizes[form] <= 3 * min(sizes.values()))
        self.form = (fits or [best])[0]
        # In 16 bits parts are not exact, and the step is rough. So it looks where
        # parameters hardly move, because storing them rounds, too.
        coarse = 2.0**-15 < sizes[best] / size < 0.05
        shows = not fits or self.eps * norm(self.start) < 3e-5 * size
        if coarse and shows and self.is_rough(1):
            off = self.most(rests[best]) / (self.most(ref) + (self.most(ref) == 0))
            self.noise = numpy.maximum(off, 2.0**-12)
        elif not fits and sizes[best] > 1e-5 * size:
            self.form = "other" if sizes["mean"] > 0.01 * size else "mean"
        for _ in range(3):
            with suppress(RunError):  # Adam's step is longer than the gradient
                if not self.differing(self.several(self.rows, N=1, clip_norm=0), ref):
                    self.clip_norm /= 10
        tol = norm(self.tolerance(ref))
        if max(self.eps, self.noise.max()) > 2.0**-20 and tol > 0.3 * size:
            return SENTENCES["own precision"].format(off=f"{tol / size:.0e}")
        return ""

    def rests(self, ref) -> dict[str, numpy.ndarray]:
        """Return how far steps of parts of the batch are from its step, by form."""
        rows: Any = self.rows
        rests: dict[str, Any] = {}
        for half in (rows[::2], rows[: len(rows) // 2], rows[len(rows) // 4 :]):
            with suppress(RunError):  # a step need not take every batch
                a, b = self.alone(half), self.alone([*{*rows} - {*half}])
                share, fit = len(half) / len(rows), numpy.clip(fitted(ref, a, b), 0, 1)
                whole = {"mean": share * a + (1 - share) * b, "sum": a + b}
                if numpy.count_nonzero(ref) > 3:  # else it would fit anything
                    whole["weighted"] = fit * a + (1 - fit) * b
                for form, u in whole.items():
                    rests[form] = numpy.maximum(rests.get(form, 0), abs(u - ref))
        return rests


def fitted(whole, a, b, at=...) -> float:
    """Return the share of `a` with which it and `b` come nearest to `whole`."""
    d = (a - b)[at]
    return float((whole - b)[at] @ d / ((d @ d) or 1))
