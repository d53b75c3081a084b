"""Is a step of any framework on several devices the step of one? See docs/verify.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.errors import DiedError, RunError
from d2lpar.verify.bench import LR, Bench, RefusedError
from d2lpar.verify.explain import explain
from d2lpar.verify.mistakes import SENTENCES

__all__ = ["Check", "summary", "verify"]

STATUS = {"right": 0, "wrong": 1, "unjudged": 2}  # the exit status of a summary
OPEN = ("another algorithm", "local steps", "own precision")  # may be what is wanted
BATCHES = 3  # of three seeds: a mistake may not show in the first one


class Check(NamedTuple):
    """What was checked, the verdict, a line that says why, and the mistake or ""."""

    what: str
    verdict: str
    line: str
    mistake: str = ""


def verify(
    step: Any, num_devices=2, batch_size=64, *, seed=0, even=False, timeout=60.0
) -> list[Check]:
    """Judge a step on `num_devices` devices against one; the last check is a summary.

    `step` is a file, which runs in a process of its own, `timeout` seconds for a call,
    or an object with its functions. `batch_size` is rounded to a multiple of twice the
    devices. Batches are drawn with `seed` and the two seeds after it. With `even` no
    uneven batch is tried. The verdict of the summary is "right", "wrong" or "unjudged".
    """
    checks: list[Check] = []
    begun = Check("a call", "unjudged", "")
    try:
        found = judge(step, num_devices, batch_size, seed, even)
        if isinstance(step, (str, os.PathLike)):
            from d2lpar import process  # not NumPy alone

            job = {"num_devices": num_devices, "batch_size": batch_size, "seed": seed}
            job |= {"step": os.path.abspath(step), "even": even, "timeout": timeout}
            found = process.results("d2lpar.verify:judge", job)
        for begun in found:
            if begun.line:
                checks.append(begun)
    except RunError as error:  # of what every step must answer, or its process died
        line, mistake = str(error), ""
        if isinstance(error, DiedError):
            hangs = "SIGALRM" in line
            line = f"no answer in {timeout:g} s" if hangs else f"its process {line}"
            if hangs and begun.verdict == "wrong":
                line, mistake = f"{line}: {SENTENCES['hangs']}", "hangs"
        checks.append(begun._replace(line=line, mistake=mistake))
    return [*checks, summary(checks)]


def summary(checks: list[Check]) -> Check:
    """Return the verdict over all checks, and what was not judged."""
    by = {
        verdict: [check for check in checks if check.verdict == verdict]
        for verdict in ("wrong", "unjudged", "right", "skipped")
    }
    verdict = next((v for v in by if by[v]), "unjudged").replace("skipped", "unjudged")
    count = len(checks) - len(by["skipped"])
    lines = [f"{len(by[v])} of {count} checks {v}" for v in by if by[v] and v in STATUS]
    if by["skipped"]:
        lines.append("not judged: " + ", ".join(check.what for check in by["skipped"]))
    named = [check.mistake for check in by[verdict] if check.mistake]
    return Check("summary", verdict, "; ".join(lines), (named or [""])[0])


def judge(
    step: Any, num_devices, batch_size=64, seed=0, even=False, timeout=0.0
) -> Iterator[Check]:
    """Yield the checks of a file or an object.

    A check without a line announces the next one, in case the process dies in it.
    Raises RunError for errors of the subject in what it must answer.
    """
    if isinstance(step, str):  # a file, in a process of its own
        sys.path.insert(0, os.path.dirname(step))
        sys.argv, step = [step], Path(step).stem
    benches: list[Bench] = []
    for k in range(BATCHES):
        benches.append(Bench(step, num_devices, batch_size, seed + k, timeout))
        if line := benches[k].measure():
            yield Check("one device", "unjudged", line)
            return
    noise = numpy.max([bench.noise for bench in benches], axis=0)
    for bench in benches:
        bench.noise, bench.other = noise, benches[-1]
    first, N = benches[0], num_devices
    yield Check("one device", "unjudged", "")
    found = [check for bench in benches for check in one_device(bench)]
    of_one = {check.what: check for check in sorted(found, key=lambda c: c.verdict)}
    yield from of_one.values()
    wrong = {what: of_one[what].mistake for what in of_one if of_one[what].mistake}
    even = even or bool(getattr(first.module, "EVEN", False))
    for what, (rows, words) in calls(N, len(first.rows)).items():
        if " and " in what and first.lacks("step", words):
            continue  # the check of a part of a pair says what the step lacks
        if even and len(rows) % N:
            yield Check(what, "skipped", SENTENCES["even"])
            continue
        yield Check(what, "wrong", "")
        for bench in benches:
            check = check_call(bench, what, rows, words, wrong)
            if check.verdict != "right":
                break
        if check.verdict == "right" and what in of_one:
            continue
        if check.verdict == "wrong" or check.mistake in OPEN[:2]:
            wrong[what] = check.mistake
        yield check
        if check.verdict == "unjudged" and not words and not check.mistake:
            return  # several devices do not answer
    if lacks := first.lacks("replicas", ()):
        yield Check("replicas", "skipped", lacks)


def calls(N: int, even_batch: int) -> dict[str, tuple[Any, dict]]:
    """Return the rows and the words of the call of each check."""
    rows, odd = range(even_batch), range(even_batch + 1)
    two, pieces, clip = {"steps": 2}, {"accumulate": 2}, {"clip_norm": 0}
    return {
        f"{N} devices against one": (rows, {}),
        "two equal calls": (rows, {}),
        "permuted rows": (numpy.random.default_rng(2).permutation(rows), {}),
        "the batch twice": ([*rows, *rows], {}),
        "twice the learning rate": (rows, {"lr": 2 * LR}),
        "two steps": (rows, two),
        "accumulation": (rows, pieces),
        "clipping": (rows, clip),
        "two steps and accumulation": (rows, two | pieces),
        "two steps and clipping": (rows, two | clip),
        "accumulation and clipping": (rows, pieces | clip),
        "an uneven batch": (odd, {}),
        "fewer samples than devices": (range(N - 1), {}),
        "an uneven batch and accumulation": (odd, pieces),
        "the first batch again": (rows, {}),
    }


def one_device(bench: Bench) -> Iterator[Check]:
    """Yield what one device itself does wrong, or why less is judged."""
    ref, form, far = bench.alone(bench.rows), bench.form, bench.noise.max()
    less = {
        "the gradient's length": form == "other",
        "own precision": far > 0,
        "a mean": form == "sum",
    }
    twice = {"": 2 * ref if form == "sum" else ref}
    twice |= {"not divided": 2 * ref, "divided twice": ref / 2}
    cut = ref / 4 / bench.N
    clipped = {"": cut, "clipped sum": cut / len(bench.rows)}
    clipped |= {"not clipped": ref} if form != "other" else {}
    known = {"the batch twice": twice, "clipping": clipped}
    with suppress(RunError):  # a step need not take every call
        second = bench.alone(bench.rows, ref)
        known["two steps"] = {"": ref + second, "old gradient": 2 * ref + second}
    tried = calls(bench.N, len(bench.rows))
    for what, updates in known.items():
        with suppress(RunError):
            one = bench.alone(tried[what][0], **tried[what][1])
            gaps = [norm(one - u) - norm(bench.tolerance(u)) for u in updates.values()]
            near = [m for m, gap in zip(updates, gaps) if gap < 1e-4 * norm(ref)]
            if near and near[0]:
                yield Check(what, "wrong", SENTENCES[near[0]], near[0])
            if what == "two steps":
                bench.is_stateless = bool(near)  # else the first leaves a momentum
            else:
                less[what] = not near
    for what in filter(less.get, less):
        yield Check(what, "skipped", SENTENCES[what].format(off=f"{far:.0e}"))


def check_call(bench: Bench, what: str, rows, words: dict, wrong: dict) -> Check:
    """Compare one call; `wrong` has the mistake of each check that was wrong before."""
    apart = False
    try:
        got, one = bench.both(rows, **words)
        if not bench.lacks("replicas", words):
            replicas = bench.several(rows, name="replicas", **words)
            apart = bool(bench.differing(replicas, replicas[0]))
    except RunError as error:
        is_refused = isinstance(error, RefusedError)
        with suppress(RunError):
            if not is_refused:
                bench.several(rows, N=1, **words)
                line = SENTENCES["raises"].format(N=bench.N, error=error)
                return Check(what, "wrong", line, "raises")
        # One device may need more rows; what it has an argument for must not fail.
        must = words and not is_refused or what == f"{bench.N} devices against one"
        return Check(what, "unjudged" if must else "skipped", str(error))
    off = f"{abs(got - one).max() / (abs(one).max() or 1):.0e}"
    is_right = not bench.differing(got, one, 4 if "steps" in words else 1)
    if is_right and not apart:
        return Check(what, "right", f"{off} of the step apart in {BATCHES} batches")
    # A part of a pair explains it, and a name that fits no simpler check is chance.
    known = [wrong[part] for part in what.split(" and ") if part in wrong]
    known += [name for name in wrong.values() if name in ("", "another algorithm")]
    line = ""
    if bench.noise.any() and not apart and not bench.differing(got, one, 8):
        mistake = "own precision"
    elif known:
        mistake = known[0]
    elif is_right:
        mistake = "apart"
    elif what == "accumulation and clipping":
        mistake = "clipped pieces"
    else:
        mistake, line = explain(bench, len(rows), words, wrong.values())
        mistake = mistake or next(filter(None, wrong.values()), "")
        if apart and mistake in ("", "factor"):
            mistake, line = "apart", ""
    if same := [check for check, name in wrong.items() if name == mistake]:
        line = f'as in "{same[0]}"'
    line = line or SENTENCES[mistake].format(off=off)
    line += "; the replicas differ, too" * (apart and mistake != "apart")
    return Check(what, "unjudged" if mistake in OPEN else "wrong", line, mistake)
