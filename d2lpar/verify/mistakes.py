"""What known mistakes make of a step. The sentences for them are in sentences.tsv."""

from __future__ import annotations

from contextlib import suppress
from itertools import combinations
from pathlib import Path

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError
from d2lpar.verify.bench import LR

LINES = Path(__file__).with_name("sentences.tsv").read_text("utf-8").splitlines()
OF_UNEVEN = "mean of means", "dropped rows", "repeated rows", "padding", "padded size"
SENTENCES: dict[str, str] = dict(line.split("\t") for line in LINES)


def predict(bench, n: int, right: numpy.ndarray, words: dict, shards) -> dict:
    """Return what each mistake makes of n samples: by device, or by way to make it."""

    def mean(rows, start=bench.start):  # the update of one device
        with suppress(RunError):  # BatchNorm may want two samples
            return bench.alone(rows, start) if len(rows) else 0 * start
        return numpy.nan * start

    def part(rows, after=0):  # of the mean over n, after an update
        return len(rows) / n * mean(rows, bench.start + after)

    def clip(update, by):  # as if `by` were to be clipped
        return update * min(1, words["clip_norm"] * LR / norm(by))

    N, rows, extra = bench.N, [*range(n)], -n % bench.N
    whole, even = mean(rows), rows[: n // N * N]
    own = [mean(shard) for shard in shards]
    parts = [len(shard) / n * update for shard, update in zip(shards, own)]
    if "steps" in words:
        late = whole + part(shards[0], whole) + sum(parts[1:])
        ahead = late - sum(parts[1:]) + sum(map(part, shards[1:], parts[1:]))
        return {
            "old gradient": [2 * whole],
            "stale replica": [late, ahead],
            "another algorithm": [sum(parts) + sum(map(part, shards, own))],
            "stale gradient": [right + k * whole for k in range(1, N + 1)],
        }
    if "clip_norm" in words:
        weighted, of_parts = sum(map(clip, parts, own)), sum(map(clip, parts, parts))
        return {
            "not clipped": [whole],
            "clipped sum": [clip(whole, n * whole)],
            "norm twice": [clip(whole, N**0.5 * whole)],
            "clipped first": [weighted, of_parts, sum(map(clip, own, own)) / N],
            "own norm": [clip(whole, by) for by in own + parts],
        }
    known = {}
    if "accumulate" in words:
        A = words["accumulate"]
        pieces = [numpy.array_split(shard, A) for shard in shards]
        sums, last = [sum(map(mean, p)) for p in pieces], [part(p[-1]) for p in pieces]
        weighted = sum(len(shard) / n * s for shard, s in zip(shards, sums))
        known = {
            "sum of pieces": [sum(sums) / N, weighted],
            "mean of pieces": [sum(sums) / N / A, weighted / A],
            "one piece": [sum(last), A * sum(last)],
            "piece not summed": [whole - sum(last) + N * p for p in last],
        }
    left = bench.small_batch / n * mean(range(bench.small_batch))  # of the batch before
    return {
        **known,
        "another algorithm": [sum(parts)],
        "dropped rows": [mean(even), part(even)],
        "repeated rows": [mean(rows + rows[:extra]), mean(rows + rows[n - extra :])],
        "padding": [mean(rows + extra * [bench.even_batch + 1])],
        "padded size": [n / (n + extra) * whole],
        "sum of means": [sum(own)],
        "N times": [N * whole, n / max(1, n // N) * whole],
        "divided by N": [whole / N],
        "not divided": [n * whole],
        "divided twice": [whole / n],
        "mean of sums": [n / N * whole],
        "no step": [0 * whole],
        "mean of means": [sum(own) / min(n, N)],
        "one device": own + [N * p for p in parts],
        "lost sum": [u / N for u in own] + parts,
        "missing device": [whole - p for p in parts],
        "device twice": [whole + p for p in parts],
        "idle device" if n < N else "stale gradient": [
            right + k * left for k in range(1, N + 1)
        ],
    }


def first_wrong(bench, sizes, words: dict) -> tuple | None:
    """Return the first batch size whose step is wrong, that step, and the right one."""
    for n in sizes:
        with suppress(RunError):  # this step does not take every size
            bench.several(range(bench.small_batch))  # whose gradient may be left over
            got, ref = bench.both(range(n), **words)
            if bench.differing(got, ref):
                return n, got, ref
    return None


def explain(bench, n: int, words: dict) -> tuple[str, str]:
    """Name the mistake in a step of several devices: its key and its sentence."""
    sizes = [n] if n < bench.N else [bench.small_batch + 1, bench.small_batch, n]
    found = first_wrong(bench, sizes, words)
    if found is None:
        return "unsteady", SENTENCES["unsteady"]
    n, got, ref = found
    wrong = bench.differing(got, ref)
    at = numpy.concatenate([bench.parts[k] for k in wrong])

    tol = 3 * bench.tolerance(ref)[at] / abs(ref).max()  # of an update's length
    rows, N = numpy.arange(n), bench.N
    ways = [
        numpy.array_split(rows, N),
        [rows[k::N] for k in range(N)],
        numpy.split(rows, [n // N * k for k in range(1, N)]),  # the last has more
    ]
    near = (
        (name, k % N)
        for shards in ways
        for name, updates in predict(bench, n, ref, words, shards).items()
        for k, update in enumerate(updates)
        if (abs(got - update)[at] <= tol * numpy.abs([update, ref]).max()).all()
    )
    name, k = next(near, ("", 0))
    ends = [(bench.start + ref)[bench.parts[k]] for k in wrong]
    if not ref[at].any():
        name = "frozen"
    elif not numpy.isfinite(got).all():
        name = "not finite"
    elif not name and any(numpy.array_equal(a, b) for a, b in combinations(ends, 2)):
        name = "untied"
    elif not name and abs(got - ref)[at].max() < 2**-8 * abs(ref[at]).max():
        name = "half precision"
    elif name in OF_UNEVEN and bench.differing(*bench.both(range(bench.small_batch))):
        name = "another algorithm" if name == "mean of means" else ""
    sentence = SENTENCES[name].format(k=k, n=n, N=N)
    if not name:
        n, got, ref = first_wrong(bench, range(1, n + 1), words) or found
        wrong = bench.differing(got, ref)[:1]
        sentence += f"; a batch of {n} shows it"
    if len(wrong) < sum(ref[part].any() for part in bench.parts):
        sentence = f"parameter {', '.join(map(str, wrong))}: {sentence}"
    return name, sentence
