"""Is a step of any framework on several devices the step of one? See docs/verify.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
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
LAST = "the first batch again"  # the last check: without it a verdict is not complete
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
    job = {"num_devices": num_devices, "batch_size": batch_size, "seed": seed}
    checks: list[Check] = []
    begun = Check("a call", "unjudged", "")
    try:
        found = judge(step, even=even, **job)
        if isinstance(step, (str, os.PathLike)):
            from d2lpar import process  # not NumPy alone

            job |= {"step": os.path.abspath(step), "even": even}
            job |= {"timeout": timeout or 1e6}
            found = process.results("d2lpar.verify:judge", job)
        for begun in found:
            if begun.line:
                checks.append(begun)
        if checks[-1].what != LAST and checks[-1].verdict != "unjudged":
            checks.append(Check(LAST, "unjudged", "its process ended before it"))
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
    if timeout:  # a file, in a process of its own
        sys.path.insert(0, os.path.dirname(step))
        sys.argv, step = [step], Path(step).stem
    benches: list[Bench] = []
    for k in range(BATCHES):
        how = (num_devices, batch_size, seed + k, timeout, *benches[:1])
        bench = Bench(benches[0].module if benches else step, *how)
        benches.append(bench)
        if problem := bench.measure():
            yield Check(problem[0], "unjudged", problem[1])
            return
    benches[0].other = benches[-1]
    noise = numpy.max([bench.noise for bench in benches], axis=0)
    for bench in benches:
        bench.noise = noise
    even = even or bool(getattr(benches[0].module, "EVEN", False))
    yield from check_step(benches, even)


def check_step(benches: list[Bench], even: bool) -> Iterator[Check]:
    """Yield the checks of a step on one device, then on several devices."""
    first = benches[0]
    N, rows, odd = first.N, range(first.even_batch), range(first.even_batch + 1)
    calls: dict[str, tuple[Any, dict]] = {
        f"{N} devices against one": (rows, {}),
        "replicas": (rows, {"name": "replicas"}),
        "two equal calls": (rows, {}),
        "permuted rows": (numpy.random.default_rng(2).permutation(rows), {}),
        "the batch twice": ([*rows, *rows], {}),
        "twice the learning rate": (rows, {"lr": 2 * LR}),
    }
    options: dict[str, dict] = {
        "two steps": {"steps": 2},
        "accumulation": {"accumulate": 2},
        "clipping": {"clip_norm": 0},
    }
    calls |= {what: (rows, words) for what, words in options.items()}
    for a, b in combinations(options, 2):
        calls[f"{a} and {b}"] = rows, {**options[a], **options[b]}
    calls |= {
        "an uneven batch": (odd, {}),
        "fewer samples than devices": (range(N - 1), {}),
        "an uneven batch and accumulation": (odd, {"accumulate": 2}),
        LAST: (rows, {}),
    }
    remarks: dict[str, str] = {}
    wrong: dict[str, str] = {}  # the mistake of each check that is wrong
    for check in check_one_device(benches, calls):
        if check.what in calls and check.verdict == "skipped":
            remarks[check.what] = check.line
        else:
            yield check
            calls.pop(check.what, None)
            if check.verdict == "wrong":
                wrong[check.what] = check.mistake
    for what, (chosen, words) in calls.items():
        if " and " in what and first.lacks("step", words):
            continue  # the check of a part of a pair says what the step lacks
        if even and len(chosen) % N:
            yield Check(what, "skipped", SENTENCES["even"])
            continue
        for bench in benches:
            if "clip_norm" in words:
                words["clip_norm"] = bench.clip_norm
            yield Check(what, "wrong", "")
            check = check_call(bench, what, chosen, words, wrong, even)
            if check.verdict != "right":
                break
        if check.verdict == "right" and what in remarks:
            check = Check(what, "skipped", remarks[what])
        yield check
        must = what == f"{N} devices against one"
        if must and check.verdict == "unjudged" and not check.mistake:
            return  # several devices do not answer


def check_one_device(benches: list[Bench], calls: dict) -> Iterator[Check]:
    """Yield what one device does wrong, or why less is compared.

    A check that is skipped here is not judged, unless several devices differ in it.
    """
    first = benches[0]
    ref = first.alone(range(first.even_batch))
    if any(bench.form == "other" for bench in benches):
        yield Check("the gradient's length", "skipped", SENTENCES["own length"])
    if first.noise.any():
        line = SENTENCES["own precision"].format(off=f"{first.noise.max():.0e}")
        yield Check("precision", "skipped", line, "own precision")
    if first.form == "sum":
        yield Check("a mean", "skipped", SENTENCES["sum"], "not divided")
    second = first.alone(range(first.even_batch), first.start + ref)
    cut = ref / 4 / first.N
    twice = 2 * ref if first.form == "sum" else ref
    known: dict[str, dict[str, Any]] = {
        "the batch twice": {
            "": twice,
            "not divided": 2 * ref,
            "divided twice": ref / 2,
        },
        "two steps": {"": ref + second, "old gradient": 2 * ref + second},
        "clipping": {"": cut, "clipped sum": cut / first.even_batch},
    }
    if first.form != "other":  # a length does not show
        known["clipping"]["not clipped"] = ref
    for what, updates in known.items():
        chosen, words = calls[what]
        if what == "clipping":
            words["clip_norm"] = first.clip_norm
        with suppress(RunError):  # a step need not take every call
            one, tol = first.alone(chosen, **words), first.tolerance
            gaps = {m: norm(one - u) - norm(tol(u)) for m, u in updates.items()}
            near = [mistake for mistake, gap in gaps.items() if gap < 1e-4 * norm(ref)]
            if not near and what == "two steps":
                for bench in benches:  # the first step leaves a state, as momentum
                    bench.is_stateless = False
            elif not near:
                yield Check(what, "skipped", SENTENCES[what])
            elif near[0]:
                yield Check(what, "wrong", SENTENCES[near[0]], near[0])


def check_call(
    bench: Bench, what: str, rows, words: dict, wrong: dict[str, str], even: bool
) -> Check:
    """Compare one call; `wrong` has the mistake of each check that was wrong before."""
    must = what == f"{bench.N} devices against one"  # every step must answer
    refused = "unjudged" if must else "skipped"
    apart = False
    try:
        got, one = bench.both(rows, **words)
        if "name" not in words and not bench.lacks("replicas", words):
            replicas = bench.several(rows, name="replicas", **words)
            apart = bool(bench.differing(replicas, replicas[0]))
    except RefusedError as error:
        return Check(what, refused, str(error))
    except RunError as error:
        with suppress(RunError):
            bench.several(rows, N=1, **words)
            wrong[what] = "raises"
            line = SENTENCES["raises"].format(N=bench.N, error=error)
            return Check(what, "wrong", line, "raises")
        # One device may need more rows; what it has an argument for must not fail.
        return Check(what, "unjudged" if words else refused, str(error))
    off = f"{abs(got - one).max() / (abs(one).max() or 1):.0e}"
    is_right = not bench.differing(got, one, 4 if "steps" in words else 1)
    if is_right and not apart:
        return Check(what, "right", f"{off} of the step apart in {BATCHES} batches")
    before = [part for part in what.split(" and ") if part in wrong]
    before += [check for check, name in wrong.items() if name == "another algorithm"]
    if before:
        mistake = wrong[before[0]]
    elif bench.noise.any() and not bench.differing(got, one, 8) and not apart:
        mistake, line = "own precision", SENTENCES["coarse"].format(far=off)
    elif len(rows) < bench.N and "" in wrong.values():
        mistake = ""  # several names fit so few rows, and none fits more of them
    elif is_right or what == "replicas":
        mistake, line = "apart", SENTENCES["apart"]
    elif what == "accumulation and clipping":
        mistake, line = "clipped pieces", SENTENCES["clipped pieces"]
    else:
        mistake, line = explain(bench, len(rows), words, even, wrong.values())
        mistake = mistake or next(filter(None, wrong.values()), "")
    before += [check for check, name in wrong.items() if name == mistake]
    if before:
        line = f'as in "{before[0]}"'
    wrong[what] = mistake
    verdict = "unjudged" if mistake in OPEN else "wrong"
    return Check(what, verdict, line, mistake)
