"""Is a step on several devices the step of one? Checks, and what they conclude."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.verify.mistakes import SENTENCES, explain
from d2lpar.verify.process import FailedError, GoneError

UNUSUAL = {
    "two equal calls": "a state is kept, as of momentum. Devices are compared with it",
    "the batch twice": "it is no mean over samples",
    "twice the learning rate": "are there several updates in a call?",
    "two steps": "the first leaves a state, as of momentum or Adam",
    "clipping": "it is not by the norm of all parameters",
}


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

    unlike_a_sum = ""  # the mistake, if one device's step is no sum over samples

    def __init__(self, one, many, num_devices: int, even: int, lr: float):
        self.one, self.many, self.N, self.lr = one, many, num_devices, lr
        self.even, self.zeros, self.start = even, even + 1, one.start
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small = num_devices * (3 if num_devices == 2 else 2)
        ends = numpy.cumsum(one.sizes)
        self.parts = [slice(end - size, end) for end, size in zip(ends, one.sizes)]
        self.spread = [0.0] * len(self.parts)

    def alone(self, rows, start=None, lr=None, **words) -> numpy.ndarray:
        """Return the update of one device."""
        return self.one.update(rows, 1, lr or self.lr, start, **words)

    def both(self, rows, start=None, lr=None, **words):
        """Return the update of several devices, and of one without accumulation."""
        got = self.many.update(rows, self.N, lr or self.lr, start, **words)
        words.pop("accumulate", None)
        return got, self.alone(rows, start, lr, **words)

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
            size = abs(ref[part]).max()
            if size > 0:
                rounding = (10 * spread + self.even * eps) * size
                tol[part] = rounding + eps * abs(new[part]).max()
        return tol

    def differing(self, got, ref, times: float = 1) -> list[int]:
        """Return the parameters that are further apart than `times` the tolerance."""
        far = abs(got - ref) > times * self.tolerance(ref)
        return [k for k, part in enumerate(self.parts) if far[part].any()]


def judge(bench: Bench) -> list[Check]:
    """Check a step until a check is "wrong" or "unjudged": later ones would be, too."""
    checks = []
    try:
        for check in _checks(bench):
            checks.append(check)
            if check.verdict in ("wrong", "unjudged"):
                break
    except FailedError as error:  # in a call that every step must answer
        checks.append(Check("a call", "unjudged", str(error)))
    return checks


def _wrong(what: str, mistake: str, **words) -> Check:
    return Check(what, "wrong", SENTENCES[mistake].format(**words), mistake)


def _along(a: numpy.ndarray, b: numpy.ndarray) -> tuple[float, numpy.ndarray]:
    # How often `a` contains `b`, and the rest
    ratio = a @ b / (b @ b)
    return ratio, a - ratio * b


def _checks(bench: Bench) -> Iterator[Check]:
    N, rows, offers = bench.N, range(bench.even), bench.one.offers
    got, ref = bench.both(rows)
    if not ref.any():
        yield Check("one device", "unjudged", "its step changes no parameter")
        return
    again = bench.both(rows)
    orders = [numpy.random.default_rng(k).permutation(rows) for k in range(3)]
    permuted = [bench.both(order) for order in orders]
    rests = [_along(update, ref)[1] for _, update in (again, *permuted)]
    noise = max(norm(rest) / norm(ref) for rest in rests)
    if noise < 0.01:
        for k, part in enumerate(bench.parts):
            far = max(abs(rest[part]).max() for rest in rests)
            bench.spread[k] = far / (abs(ref[part]).max() or 1)
    if "replicas" in offers:
        replicas = bench.many.update(rows, N, bench.lr, name="replicas")
        bench.alone(rows)  # for an equal state
        for k in range(1, len(replicas)):
            if bench.differing(replicas[k], replicas[0]):
                yield _wrong("replicas", "apart", k=k)
        yield Check("replicas", "right", f"{len(replicas)} are equal after a step")
    if noise >= 0.01:
        line = f"one device's steps differ by {noise:.0%} for equal calls or permuted "
        line += "rows: random numbers, as of dropout? Judge the step without them"
        yield Check("two equal calls", "unjudged", line)

    # What is a step of one device?
    twice, faster = bench.both([*rows, *rows]), bench.both(rows, lr=2 * bench.lr)
    clip_norm = norm(ref) / bench.lr / (4 * N)  # lower than each device's norm
    facts = [  # an update, how many times `ref` it is, and how many by mistakes
        ("two equal calls", again[1], 1, {2: "stale gradient"}),
        ("the batch twice", twice[1], 1, {2: "not divided", 1 / 2: "divided twice"}),
        ("twice the learning rate", faster[1], 2, {}),
    ]
    if "steps" in offers:
        _, second = bench.both(rows, bench.start + ref)
        two = bench.both(rows, steps=2)[1] - second
        facts.append(("two steps", two, 1, {2: "stale gradient"}))
    if "clip_norm" in offers:
        clipped = bench.both(rows, clip_norm=clip_norm)[1]
        factors = {1: "not clipped", 1 / (4 * N * len(rows)): "clipped sum"}
        facts.append(("clipping", clipped, 1 / (4 * N), factors))
    has_state = False
    for what, update, expected, mistakes in facts:
        factor = _along(update, ref)[0]
        for known, mistake in mistakes.items():
            if abs(factor / known - 1) < 1e-4:
                yield _wrong(what, mistake)
        if abs(factor / expected - 1) > 1e-4 and not has_state:
            has_state = what == "two equal calls"  # which then is in all the others
            if what == "twice the learning rate":
                bench.unlike_a_sum = "local SGD"
            line = (
                f"one device's step is {factor:.3g} times as long, not {expected:.3g}"
            )
            yield Check(what, "skipped", f"{line}: {UNUSUAL[what]}")
    moved = abs(ref[ref != 0]) / bench.lr
    if len(moved) > 4 and numpy.mean(abs(moved - 1) < 0.01) > 0.9:
        bench.unlike_a_sum = "own optimizer"
        line = "each element moves by lr, as with Adam: a wrong factor does not show"
        yield Check("the gradient's length", "skipped", line)

    # What is a step of several devices?
    tied = [
        (a, b)
        for a, b in combinations(bench.parts, 2)
        if numpy.array_equal(bench.start[a], bench.start[b])
        and numpy.ptp(bench.start[a]) > 0
        and numpy.allclose(ref[a], ref[b], rtol=1e-4)
    ]
    if any(not numpy.allclose(got[a], got[b], rtol=1e-3) for a, b in tied):
        yield _wrong("tied parameters", "untied")
    small, uneven = [bench.small + 1, bench.small], range(bench.even + 1)
    for what, rows_of, sizes, words, done in (
        (f"{N} devices against one", rows, small, {}, (got, ref)),
        ("two equal calls", rows, small, {}, again),
        ("permuted rows", rows, small, {}, permuted[0]),
        ("the batch twice", rows, small, {}, twice),
        ("twice the learning rate", rows, small, {}, faster),
        ("two steps", rows, small, {"steps": 2}, None),
        ("clipping", rows, small, {"clip_norm": clip_norm}, None),
        ("accumulation", rows, small, {"accumulate": 2}, None),
        ("accumulation, uneven", uneven, small[:1], {"accumulate": 2}, None),
        ("an uneven batch", uneven, small[:1], {}, None),
        ("fewer samples than devices", range(N - 1), [N - 1], {}, None),
        ("the first batch again", rows, small, {}, None),
    ):
        if not set(words) <= set(offers):
            yield Check(what, "skipped", f"step has no argument {min(words)}")
            continue
        try:
            got, ref = done or bench.both(rows_of, **words)
        except GoneError as error:
            mistake = "hangs" if "no answer" in str(error) else ""
            yield Check(what, "wrong", f"{error}: {SENTENCES[mistake]}", mistake)
            continue
        except FailedError as error:
            yield Check(what, "skipped", f"it is refused: {error}")
            continue
        if not bench.differing(got, ref, times=4 if "steps" in words else 1):
            far = abs(got - ref).max() / abs(ref).max()
            yield Check(what, "right", f"{far:.0e} of the step apart")
        elif has_state:
            yield Check(what, "wrong", "keep no state between calls to hear why")
        else:
            mistake, line = explain(bench, sizes, words)
            verdict = "unjudged" if mistake == "local SGD" else "wrong"
            yield Check(what, verdict, line, mistake)
    frozen = [k for k, part in enumerate(bench.parts) if not ref[part].any()]
    for what, found in (("tied parameters", tied), ("frozen or unused", frozen)):
        verdict = "right" if found else "skipped"
        yield Check(what, verdict, f"{len(found)} of them" if found else "none")
