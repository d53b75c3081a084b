"""Is a step on several devices the step of one? Checks, and what they conclude."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.verify.mistakes import SENTENCES, explain, updates
from d2lpar.verify.process import FailedError, GoneError


class Check(NamedTuple):
    """What was checked, the verdict, a line that says why, and the mistake's key or "".

    The verdict is "right", "wrong", "skipped", or "unjudged".
    """

    what: str
    verdict: str
    line: str
    mistake: str = ""


class Bench:
    """One device and several, which get the same calls in the same order.

    A step that keeps a state between calls therefore has the same one on both sides.
    """

    def __init__(self, one, many, num_devices: int, even: int):
        self.one, self.many, self.N, self.lr = one, many, num_devices, one.lr
        self.even, self.zeros, self.start = even, even + 1, one.start
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small = num_devices * (3 if num_devices == 2 else 2)
        ends = numpy.cumsum(one.sizes)
        self.parts = [slice(end - size, end) for end, size in zip(ends, one.sizes)]
        self.spread = [0.0 for _ in self.parts]

    def alone(self, rows, **words) -> numpy.ndarray:
        """Return the update of one device."""
        return self.one.update(rows, 1, **words)

    def both(self, rows, **words) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the update of several devices, and of one without accumulation."""
        got = self.many.update(rows, self.N, **words)
        words.pop("accumulate", None)
        return got, self.alone(rows, **words)

    def measure_spread(self, ref: numpy.ndarray, others: list[numpy.ndarray]) -> float:
        """Set how far one device's updates are from multiples of `ref`, as part of it.

        Returns the largest distance, as a part of the norm of `ref`.
        """
        rests = [other - other @ ref / (ref @ ref) * ref for other in others]
        for k, part in enumerate(self.parts):
            far = max(abs(rest[part]).max() for rest in rests)
            self.spread[k] = far / (abs(ref[part]).max() or 1)
        return float(max(map(norm, rests)) / norm(ref))

    def tolerance(self, ref: numpy.ndarray) -> numpy.ndarray:
        """Return how far from `ref` rounding may take each element of a right update.

        Several devices add the same terms in another order. The spread of one device
        over orders of the batch, as a part of a parameter's largest update, shows what
        that can do; ten times as much is allowed. A spread may be 0 by luck: n terms in
        any order are off by at most n eps of their absolute sum (Higham, 4.2), and
        storing a parameter costs half an eps of it on either side. What one device
        leaves alone may not move at all.
        """
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
    N, rows = bench.N, range(bench.even)
    ref = bench.both(rows)[1]
    if not ref.any():
        yield Check("one device", "unjudged", "its step changes no parameter")
    rng = numpy.random.default_rng(0)
    orders = [rows, *(rng.permutation(rows) for _ in range(3))]
    noise = bench.measure_spread(ref, [bench.both(order)[1] for order in orders])
    if noise >= 0.01:
        line = SENTENCES["random"].format(noise=noise)
        yield Check("two equal calls", "unjudged", line)

    second = bench.both(rows, start=bench.start + ref)[1]
    names = {"ref": ref, "second": second, "n": len(rows), "N": N}
    clip_norm = norm(ref) / bench.lr / (4 * N)  # below the norm of each device
    uneven = range(bench.even + 1)
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
        "accumulation, uneven": (uneven, {"accumulate": 2}),
        "the first batch again": (rows, {}),
    }
    # What is a step of one device: plain SGD, with a mistake, or something else?
    results: dict = {}
    has_state = False
    for what, (chosen, words) in calls.items():
        try:
            results[what] = bench.both(chosen, **words)
        except FailedError as error:
            results[what] = error
            continue
        known = [
            mistake
            for mistake, update in updates({what}, names)
            if norm(results[what][1] - update)
            < 1e-4 * norm(update) + norm(bench.tolerance(update))
        ]
        if known and known[0] != "right":
            yield Check(what, "wrong", SENTENCES[known[0]], known[0])
        elif not known and what in SENTENCES and not has_state:
            has_state = what == "two equal calls"  # which then is in all the others
            yield Check(what, "skipped", SENTENCES[what])
    if numpy.mean(abs(abs(ref[ref != 0]) / bench.lr - 1) < 0.01) > 0.9:
        yield Check("the gradient's length", "skipped", SENTENCES["own length"])

    # What is a step of several devices?
    for what, (chosen, words) in calls.items():
        if isinstance(results[what], GoneError):
            mistake = "hangs" if "no answer" in str(results[what]) else ""
            line = f"{results[what]}: {SENTENCES[mistake]}"
            yield Check(what, "wrong", line, mistake)
            continue
        if isinstance(results[what], FailedError):
            yield Check(what, "skipped", str(results[what]))
            continue
        got, one = results[what]
        if not bench.differing(got, one, times=4 if "steps" in words else 1):
            far = abs(got - one).max() / abs(one).max()
            yield Check(what, "right", f"{far:.0e} of the step apart")
        elif has_state or what == "replicas":
            mistake = "kept state" if has_state else "apart"
            yield Check(what, "wrong", SENTENCES[mistake], mistake)
        else:
            mistake, line = explain(bench, len(chosen), words)
            verdict = "unjudged" if mistake == "another algorithm" else "wrong"
            yield Check(what, verdict, line, mistake)
