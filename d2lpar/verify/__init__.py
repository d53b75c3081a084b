"""Is a step of any framework on several devices the step of one? See docs/verify.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.verify.mistakes import LR, SENTENCES, explain
from d2lpar.verify.process import FailedError, GoneError, Process, Subject

__all__ = ["Check", "verify"]


class Check(NamedTuple):
    """What was checked, the verdict, a line that says why, and the mistake or ""."""

    what: str
    verdict: str
    line: str
    mistake: str = ""


def verify(
    step: str | os.PathLike | object,
    num_devices: int = 2,
    batch_size: int = 64,
    *,
    python: str = sys.executable,
    timeout: float = 60,
) -> list[Check]:
    """Judge a step on `num_devices` devices against one.

    `step` is a file, which `python` runs and which has `timeout` seconds for each
    answer, or an object with its functions, which are called here. `batch_size` is
    rounded to a multiple of twice the devices. Returns the checks: the step is right
    unless the last one is "wrong" or "unjudged".
    """
    checks: list[Check] = []
    subject: Subject | Process = Subject(step)
    if isinstance(step, (str, os.PathLike)):
        subject = Process(os.fspath(step), python, timeout)
    try:
        for check in judge(Bench(subject, num_devices, batch_size)):
            checks.append(check)
            if check.verdict in ("wrong", "unjudged"):
                break
    except (FailedError, GoneError) as error:  # in what every step must answer
        checks.append(Check("a call", "unjudged", str(error)))
    finally:
        if isinstance(subject, Process):
            subject.close()
    return checks


class Bench:
    """The updates of one device and of several, and how far apart they may be."""

    def __init__(self, subject, num_devices: int, batch_size: int, seed: int = 0):
        self.subject, self.N = subject, num_devices
        self.even = max(2, batch_size // (2 * num_devices)) * 2 * num_devices
        self.zeros = self.even + 1  # a row after those of an uneven batch
        # n / N is not N here, so that each mistake has a factor of its own.
        self.small = num_devices * (3 if num_devices == 2 else 2)
        ends, start = self.ask("begin", self.even + 1, seed)
        self.start, self.spread = numpy.frombuffer(start), [0.0] * len(ends)
        self.parts = numpy.split(numpy.arange(len(self.start)), ends)[:-1]
        self.steps_add = True  # two steps are two calls: no momentum

    def ask(self, *message):
        """Return the subject's answer. Raises FailedError, GoneError."""
        answer = self.subject.answer(*message)
        if isinstance(answer, str):
            raise FailedError(answer)
        return answer

    def several(self, rows, start=None, name="step", N=None, lr=LR, **words):
        """Return what a step adds to the parameters; `replicas`: a row for each."""
        start = self.start if start is None else start
        rows, N = [int(row) for row in rows], N or self.N
        new = self.ask("update", name, start.tobytes(), rows, N, lr, words)
        updates = numpy.frombuffer(new).reshape(-1, len(start)) - start
        return updates if name == "replicas" else updates[0]

    def alone(self, rows, start=None, accumulate=None, **words) -> numpy.ndarray:
        """Return what a step of one device adds. Raises FailedError for nan."""
        update = self.several(rows, start, N=1, **words)
        if not numpy.isfinite(update).all():
            raise FailedError("the parameters of one device are not finite")
        return update

    def both(self, rows, **words) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the update of several devices, and what it should be."""
        got = self.several(rows, **words)
        if words.get("name") == "replicas":
            return got, got[0]
        if "steps" in words and self.steps_add:
            # From the same place: rounding may move a sample over a ReLU's edge.
            first = self.several(rows)
            return got, first + self.alone(rows, self.start + first)
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
        far = ~(abs(got - ref) <= times * self.tolerance(ref))  # also where it is nan
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

    clip_norm = norm(ref) / LR / (4 * N)  # below the norm of each device
    calls: dict[str, tuple[Any, dict]] = {
        f"{N} devices against one": (rows, {}),
        "replicas": (rows, {"name": "replicas"}),
        "two equal calls": (rows, {}),
        "permuted rows": (orders[-1], {}),
        "the batch twice": ([*rows, *rows], {}),
        "twice the learning rate": (rows, {"lr": 2 * LR}),
        "an uneven batch": (uneven, {}),
        "fewer samples than devices": (range(N - 1), {}),
        "two steps": (rows, {"steps": 2}),
        "clipping": (rows, {"clip_norm": clip_norm}),
        "accumulation": (rows, {"accumulate": 2}),
        "uneven accumulation": (uneven, {"accumulate": 2}),
        "the first batch again": (rows, {}),
    }
    # What is a step of one device: plain SGD, with a mistake, or something else?
    second, cut = bench.alone(rows, bench.start + ref), ref / (4 * N)
    known = {
        "the batch twice": {"": ref, "not divided": 2 * ref, "divided twice": ref / 2},
        "twice the learning rate": {"": 2 * ref},
        "two steps": {"": ref + second, "stale gradient": 2 * ref + second},
        "clipping": {"": cut, "not clipped": ref, "clipped sum": cut / len(rows)},
    }
    for what, updates in known.items():
        chosen, words = calls[what]
        with suppress(FailedError):  # and so below
            one, tol = bench.alone(chosen, **words), bench.tolerance
            gaps = {m: norm(one - u) - norm(tol(u)) for m, u in updates.items()}
            near = [mistake for mistake, gap in gaps.items() if gap < 1e-4 * norm(ref)]
            if not near:
                bench.steps_add &= what != "two steps"
                yield Check(what, "skipped", SENTENCES[what])
            elif near[0]:
                yield Check(what, "wrong", SENTENCES[near[0]], near[0])
    if numpy.mean(abs(abs(ref[ref != 0]) / LR - 1) < 0.01) > 0.9:
        yield Check("the gradient's length", "skipped", SENTENCES["own length"])

    # What is a step of several devices?
    for what, (chosen, words) in calls.items():
        try:
            got, one = bench.both(chosen, **words)
        except (FailedError, GoneError) as error:
            if chosen is rows and not words:
                yield Check(what, "unjudged", str(error))
            elif isinstance(error, GoneError):
                mistake = "hangs" if "no answer" in str(error) else ""
                yield Check(what, "wrong", f"{error}: {SENTENCES[mistake]}", mistake)
            yield Check(what, "skipped", str(error))
            continue
        if not bench.differing(got, one, times=4 if "steps" in words else 1):
            far = abs(got - one).max() / abs(one).max()
            yield Check(what, "right", f"{far:.0e} of the step apart")
        elif what == "replicas":
            yield Check(what, "wrong", SENTENCES["apart"], "apart")
        else:
            mistake, line = explain(bench, len(chosen), words)
            verdict = "unjudged" if mistake == "another algorithm" else "wrong"
            yield Check(what, verdict, line, mistake)
