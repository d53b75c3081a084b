"""What known mistakes make of a step, predicted from steps of one device.

A gradient is a sum over samples. Most mistakes only change how often each sample
counts, so each of them is a vector of weights; 1 for every sample is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
from numpy.linalg import norm

from d2lpar.verify.process import FailedError

TABLE = Path(__file__).with_name("mistakes.tsv").read_text("utf-8")
SENTENCES = dict(line.split("\t") for line in TABLE.splitlines())
Predicted = Iterator[tuple[str, int, numpy.ndarray]]  # its key, a device, weights


def shards_of(n: int, N: int) -> Iterator[list[numpy.ndarray]]:
    """Yield the rows of each device, for each way in which programs split n rows."""
    rows = numpy.arange(n)
    yield numpy.array_split(rows, N)
    yield [rows[k::N] for k in range(N)]
    for size in (n // N, -(-n // N)):  # the last shard is longer, or shorter
        yield numpy.split(rows, [min(n, k * size) for k in range(1, N)])


def weights(n: int, N: int, pieces: int) -> Predicted:
    """Yield how often each of n samples counts, and last a sample of zeros.

    Each device accumulates the gradients of `pieces` of its shard.
    """
    rows = numpy.arange(n)

    def on(chosen, value: float = 1) -> numpy.ndarray:
        found = numpy.zeros(n + 1)
        numpy.add.at(found, chosen, value)  # rows may be repeated
        return found

    short, filled = n // N * N, -(-n // N) * N
    more = range(filled - n)
    yield "dropped rows", 0, on(rows[:short], n / max(1, short))
    yield "dropped rows", 0, on(rows[:short])
    yield "repeated rows", 0, on([*rows, *more], n / filled)
    yield "repeated rows", 0, on([*rows, *[n - 1 for _ in more]], n / filled)
    yield "padding", 0, on([*rows, *[n for _ in more]], n / filled)
    yield "padded size", 0, on(rows, n / filled)
    for shards in shards_of(n, N):
        means = [on(shard, n / max(1, len(shard))) for shard in shards]
        yield "sum of means", 0, sum(means)
        yield "mean of means", 0, sum(means) / N
        yield "mean of means", 0, sum(means) / min(n, N)  # of busy devices
        for k, shard in enumerate(shards):
            yield "one device", k, means[k]
            yield "lost sum", k, means[k] / N
            yield "missing device", k, on(rows) - on(shard)
            yield "device twice", k, on(rows) + on(shard)
            yield "device twice", k, (on(rows) + on(shard)) / 2  # alone, too
            yield "one device", k, on(shard)
            yield "one device", k, on(shard, N)
    for shards in shards_of(n, N) if pieces > 1 else ():
        split = [numpy.array_split(shard, pieces) for shard in shards]
        first, last = (numpy.concatenate([own[j] for own in split]) for j in (0, -1))
        for one in (first, last):
            for value in (n / len(one), n / len(one) / pieces, 1):
                yield "one piece", 0, on(one, value)
        for k in range(N):
            yield "piece not summed", k, on(rows) - on(last) + on(split[k][-1], N)
        for weighted in (True, False):
            means = sum(
                on(piece, (len(shard) if weighted else n / N) / len(piece) / pieces)
                for shard, own in zip(shards, split)
                for piece in own
            )
            yield "mean of pieces", 0, means
            yield "sum of pieces", 0, means * pieces
    for name, factor in (
        ("N times", N),
        ("N times", n / max(1, n // N)),
        ("divided by N", 1 / N),
        ("not divided", n),
        ("divided twice", 1 / n),
        ("mean of sums", n / N),
        ("no step", 0),
    ):
        yield name, 0, on(rows, factor)


def of_a_step(bench, n: int, ref: numpy.ndarray, pieces: int) -> Predicted:
    """Yield the updates of mistakes in one step.

    If updates by single samples do not add up, those of mistakes with a whole shard.
    """
    try:
        alone = numpy.array([bench.alone([row]) for row in (*range(n), bench.zeros)])
    except FailedError:  # BatchNorm may want two samples
        alone = numpy.zeros((n + 1, len(ref)))
    for scale in (1, n, 1 / n):  # also of a step that does not divide, or twice
        if not bench.differing(scale * alone[:n].mean(axis=0), ref, times=3):
            for name, k, w in weights(n, bench.N, pieces):
                yield name, k, scale * (w @ alone) / n
            return
    for shards in shards_of(n, bench.N):
        steps = [bench.alone(s) if len(s) else 0 * ref for s in shards]
        clips = all(abs(norm(step) / norm(ref) - 1) < 0.01 for step in steps)
        name = bench.unlike_a_sum or ("clipped first" if clips else "own statistics")
        yield name, 0, sum(len(s) / n * step for s, step in zip(shards, steps))
        yield name, 0, sum(steps) / bench.N
        for k, step in enumerate(steps):
            yield "one device", k, step
            yield "lost sum", k, step / bench.N


def of_two_steps(bench, n: int, ref: numpy.ndarray) -> Predicted:
    """Yield the updates of mistakes that show in the second of two steps."""
    first = bench.alone(range(n))
    yield "one step", 0, first
    yield "old gradient", 0, 2 * first
    for j in range(1, bench.N + 1):
        yield "stale gradient", 0, ref + j * first
    for shards in shards_of(n, bench.N):
        share = numpy.array([[len(s) / n] for s in shards])
        own = numpy.array([bench.alone(s) for s in shards])
        then = [bench.alone(s, bench.start + u) for s, u in zip(shards, own)]
        yield "local SGD", 0, (share * (own + then)).sum(axis=0)
        for behind in (0 * own, share * own, own):  # what other replicas have added
            behind[0] = first
            then = [bench.alone(s, bench.start + u) for s, u in zip(shards, behind)]
            yield "stale replica", 1, first + (share * then).sum(axis=0)


def of_clipping(bench, n: int, clip_norm: float) -> Predicted:
    """Yield the updates of mistakes in clipping a gradient to the norm `clip_norm`."""

    def clipped(update, by):
        return update * min(1, clip_norm * bench.lr / norm(by))

    whole, N = bench.alone(range(n)), bench.N
    yield "not clipped", 0, whole
    yield "clipped sum", 0, clipped(whole, n * whole)
    yield "norm twice", 0, clipped(whole, N**0.5 * whole)
    yield "norms summed", 0, clipped(whole, N * whole)
    for shards in shards_of(n, N):
        means = [bench.alone(s) for s in shards]
        parts = [len(s) / n * mean for s, mean in zip(shards, means)]
        for own in (means, parts):
            yield "clipped first", 0, sum(clipped(p, by) for p, by in zip(parts, own))
            for k in range(N):
                yield "own norm", k, clipped(whole, own[k])
        yield "clipped first", 0, sum(clipped(mean, mean) for mean in means) / N


def first_wrong(bench, sizes, words: dict) -> tuple | None:
    """Return the first batch size whose step is wrong, that step, and the right one.

    Also what devices add that keep the gradient of the batch before.
    """
    for n in sizes:
        try:
            _, before = bench.both(range(bench.small))
            got, ref = bench.both(range(n), **words)
        except FailedError:  # this step does not take every size
            continue
        if bench.differing(got, ref):
            return n, got, ref, before * bench.small / n
    return None


def explain(bench, sizes: list[int], words: dict) -> tuple[str, str]:
    """Name the mistake in a step of several devices: its key and its sentence."""
    found = first_wrong(bench, sizes, words)
    if found is None:
        return "", f"{SENTENCES['']}; with {sizes} samples the step is right"
    n, got, ref, before = found
    if "steps" in words:
        predicted = list(of_two_steps(bench, n, ref))
    elif "clip_norm" in words:
        predicted = list(of_clipping(bench, n, words["clip_norm"]))
    else:
        predicted = list(of_a_step(bench, n, ref, words.get("accumulate", 1)))
    stale = "idle device" if n < bench.N else "stale gradient"
    predicted += [(stale, 0, ref + j * before) for j in range(1, bench.N + 1)]

    wrong = bench.differing(got, ref)
    at = numpy.concatenate([numpy.r_[bench.parts[k]] for k in wrong])
    tol = 3 * bench.tolerance(ref)[at] + 1e-300

    def distance(mistake: tuple[str, int, numpy.ndarray]) -> float:
        update = mistake[-1]
        longer = max(1, abs(update).max() / abs(ref).max())  # and so is its rounding
        return (abs(got - update)[at] / tol).max() / longer

    nearest = min(predicted, key=distance)
    name, k, _ = nearest
    if distance(nearest) > 1:
        name = ""
        if not ref[at].any():
            name = "frozen"
        elif abs(got - ref)[at].max() < 2**-8 * abs(ref[at]).max():
            name = "half precision"
    sentence = SENTENCES[name].format(k=k, n=n, N=bench.N)
    if not name:
        n, got, ref, _ = first_wrong(bench, range(1, n + 1), words) or found
        wrong = bench.differing(got, ref)[:1]
        sentence += f"; {n} samples show it"
    if len(wrong) < sum(ref[part].any() for part in bench.parts):
        sentence = f"parameter {', '.join(map(str, wrong))}: {sentence}"
    return name, sentence
