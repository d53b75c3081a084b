"""Is a step on several devices the step of one? Checks, and what they conclude."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
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

    def __init__(self, one, many, num_devices: int, even: int, lr: float):
        self.one, self.many, self.N, self.lr = one, many, num_devices, lr
        self.even, self.zeros, self.start = even, even + 1, one.start
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small = num_devices * (3 if num_devices == 2 else 2)
        ends = numpy.cumsum(one.sizes)
        self.parts = [slice(end - size, end) for end, size in zip(ends, one.sizes)]
        self.spread = [0.0 for _ in self.parts]
        self.algorithm, self.has_state = "", False  # if it is no plain SGD

    def alone(self, rows, start=None, lr=None, **words) -> numpy.ndarray:
        """Return the update of one device."""
        start = self.start if start is None else start
        return self.one.update(rows, 1, lr or self.lr, start, **words)[0]

    def both(self, rows, start=None, lr=None, **words):
        """Return the update of several devices, and of one without accumulation."""
        new = self.start if start is None else start
        got = self.many.update(rows, self.N, lr or self.lr, new, **words)[0]
        words.pop("accumulate", None)
        return got, self.alone(rows, start, lr, **words)

    def measure_spread(self, ref: numpy.ndarray, others: list[numpy.ndarray]) -> float:
        """Set how far one device's updates are from multiples of `ref`, as part of it.

        Returns the largest distance, as a part of the norm of `ref`.
        """
        rests = [other - other @ ref / (ref @ ref) * ref for other in others]
        for k, part in enumerate(self.parts):
            far = max(abs(rest[part]).max() for rest in rests)
            self.spread[k] = far / (abs(ref[part]).max() or 1)
        return max(map(norm, rests)) / norm(ref)

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
        return [k for k, part in enumerate(self.parts) if far[part].any()]

    def moves_by_lr(self, ref: numpy.ndarray) -> bool:
        """Return whether each element of an update is about `lr` long, as of Adam."""
        return numpy.mean(abs(abs(ref[ref != 0]) / self.lr - 1) < 0.01) > 0.9


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


def _known(what: str, update: numpy.ndarray, names: dict) -> str:
    """Return "right" or the mistake in a call of one device; "" if it is neither."""
    for name, expected in updates({what}, names):
        if norm(update - expected) < 1e-4 * norm(expected):
            return name
    return ""


def _wrong(what: str, mistake: str, **words) -> Check:
    return Check(what, "wrong", SENTENCES[mistake].format(**words), mistake)


def _checks(bench: Bench) -> Iterator[Check]:
    N, rows = bench.N, range(bench.even)
    ref = bench.both(rows)[1]
    if not ref.any():
        yield Check("one device", "unjudged", "its step changes no parameter")
        return
    rng = numpy.random.default_rng(0)
    orders = [rows, *(rng.permutation(rows) for _ in range(3))]
    noise = bench.measure_spread(ref, [bench.both(order)[1] for order in orders])
    if "replicas" in bench.one.offers:
        replicas = bench.many.update(rows, N, bench.lr, bench.start, name="replicas")
        bench.alone(rows)  # for an equal state
        for k in range(1, len(replicas)):
            if bench.differing(replicas[k], replicas[0]):
                yield _wrong("replicas", "apart", k=k)
        yield Check("replicas", "right", f"{len(replicas)} are equal after a step")
    if noise >= 0.01:
        line = SENTENCES["random"].format(noise=noise)
        yield Check("two equal calls", "unjudged", line)
        return

    # What is a step of one device? The same calls of several are compared below.
    second = bench.both(rows, bench.start + ref)[1]
    names = {"ref": ref, "second": second, "n": len(rows), "N": N}
    clip_norm = norm(ref) / bench.lr / (4 * N)  # below the norm of each device
    uneven = range(bench.even + 1)
    calls = {
        f"{N} devices against one": (rows, {}),
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
    results = {}
    for what, (chosen, words) in calls.items():
        try:
            for word in {*words} - {"lr", *bench.one.offers}:
                raise FailedError(f"step has no argument {word}")
            results[what] = bench.both(chosen, **words)
        except FailedError as error:
            results[what] = error
            continue
        known = _known(what, results[what][1], names)
        if known not in ("right", ""):
            yield _wrong(what, known)
        elif not known and what in SENTENCES and not bench.has_state:
            bench.has_state = what == "two equal calls"  # and so in all the others
            if what == "twice the learning rate":
                bench.algorithm = "local SGD"
            yield Check(what, "skipped", SENTENCES[what])
    if bench.moves_by_lr(ref):
        bench.algorithm = "own optimizer"
        yield Check("the gradient's length", "skipped", SENTENCES["own length"])

    # What is a step of several devices?
    tied = [
        (a, b)
        for a, b in combinations(bench.parts, 2)
        if numpy.array_equal((bench.start + ref)[a], (bench.start + ref)[b])
        and numpy.ptp(bench.start[a]) > 0
    ]
    got, tol = results[f"{N} devices against one"][0], bench.tolerance(ref)
    if any((abs(got[a] - got[b]) > tol[a]).any() for a, b in tied):
        yield _wrong("tied parameters", "untied")
    for what, (chosen, words) in calls.items():
        result, n = results[what], len(chosen)
        if isinstance(result, GoneError):
            mistake = "hangs" if "no answer" in str(result) else ""
            yield Check(what, "wrong", f"{result}: {SENTENCES[mistake]}", mistake)
        elif isinstance(result, FailedError):
            yield Check(what, "skipped", str(result))
        elif not bench.differing(*result, times=4 if "steps" in words else 1):
            far = abs(result[0] - result[1]).max() / abs(result[1]).max()
            yield Check(what, "right", f"{far:.0e} of the step apart")
        elif bench.has_state:
            yield Check(what, "wrong", SENTENCES["kept state"])
        else:
            sizes = [n] if n < N else [bench.small + 1, bench.small, n]
            mistake, line = explain(bench, sizes, words)
            verdict = "unjudged" if mistake == "local SGD" else "wrong"
            yield Check(what, verdict, line, mistake)
    still = [k for k, part in enumerate(bench.parts) if not ref[part].any()]
    for what, found in (("tied parameters", tied), ("frozen or unused", still)):
        verdict = "right" if found else "skipped"
        yield Check(what, verdict, f"{len(found)} of them" if found else "none")
