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
        is_name = isinstance(step, str)
        self.module = self.call(importlib.import_module, step) if is_name else step
        self.rows = range(max(2, batch_size // (2 * num_devices)) * 2 * num_devices)
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small_batch = num_devices * (3 if num_devices == 2 else 2)
        self.other = self  # a bench with another batch
        self.steps_of_one: dict[tuple, numpy.ndarray] = {}
        self.is_stateless = True  # two steps are two calls: no momentum
        self.eps = 2.0**-52  # of the type in which parameters are stored
        self.form = "mean"  # of the rows' gradients, or "sum", "weighted", "other"
        self.start = self.call(self.begin, seed)
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

    def begin(self, seed: int) -> numpy.ndarray:
        """Draw the batch, add a row of zeros, and return the parameters as a vector."""
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

    def several(self, rows, start=None, name="step", N=None, lr=LR, **words):
        """Return the change of all parameters on several devices, as a vector.

        It is that of the rate LR, by proportion. For `replicas` it is a matrix, with a
        row per device. The norm to which a step clips is the bench's. Raises RunError.
        """
        start = self.start if start is None else start
        if lacks := self.lacks(name, words):
            raise RefusedError(lacks)
        if "clip_norm" in words:
            words["clip_norm"] = self.clip_norm

        def update():
            X, y = (a[[*rows]] for a in self.X_y)
            function = getattr(self.module, name)
            new = function(self.arrays(start), X, y, N or self.N, lr, **words)
            replicas = new if name == "replicas" else [new]
            updates = (numpy.array([*map(self.vector, replicas)]) - start) * (LR / lr)
            if N == 1 and not numpy.isfinite(updates).all():
                raise ArithmeticError("the parameters of one device are not finite")
            return updates if name == "replicas" else updates[0]

        return self.call(update)

    def alone(self, rows, start=None, accumulate=None, **words) -> numpy.ndarray:
        """Return the update of one device, computed once. Raises RunError for nan."""
        at = b"" if start is None else start.tobytes()
        key = (*rows, at, *words.items())
        if key not in self.steps_of_one:
            self.steps_of_one[key] = self.several(rows, start, N=1, **words)
        return self.steps_of_one[key]

    def both(self, rows, **words) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the update of several devices, and what it should be."""
        got = self.several(rows, **words)
        if words.get("name") == "replicas":
            return got, got[0]
        if "steps" in words and self.is_stateless:
            # From the same place: rounding may move a sample over a ReLU's edge.
            rest = {word: value for word, value in words.items() if word != "steps"}
            first = self.several(rows, **rest)
            return got, first + self.alone(rows, self.start + first, **rest)
        return got, self.alone(rows, **words)

    def tolerance(self, ref: numpy.ndarray) -> numpy.ndarray:
        """Return how far from `ref` rounding may take a right update's elements."""
        # Ten times the spread of one device over orders, n eps of the sum (Higham,
        # 4.2), and half an eps to store a parameter.
        tol = numpy.zeros_like(ref)
        for part in self.parts:
            if ref[part].any():
                # Gradients are in float32 at least, or the noise says so.
                off = len(self.rows) * min(self.eps, 2.0**-23)
                off += 4 * self.noise[part].max()
                tol[part] = 10 * self.spread[part].max() + off * abs(ref[part]).max()
                tol[part] += self.eps * abs((self.start + ref)[part]).max()
        return tol

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
            far = random.choice([-(2.0**-14), 2.0**-14], self.start.size)
            starts = [self.start * (1 + k * far) for k in (1, 0, -1)]
            stored = [self.vector(self.arrays(start)) for start in starts]
            there, here, back = (self.several(self.rows, at, N=N) for at in stored)
            if norm(there + back - 2 * here) < 0.3 * norm(there - here):
                return False
        return True

    def measure(self) -> tuple[str, str] | None:
        """Measure one device's step; return what cannot be judged, and why, if so.

        Sets its spread, and the form in which the rows of a batch make its step.
        """
        rows: Any = self.rows
        ref = self.alone(rows)
        size = float(norm(ref))
        self.clip_norm = size / LR / (4 * self.N)  # below each shard's norm
        if not size:
            return "one device", SENTENCES["changes nothing"]
        new = (self.start + ref)[ref != 0]
        for bits in (24, 11, 8):  # float32, float16, bfloat16
            mantissas, _ = numpy.frexp(new)
            if (mantissas * 2.0**bits % 1 == 0).mean() > 0.5:
                self.eps = 2.0 ** (1 - bits)
        orders = [numpy.random.default_rng(k).permutation(rows) for k in range(3)]
        far = [abs(self.several(order, N=1) - ref) for order in (rows, *orders)]
        self.spread = numpy.max(far, axis=0)
        if norm(self.spread) > 0.01 * size:
            worst = numpy.argmax([norm(self.spread[part]) for part in self.parts])
            values = {"far": f"{norm(self.spread) / size:.0%}", "k": worst}
            return "two equal calls", SENTENCES["unequal"].format(**values)
        rests: dict[str, list] = {"mean": [], "sum": [], "weighted": []}
        same = True
        for half in (rows[::2], rows[: len(rows) // 2], rows[len(rows) // 4 :]):
            with suppress(RunError):  # a step need not take every batch
                a, b = self.alone(half), self.alone([*{*rows} - {*half}])
                same = same and not (a - ref).any() and not (b - ref).any()
                share = len(half) / len(rows)
                rests["mean"].append(share * a + (1 - share) * b - ref)
                rests["sum"].append(a + b - ref)
                share = numpy.clip(fitted(ref, a, b), 0, 1)
                rests["weighted"].append(share * a + (1 - share) * b - ref)
        if not rests["mean"]:
            return None  # it takes no parts of a batch
        if same:
            return "one device", SENTENCES["same rows"]
        if numpy.count_nonzero(ref) < 4:
            del rests["weighted"]  # it would fit anything
        most_of = {form: abs(numpy.array(rest)).max(0) for form, rest in rests.items()}
        sizes = {form: float(norm(most)) for form, most in most_of.items()}
        fits = [f for f in sizes if sizes[f] <= 2 * norm(self.tolerance(ref))]
        best = next(form for form in sizes if sizes[form] <= 3 * min(sizes.values()))
        self.form = (fits or [best])[0]
        # In 16 bits parts are not exact, and the step is rough. So it looks where
        # parameters hardly move, because storing them rounds, too.
        coarse = 2.0**-15 < sizes[best] / size < 0.05
        shows = not fits or self.eps * norm(self.start) < 3e-5 * size
        if coarse and shows and self.is_rough(1):
            for part in self.parts:
                most = float(abs(ref[part]).max(initial=0)) or 1.0
                rest = float(most_of[best][part].max(initial=0))
                self.noise[part] = max(rest / most, 2.0**-12)
        elif not fits and sizes[best] > 1e-5 * size:
            self.form = "other" if sizes["mean"] > 0.01 * size else "mean"
        for _ in range(3):
            with suppress(RunError):  # Adam's step is longer than the gradient
                if not self.differing(self.several(rows, N=1, clip_norm=0), ref):
                    self.clip_norm /= 10
        tol = norm(self.tolerance(ref))
        if max(self.eps, self.noise.max()) > 2.0**-20 and tol > 0.3 * size:
            return "one device", SENTENCES["coarse"].format(far=f"{tol / size:.0e}")
        return None


def fitted(whole, a, b, at=...) -> float:
    """Return the share of `a` with which it and `b` come nearest to `whole`."""
    d = (a - b)[at]
    return float((whole - b)[at] @ d / ((d @ d) or 1))
