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
            job |= {"step": os.path.abspath(step), "even": even}
            job |= {"timeout": timeout or 1e6}
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
    if timeout:  # a file, in a process of its own
        sys.path.insert(0, os.path.dirname(step))
        sys.argv, step = [step], Path(step).stem
    benches: list[Bench] = []
    for k in range(BATCHES):
        bench = Bench(step, num_devices, batch_size, seed + k, timeout)
        if problem := bench.measure():
            yield Check(problem[0], "unjudged", problem[1])
            return
        benches.append(bench)
    noise = numpy.max([bench.noise for bench in benches], axis=0)
    for bench in benches:
        bench.noise, bench.other = noise, benches[-1]
    first, N = benches[0], num_devices
    if any(bench.form == "other" for bench in benches):
        yield Check("the gradient's length", "skipped", SENTENCES["own length"])
    if noise.any():
        line = SENTENCES["own precision"].format(off=f"{noise.max():.0e}")
        yield Check("precision", "skipped", line, "own precision")
    if first.form == "sum":
        yield Check("a mean", "skipped", SENTENCES["sum"], "not divided")
    even = even or bool(getattr(first.module, "EVEN", False))
    wrong: dict[str, str] = {}  # the mistake of each check that is wrong
    remarks: dict[str, Check] = {}
    tried = calls(N, len(first.rows))
    for what, (rows, words) in tried.items():
        if remark := check_one_device(first, what, rows, words):
            remarks[what] = remark
            if remark.verdict == "wrong":
                wrong[what] = remark.mistake
                yield remark
    for bench in benches:
        bench.is_stateless = first.is_stateless
    for what, (rows, words) in tried.items():
        if what in wrong or " and " in what and first.lacks("step", words):
            continue  # the check of a part of a pair says what the step lacks
        if even and len(rows) % N:
            yield Check(what, "skipped", SENTENCES["even"])
            continue
        yield Check(what, "wrong", "")
        for bench in benches:
            check = check_call(bench, what, rows, words, wrong)
            if check.verdict != "right":
                break
        if check.verdict == "right":
            check = remarks.get(what, check)
        if check.verdict == "wrong" or check.mistake in OPEN[:2]:
            wrong[what] = check.mistake
        yield check
        must = what == f"{N} devices against one"
        if must and check.verdict == "unjudged" and not check.mistake:
            return  # several devices do not answer


def calls(N: int, even_batch: int) -> dict[str, tuple[Any, dict]]:
    """Return the rows and the words of the call of each check."""
    rows, odd = range(even_batch), range(even_batch + 1)
    options: dict[str, dict] = {
        "two steps": {"steps": 2},
        "accumulation": {"accumulate": 2},
        "clipping": {"clip_norm": 0},
    }
    pairs = combinations(options, 2)
    return {
        f"{N} devices against one": (rows, {}),
        "replicas": (rows, {"name": "replicas"}),
        "two equal calls": (rows, {}),
        "permuted rows": (numpy.random.default_rng(2).permutation(rows), {}),
        "the batch twice": ([*rows, *rows], {}),
        "twice the learning rate": (rows, {"lr": 2 * LR}),
        **{what: (rows, words) for what, words in options.items()},
        **{f"{a} and {b}": (rows, {**options[a], **options[b]}) for a, b in pairs},
        "an uneven batch": (odd, {}),
        "fewer samples than devices": (range(N - 1), {}),
        "an uneven batch and accumulation": (odd, {"accumulate": 2}),
        "the first batch again": (rows, {}),
    }


def check_one_device(bench: Bench, what: str, rows, words: dict) -> Check | None:
    """Return what one device itself does wrong, or why less is judged, if it does.

    A check that is skipped is not judged, unless several devices differ in it.
    """
    ref = bench.alone(bench.rows)
    cut = ref / 4 / bench.N
    known: dict[str, dict[str, Any]] = {
        "the batch twice": {
            "": 2 * ref if bench.form == "sum" else ref,
            "not divided": 2 * ref,
            "divided twice": ref / 2,
        },
        "clipping": {
            "": cut,
            "clipped sum": cut / len(bench.rows),
            "not clipped": ref if bench.form != "other" else numpy.nan * ref,
        },
    }
    with suppress(RunError):  # a step need not take every call
        if what == "two steps":
            second = bench.alone(bench.rows, bench.start + ref)
            known[what] = {"": ref + second, "old gradient": 2 * ref + second}
        if what in known:
            one, tol = bench.alone(rows, **words), bench.tolerance
            gaps = {m: norm(one - u) - norm(tol(u)) for m, u in known[what].items()}
            near = [m for m, gap in gaps.items() if gap < 1e-4 * norm(ref)]
            if near and near[0]:
                return Check(what, "wrong", SENTENCES[near[0]], near[0])
            if what == "two steps":
                bench.is_stateless = bool(near)  # else the first leaves a momentum
            elif not near:
                return Check(what, "skipped", SENTENCES[what])
    return None


def check_call(bench: Bench, what: str, rows, words: dict, wrong: dict) -> Check:
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
    elif "" in wrong.values():
        mistake = ""  # a name that fits no simpler check is chance
    elif is_right or what == "replicas":
        mistake, line = "apart", SENTENCES["apart"]
    elif what == "accumulation and clipping":
        mistake, line = "clipped pieces", SENTENCES["clipped pieces"]
    else:
        mistake, line = explain(bench, len(rows), words, wrong.values())
        mistake = mistake or next(filter(None, wrong.values()), "")
        if apart and mistake in ("", "factor"):
            mistake, line = "apart", SENTENCES["apart"]
    before += [check for check, name in wrong.items() if name == mistake]
    line = f'as in "{before[0]}"' if before else line
    verdict = "unjudged" if mistake in OPEN else "wrong"
    return Check(what, verdict, line, mistake)
