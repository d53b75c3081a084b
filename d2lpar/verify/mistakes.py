"""What known mistakes make of a step; mistakes.tsv has their updates and sentences."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy
from numpy.linalg import norm

from d2lpar.verify.process import FailedError, GoneError

with Path(__file__).with_name("mistakes.tsv").open(encoding="utf-8") as file:
    TABLE = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
SENTENCES = {line["mistake"]: line["sentence"] for line in TABLE if line["sentence"]}


def updates(kinds: set[str], names: dict) -> Iterator[tuple[str, numpy.ndarray]]:
    """Yield the key of each mistake of these kinds, and the update with it."""
    for line in TABLE:
        if line["in"] in kinds:
            yield line["mistake"], eval(line["update"], {**names})


def shards_of(n: int, N: int) -> Iterator[list[numpy.ndarray]]:
    """Yield the rows of each device, for each way to split n rows."""
    rows = numpy.arange(n)
    yield numpy.array_split(rows, N)
    yield [rows[k::N] for k in range(N)]
    yield numpy.split(rows, [n // N * k for k in range(1, N)])  # the last has more


def predict(bench, n: int, right: numpy.ndarray, words: dict) -> Iterator[tuple]:
    """Yield the key of each mistake, a device, and the update of n samples with it."""

    @functools.cache
    def step(rows, start):
        try:
            return bench.alone(rows, start=numpy.frombuffer(start))
        except FailedError:  # BatchNorm may want two samples
            return numpy.nan * bench.start

    def mean(*rows, after=0):  # the update of one device by these rows, after another
        start = bench.start + after
        return step(rows, start.tobytes()) if rows else 0 * start

    def part(*rows, after=0):  # of the update by all rows
        return len(rows) / n * mean(*rows, after=after)

    def clip(update, by):  # as if `by` were to be clipped
        return update * min(1, words["clip_norm"] * bench.lr / norm(by))

    N, A, rows = bench.N, words.get("accumulate", 1), range(n)
    zeros = [bench.zeros for _ in range(-n % N)]  # rows of zeros, which fill a shard
    left = bench.small / n * mean(*range(bench.small))  # of the batch before
    whole = mean(*rows)
    kinds = {"steps", "clip_norm"} & {*words} or {"step", *words}
    if n < N:
        kinds.add("few")
    for shards in shards_of(n, N):
        own = [mean(*shard) for shard in shards]
        pieces = [numpy.array_split(shard, A) for shard in shards]
        means = [sum(mean(*piece) for piece in split) for split in pieces]
        last = [part(*split[-1]) for split in pieces]
        for k in range(N):
            for mistake, update in updates(kinds, locals()):
                yield mistake, k, update


def first_wrong(bench, sizes, words: dict) -> tuple | None:
    """Return the first batch size whose step is wrong, that step, and the right one."""
    for n in sizes:
        try:
            bench.several(range(bench.small))  # whose gradient may be left over
            got, ref = bench.both(range(n), **words)
        except GoneError:
            raise
        except FailedError:  # this step does not take every size
            continue
        if bench.differing(got, ref):
            return n, got, ref
    return None


def explain(bench, n: int, words: dict) -> tuple[str, str]:
    """Name the mistake in a step of several devices: its key and its sentence."""
    sizes = [n] if n < bench.N else [bench.small + 1, bench.small, n]
    found = first_wrong(bench, sizes, words)
    if found is None:
        return "unsteady", SENTENCES["unsteady"]
    n, got, ref = found
    wrong = bench.differing(got, ref)
    at = numpy.concatenate([numpy.r_[bench.parts[k]] for k in wrong])
    moved = [(bench.start + ref)[bench.parts[k]] for k in wrong]

    def is_near(update):
        longer = max(1, abs(update).max() / abs(ref).max())  # and so is its rounding
        return (abs(got - update) <= 3 * longer * bench.tolerance(ref))[at].all()

    near = (m for m in predict(bench, n, ref, words) if is_near(m[-1]))
    name, k, _ = next(near, ("", 0, None))
    if not ref[at].any():
        name = "frozen"
    elif not name and any(numpy.array_equal(a, b) for a, b in combinations(moved, 2)):
        name = "untied"
    elif not name and abs(got - ref)[at].max() < 2**-8 * abs(ref[at]).max():
        name = "half precision"
    elif name == "mean of means":  # which is right if shards are even
        if bench.differing(*bench.both(range(bench.small))):
            name = "another algorithm"
    sentence = SENTENCES[name].format(k=k, n=n, N=bench.N)
    if not name:
        n, got, ref = first_wrong(bench, range(1, n + 1), words) or found
        wrong = bench.differing(got, ref)[:1]
        sentence += f"; a batch of {n} shows it"
    if len(wrong) < sum(ref[part].any() for part in bench.parts):
        sentence = f"parameter {', '.join(map(str, wrong))}: {sentence}"
    return name, sentence
