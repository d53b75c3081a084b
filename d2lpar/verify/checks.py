"""Is a step on several devices the step of one? Checks, and what they conclude."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.verify.mistakes import SENTENCES, explain, updates
from d2lpar.verify.process import FailedError, GoneError


class Check(NamedTuple):
    """What was checked, the verdict, a line that says why, and the mistake or ""."""

    what: str
    verdict: str
    line: str
    mistake: str = ""


class Bench:
    """The updates of one device and of several, and how far apart they may be."""

    def __init__(self, process, num_devices: int, even: int):
        self.process, self.N, self.lr = process, num_devices, process.lr
        self.even, self.zeros, self.start = even, even + 1, process.start
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small = num_devices * (3 if num_devices == 2 else 2)
        ends, sizes = numpy.cumsum(process.sizes), process.sizes
        self.parts = [slice(end - size, end) for end, size in zip(ends, sizes)]
        self.spread = [0.0 for _ in self.parts]
        self.steps_add = True  # two steps are two calls: no momentum

    def several(self, rows, **words) -> numpy.ndarray:
        return self.process.update(rows, self.N, **words)

    def alone(self, rows, accumulate=None, **words) -> numpy.ndarray:
        return self.process.update(rows, 1, **words)

    def both(self, rows, **words) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the update of several devices, and what it should be."""
        got = self.several(rows, **words)
        if "steps" in words and self.steps_add:
            # From the same place: rounding may move a sample over a ReLU's edge.
            first = self.several(rows)
            return got, first + self.alone(rows, start=self.start + first)
        return got, self.alone(rows, **words)

    def tolerance(self, ref: numpy.ndarray) -> numpy.ndarray:
        """Return how far from `ref` rounding may take a right update's elements."""
        # Devices add in another order: ten times the spread of one device over orders,
        # or n eps of the sum (Higham, 4.2), and half an eps to store a parameter.
        new, moved = self.start + ref, ref != 0
        is_single = numpy.mean((new == new.astype("float32"))[moved]) > 0.5
        eps = numpy.finfo("float32" if is_single else "float64").eps
        tol = numpy.zeros_like(ref)
        for part, spread in zip(self.parts, self.spread):
            if moved[part].any():
                rounding = (10 * spread + self.even * eps) * abs(ref[part]).max()
                tol[part] = rounding + eps * abs(new[part]).max()
        return tol

    def differing(self, got, ref, times: float = 1) -> list[int]:
        """Return the parameters that are further apart than `times` the tolerance."""
        far = abs(got - ref) > times * self.tolerance(ref)
        return [k for k, part in enumerate(self.parts) if far[..., part].any()]


def judge(bench: Bench) -> Iterator[Check]:
    """Yield checks; those after one that is "wrong" or "unjudged" have no meaning."""
    N, rows, uneven = bench.N, range(bench.even), range(bench.even + 1)
    ref = bench.alone(rows)
    if not ref.any():
        yield Check("one device", "unjudged", "its step changes no parameter")
    rng = numpy.random.default_rng(0)
    orders = [rows, *(rng.permutation(rows) for _ in range(3))]
    far = numpy.max([abs(bench.alone(order) - ref) for order in orders], axis=0)
    if norm(far) > 0.01 * norm(ref):
        line = SENTENCES["unequal"].format(far=norm(far) / norm(ref))
        yield Check("two equal calls", "unjudged", line)
    bench.spread = [far[p].max() / (abs(ref[p]).max() or 1) for p in bench.parts]

    clip_norm = norm(ref) / bench.lr / (4 * N)  # below the norm of each device
    calls = {
        f"{N} devices against one": (rows, {}),
        "replicas": (rows, {"name": "replicas"}),
        "two equal calls": (rows, {}),
        "permuted rows": (orders[-1], {}),
        "the batch twice": ([*rows, *rows], {}),
        "twice the learning rate": (rows, {"lr": 2 * bench.lr}),
        "an uneven batch": (uneven, {}),
        "fewer samples than devices": (range(N - 1), {}),
        "two steps": (rows, {"steps": 2}),
        "clipping": (rows, {"clip_norm": clip_norm}),
        "accumulation": (rows, {"accumulate": 2}),
        "uneven accumulation": (uneven, {"accumulate": 2}),
        "the first batch again": (rows, {}),
    }
    # What is a step of one device: plain SGD, with a mistake, or something else?
    second = bench.alone(rows, start=bench.start + ref)
    names = {"ref": ref, "second": second, "n": len(rows), "N": N}
    for what in ("the batch twice", "twice the learning rate", "two steps", "clipping"):
        chosen, words = calls[what]
        try:
            one = bench.alone(chosen, **words)
        except FailedError:  # and so below
            continue
        known = [
            mistake
            for mistake, update in updates({what}, names)
            if norm(one - update) < 1e-4 * norm(update) + norm(bench.tolerance(update))
        ]
        if not known:
            bench.steps_add &= what != "two steps"
            yield Check(what, "skipped", SENTENCES[what])
        elif known[0] != "right":
            yield Check(what, "wrong", SENTENCES[known[0]], known[0])
    if numpy.mean(abs(abs(ref[ref != 0]) / bench.lr - 1) < 0.01) > 0.9:
        yield Check("the gradient's length", "skipped", SENTENCES["own length"])

    # What is a step of several devices?
    for what, (chosen, words) in calls.items():
        try:
            got, one = bench.both(chosen, **words)
        except FailedError as error:
            if chosen is rows and not words:
                yield Check(what, "unjudged", str(error))
            elif isinstance(error, GoneError):
                mistake = "hangs" if "no answer" in str(error) else ""
                yield Check(what, "wrong", f"{error}: {SENTENCES[mistake]}", mistake)
            yield Check(what, "skipped", str(error))
            continue
        if what == "replicas":
            one = got[0]
        if not bench.differing(got, one, times=4 if "steps" in words else 1):
            far = abs(got - one).max() / abs(one).max()
            yield Check(what, "right", f"{far:.0e} of the step apart")
        elif what == "replicas":
            yield Check(what, "wrong", SENTENCES["apart"], "apart")
        else:
            mistake, line = explain(bench, len(chosen), words)
            verdict = "unjudged" if mistake == "another algorithm" else "wrong"
            yield Check(what, verdict, line, mistake)
