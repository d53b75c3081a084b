"""Is a step of any framework on several devices the step of one? See docs/verify.md."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.errors import DiedError, RunError
from d2lpar.verify.bench import LR, Bench
from d2lpar.verify.mistakes import SENTENCES, explain

__all__ = ["Check", "verify"]


class Check(NamedTuple):
    """What was checked, the verdict, a line that says why, and the mistake or ""."""

    what: str
    verdict: str
    line: str
    mistake: str = ""


def verify(step: Any, num_devices=2, batch_size=64, *, timeout=60.0) -> list[Check]:
    """Judge a step on `num_devices` devices against one.

    `step` is a file, which runs in a process of its own, `timeout` seconds for a call,
    or an object with its functions. `batch_size` is rounded to a multiple of twice the
    devices. The step is right unless the last check is "wrong" or "unjudged".
    """
    job = {"num_devices": num_devices, "batch_size": batch_size}
    if isinstance(step, (str, os.PathLike)):
        from d2lpar import process  # not NumPy alone

        job.update(step=os.path.abspath(step), timeout=timeout or 1e6)
        found = process.results("d2lpar.verify:judge_file", job)
    else:
        found = judge_file(step, **job)
    checks = [Check("a call", "unjudged", "")]
    try:
        for check in found:
            checks.append(check)
    except RunError as error:  # of what every step must answer, or its process died
        line, mistake = str(error), ""
        if isinstance(error, DiedError):
            mistake = "hangs" if "SIGALRM" in line else ""
            line = f"no answer in {timeout:g} s" if mistake else f"its process {line}"
        begun = [check for check in checks if not check.line][-1]
        if begun.verdict == "wrong":
            line += f": {SENTENCES[mistake]}"
        checks.append(begun._replace(line=line, mistake=mistake))
    return [check for check in checks if check.line]


def judge_file(
    step: Any, num_devices, batch_size, seed=0, timeout=0
) -> Iterator[Check]:
    """Yield the checks of a file or an object, the last of which is the first wrong one.

    A check without a line announces the next check, in case the process dies in it.
    Raises RunError for errors of the subject.
    """
    if timeout:  # a file, in a process of its own
        sys.path.insert(0, os.path.dirname(step))
        sys.argv, step = [step], Path(step).stem
    for check in check_step(Bench(step, num_devices, batch_size, seed, timeout)):
        yield check
        if check.line and check.verdict in ("wrong", "unjudged"):
            break


def check_step(bench: Bench) -> Iterator[Check]:
    """Yield the checks of a step on one device, then on several devices."""
    N, rows, uneven = bench.N, range(bench.even_batch), range(bench.even_batch + 1)
    ref = bench.alone(rows)
    if not ref.any():
        yield Check("one device", "unjudged", "its step changes no parameter")
    orders = [rows, *(numpy.random.default_rng(k).permutation(rows) for k in range(3))]
    bench.spread = numpy.max([abs(bench.alone(o) - ref) for o in orders], axis=0)
    if (far := norm(bench.spread) / (norm(ref) or 1)) > 0.01:
        yield Check("two equal calls", "unjudged", SENTENCES["unequal"].format(far=far))
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
        "clipping": (rows, {"clip_norm": norm(ref) / LR / (4 * N)}),  # below each norm
        "accumulation": (rows, {"accumulate": 2}),
        "uneven accumulation": (uneven, {"accumulate": 2}),
        "the first batch again": (rows, {}),
    }
    second, cut = bench.alone(rows, bench.start + ref), ref / (4 * N)
    known = {
        "the batch twice": {"": ref, "not divided": 2 * ref, "divided twice": ref / 2},
        "twice the learning rate": {"": 2 * ref},
        "two steps": {"": ref + second, "stale gradient": 2 * ref + second},
        "clipping": {"": cut, "not clipped": ref, "clipped sum": cut / len(rows)},
    }
    with suppress(RunError):  # here and below: a step need not take every batch
        halves = bench.alone(rows[::2]) + bench.alone(rows[1::2])
        if norm(halves - 2 * ref) > 0.01 * norm(ref):
            del known["clipping"]["not clipped"]  # it does not show
            bench.share_allowed = (
                0.02  # rounding may turn the step of a tiny gradient around
            )
            yield Check("the gradient's length", "skipped", SENTENCES["own length"])
        bench.largest_of_a_sample = numpy.max(
            [abs(bench.alone([k])) for k in range(4)], axis=0
        )
    for what, updates in known.items():
        chosen, words = calls[what]
        with suppress(RunError):
            one, tol = bench.alone(chosen, **words), bench.tolerance
            gaps = {m: norm(one - u) - norm(tol(u)) for m, u in updates.items()}
            near = [mistake for mistake, gap in gaps.items() if gap < 1e-4 * norm(ref)]
            if not near:
                bench.is_stateless &= what != "two steps"
                yield Check(what, "skipped", SENTENCES[what])
            elif near[0]:
                yield Check(what, "wrong", SENTENCES[near[0]], near[0])
    for what, (chosen, words) in calls.items():
        must = chosen is rows and not words  # every step must answer
        yield Check(what, "unjudged" if must else "wrong", "")
        try:
            got, one = bench.both(chosen, **words)
        except RunError as error:
            yield Check(what, "unjudged" if must else "skipped", str(error))
            continue
        if not bench.differing(got, one, times=4 if "steps" in words else 1):
            far = abs(got - one).max() / (abs(one).max() or 1)
            yield Check(what, "right", f"{far:.0e} of the step apart")
        elif what == "replicas":
            yield Check(what, "wrong", SENTENCES["apart"], "apart")
        else:
            mistake, line = explain(bench, len(chosen), words)
            verdict = "unjudged" if mistake == "another algorithm" else "wrong"
            yield Check(what, verdict, line, mistake)
