"""What known mistakes make of a step. The sentences for them are in sentences.tsv."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, combinations, product
from typing import NamedTuple

import numpy
from numpy.linalg import lstsq, norm

from d2lpar.errors import RunError
from d2lpar.verify.bench import LR, SENTENCES, Bench


class Wrong(NamedTuple):
    """A wrong step of `n` samples, the right one, and the elements that differ."""

    n: int
    got: numpy.ndarray
    ref: numpy.ndarray
    at: numpy.ndarray
    tol: numpy.ndarray


def explain(bench: Bench, n: int, words: dict, is_even: bool, known) -> tuple[str, str]:
    """Return the mistake that explains a wrong step of n samples, and a line.

    If several do, one of the `known` mistakes of other checks is taken.
    """
    N, small = bench.N, bench.small_batch
    sizes = [n] if n < N else [small + 1, small, n]
    # Two shards of two rows can be dealt out in three ways only.
    sizes += [4] if N == 2 and not words else []
    sizes = [size for size in sizes if size % N == 0 or not is_even]
    steps = list(wrong_steps(bench, sizes, words))
    steps = steps or list(wrong_steps(bench, [n], words, before=bench.other))
    if not steps:
        return "unsteady", SENTENCES["unsteady"]
    near = [predicted(bench, wrong, words) for wrong in steps]
    # Two numbers may agree in one batch, as those of rows and tokens.
    count = {name: sum(name in names for names in near) for name in chain(*near)}
    often = [name for name in count if 2 * count[name] >= len(steps)]
    often += ["another algorithm"] if "another algorithm" in count else []
    often.sort(key=lambda name: (name not in known, -count[name]))
    found, wrong = None, steps[0]
    if often:
        k = next(k for k, names in enumerate(near) if often[0] in names)
        found, wrong = (often[0], {"k": near[k][often[0]]}), steps[k]
        if "mean of means" in found and bench.differing(*bench.both(range(small))):
            found = "another algorithm", {}  # the mean would be right there
    # Even batches first: no row is repeated or dropped to fill them.
    even_first = sorted(steps, key=lambda one: one.n % N > 0)
    for find, one in product((stale, row_counts, factor, inexact), even_first):
        with suppress(RunError):
            if not found and (found := find(bench, one, words)):
                wrong = one
    if not found:
        least = range(N if is_even else 1, n + 1, N if is_even else 1)
        wrong = next(wrong_steps(bench, least, words), wrong)
        off = abs(wrong.got - wrong.ref).max() / abs(wrong.ref).max()
        found = "", {"off": off}
    name, values = found
    line = SENTENCES[name].format(**{"n": wrong.n, "N": N, **values})
    parts = [bool(numpy.isin(part, wrong.at).any()) for part in bench.parts]
    if sum(parts) < sum(wrong.ref[part].any() for part in bench.parts):
        line = f"parameter {', '.join(map(str, numpy.flatnonzero(parts)))}: {line}"
    return name, line


def wrong_steps(bench: Bench, sizes, words: dict, before=None) -> Iterator[Wrong]:
    """Yield the steps of such batch sizes that are wrong.

    The call before each has a small batch, or that of another bench.
    """
    for n in sizes:
        with suppress(RunError):  # this step does not take every size
            if before:
                before.several(range(n), **words)
            else:
                bench.several(range(bench.small_batch))
            got, ref = bench.both(range(n), **words)
            scale = LR / words.get("lr", LR)
            got, ref = got * scale, ref * scale
            if parts := bench.differing(got, ref):
                tol = bench.tolerance(ref)
                far = ~(abs(got - ref) <= tol)
                at = numpy.concatenate([bench.parts[k] for k in parts])
                yield Wrong(n, got, ref, at[far[at]], tol)


def predicted(bench: Bench, wrong: Wrong, words) -> dict[str, int]:
    """Return the mistakes whose formulas give the wrong step, and by which device."""
    n, got, ref, at, tol = wrong
    if not ref[at].any():
        return {"frozen": 0}
    if not numpy.isfinite(got).all():
        return {"not finite": 0}
    near: dict[str, int] = {}
    for shards, order in dealt(bench, n):
        for name, updates in predict(bench, n, ref, words, shards, order).items():
            if name in ("mean of means", "mean of pieces") and bench.form == "weighted":
                name += " of tokens"
            for k, update in enumerate(updates):
                scale = max(1, abs(update).max() / abs(ref).max())
                rest = (got - update)[at]
                # In 16 bits a small difference is within the tolerance of much.
                explains = 4 * norm(rest) < norm((got - ref)[at])
                if explains and (abs(rest) <= 3 * tol[at] * scale).all():
                    near.setdefault(name, k % bench.N)
    return near


def predict(bench: Bench, n: int, right, words: dict, shards, order) -> dict:
    """Return what each mistake makes of n samples: by device, or by way to make it.

    `shards` has each device's rows, and `order` all rows as they are dealt out.
    """

    def mean(rows, start=None):  # the update of one device
        with suppress(RunError):  # BatchNorm may want two samples
            return bench.recall(rows, start) if len(rows) else 0 * right
        return 0 * right if bench.form == "weighted" else numpy.nan * right

    def part(rows, start=None):  # of the mean over n
        return bench.share(rows, range(n)) * mean(rows, start)

    def clip(update, by=None):  # as if `by` were to be clipped
        by = update if by is None else by
        return update * min(1, words["clip_norm"] * LR / (norm(by) or 1))

    N, rows, small = bench.N, [*range(n)], range(bench.small_batch)
    whole = mean(rows)
    own, parts = [mean(shard) for shard in shards], [part(shard) for shard in shards]
    A = words.get("accumulate", 1)
    if "clip_norm" in words:
        return {
            "not clipped": [whole],
            "clipped sum": [clip(whole, n * whole), clip(whole, N * whole)],
            "norm twice": [clip(whole, N**0.5 * whole)],
            "clipped first": [
                sum(map(clip, parts, own)),
                sum(map(clip, parts)),
                sum(map(clip, own)) / N,
            ],
            "own norm": [clip(whole, by) for by in own + parts],
        }
    if "steps" in words:
        first = part(shards[0], bench.start + whole)
        alone = [part(s, bench.start + u) for s, u in zip(shards, parts)]
        after = [part(s, bench.start + u) for s, u in zip(shards, own)]
        return {
            "old gradient": [2 * whole],
            "stale replica": [
                whole + first + sum(parts[1:]),
                whole + first + sum(alone[1:]),
            ],
            "another algorithm": [sum(parts) + sum(after)],
            "stale gradient": [
                *(right + k * whole for k in range(1, N + 1)),
                *(right + whole - p for p in parts),  # of all but one
            ],
        }
    known = {}
    if A > 1:
        pieces = [numpy.array_split(shard, A) for shard in shards]
        sums, last = [sum(map(mean, p)) for p in pieces], [part(p[-1]) for p in pieces]
        weighted = sum(bench.share(s, rows) * total for s, total in zip(shards, sums))
        together = [[row for p in pieces for row in p[a]] for a in range(A)]
        ways = [sum(sums) / N, weighted, sum(map(mean, together))]
        one_by_one = 0 * whole
        for piece in together:
            one_by_one = one_by_one + mean(piece, bench.start + one_by_one)
        known = {
            "sum of pieces": ways,
            "mean of pieces": [way / A for way in ways],
            "one piece": [sum(last), A * sum(last)],
            "piece not summed": [whole - sum(last) + N * p for p in last],
            "step of each piece": [one_by_one],
        }
    by_rows = sum(len(shard) / n * update for shard, update in zip(shards, own))
    means = [sum(own) / min(n, N), sum(own) / N, by_rows]
    if bench.form == "other":  # then it is no mistake, and not one device's step
        known["another algorithm"] = [means.pop()]
    extra, even = -n % N, order[: n // N * N]
    left = bench.share(small, range(n)) * mean(small)
    return {
        **known,
        "dropped rows": [mean(even), part(even)],
        "repeated rows": [
            mean(order),
            mean(order + order[:extra]),
            mean(order + order[n - extra :]),
        ],
        "padding": [mean(rows + extra * [bench.even_batch + 1])],
        "N times": [N * whole, n / max(1, n // N) * whole],
        "sum of means": [sum(own)],
        "divided by N": [whole / N],
        "not divided": [n * whole],
        "divided twice": [whole / n],
        "mean of sums": [n / N * whole],
        "no step": [0 * whole],
        "mean of means": means,
        "padded size": [n / (n + extra) * whole],
        "one device": own + [N * p for p in parts],
        "lost sum": [u / N for u in own] + parts,
        "missing device": [whole - p for p in parts],
        "device twice": [whole + p for p in parts],
        "idle device" if n < N else "stale gradient": [
            right + k * left for k in range(1, N + 1)
        ],
    }


def dealt(bench: Bench, n: int) -> Iterator[tuple[list, list]]:
    """Yield ways to deal rows out: those of each device, and all in that order."""
    N, rows = bench.N, list(range(n))
    if function := getattr(bench.module, "rows", None):
        with suppress(RunError):  # a helper with other arguments may have this name
            shards = [[int(k) for k in own] for own in bench.call(function, n, N)]
            yield shards, sum(shards, [])
    yield [list(own) for own in numpy.array_split(rows, N)], rows
    yield [rows[k::N] for k in range(N)], rows
    ends = [n // N * k for k in range(1, N)]
    yield [list(own) for own in numpy.split(rows, ends)], rows
    if n == 4 and N == 2:
        yield [[0, 3], [1, 2]], [0, 3, 1, 2]
    if torch := sys.modules.get("torch"):  # its DistributedSampler, which shuffles
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(n, generator=generator, device="cpu").tolist()
        yield [order[k::N] for k in range(N)], order


def stale(bench: Bench, wrong: Wrong, words) -> tuple[str, dict] | None:
    """Return what a step takes from another call: its batch, or its parameters."""
    rows, ref = range(wrong.n), bench.recall(range(wrong.n))

    def same(a, b):
        return norm(a - b) <= 1e-5 * norm(b)

    for name, of, start in (
        ("stale batch", bench.other, bench.start),
        ("stale parameters", bench, bench.other.start),
    ):
        right, there = of.recall(rows, start), of.several(rows, start)
        here, way = bench.several(rows), start - bench.start
        kept = any(same(here, u) for u in (there, there + way, right, right + way))
        if kept and here.any() and not same(right, ref):
            return name, {}
    return None


def factor(bench: Bench, wrong: Wrong, words) -> tuple[str, dict] | None:
    """Return the factor of a step, and which part of it is as in another batch."""
    n, got, ref, at, tol = (*wrong[:3], wrong.at, 6 * wrong.tol[wrong.at])
    got, ref = got[at], ref[at]
    if (abs(got - ref) <= tol).all() or bench.form == "other" and words:
        return None  # too near, or not known what it would be
    scale, apart = LR / words.get("lr", LR), norm(got - ref)

    def of(other):  # both steps with its rows
        steps = other.several, other.alone
        return [f(range(n), bench.start, **words)[at] * scale for f in steps]

    there, right = of(bench.other)
    names = {bench.N: "N times", 1 / bench.N: "divided by N", 1: "constant part"}
    # What no row changes, such as weight decay, is gone in the second difference.
    for a, b in ((got, ref), (got - there, ref - right)):
        c = a @ b / ((b @ b) or 1)
        if (abs(a - c * b) <= tol * max(1, c)).all() and 4 * norm(a - c * b) < apart:
            others = [
                u @ v / ((v @ v) or 1)
                for u, v in map(of, (bench.other, bench.other.other))
            ]
            far = max(others, key=lambda other: abs(other - c))
            if b is ref and abs(far - c) > 1e-3 * abs(c):
                counts = bench.form != "other"  # Adam's step is not as long as them
                return ("wrong count", {"c": c, "other": far}) if counts else None
            for k, name in names.items():
                if abs(c / k - 1) < 1e-3 and 4 * norm(a - k * b) < apart:
                    return name, {}
            return "factor", {"c": c}
    return None


def inexact(bench: Bench, wrong: Wrong, words) -> tuple[str, dict] | None:
    """Return whether copies, random numbers or rounding make a step wrong."""
    n, got, ref, at, _ = wrong
    parts = [part for part in bench.parts if numpy.isin(part, at).any()]
    ends = [(bench.start + ref)[part] for part in parts]
    if any(numpy.array_equal(a, b) for a, b in combinations(ends, 2)):
        return "untied", {}
    again = bench.several(range(n), **words) * LR / words.get("lr", LR)
    if bench.differing(again, got):
        return "unequal on several", {}
    if abs(got - ref)[at].max() < 2**-5 * abs(ref[at]).max():
        deltas = {"half precision": 2.0**-14, "single precision": 1e-7}
        for name, delta in deltas.items():
            if bench.is_rough(delta, bench.N) and not bench.is_rough(delta, 1):
                return name, {}
    return None


def row_counts(bench: Bench, wrong: Wrong, words) -> tuple[str, dict] | None:
    """Fit a step by the steps of single rows: how much does each row count?"""
    n, got, ref, N = *wrong[:3], bench.N
    if n > bench.small_batch + 1 or words.keys() - {"accumulate", "lr"}:
        return None
    columns = {}
    for row in [*range(n), bench.even_batch + 1]:  # the last one is of zeros
        with suppress(RunError):  # a row without a token
            if (update := bench.recall([row])).any():
                columns[row] = update
    basis, limit = numpy.array([*columns.values()]).T, 3 * norm(wrong.tol)
    if len(columns) < 2 or len(basis) <= len(columns):
        return None
    right, found = (lstsq(basis, u, rcond=None)[0] for u in (ref, got))
    if norm(basis @ right - ref) > limit or norm(basis @ found - got) > limit:
        return None
    rows = numpy.array([*columns])
    if rows[-1] >= n:
        if abs(found[-1]) > 0.01 / n > 10 * abs(right[-1]):
            return "padding", {}
        rows, right, found = rows[:-1], right[:-1], found[:-1]
    if (abs(right) < 0.01 / n).any():
        return None
    counts = found / right
    for count in sorted(counts):  # equal but for rounding
        counts[abs(counts - count) < 0.01 * abs(count)] = count
    least, most = counts.min(), counts.max()
    if most - least < 0.02:
        return None
    gone = rows[abs(counts) < 0.02]
    if len(gone) * N == n * (N - 1):  # whichever rows its shard has
        kept = [str(row) for row in rows if row not in gone]
        return "one device", {"k": f"(rows {', '.join(kept)})"}
    if len(gone):
        return "missing rows", {"rows": ", ".join(map(str, gone))}
    if (counts > least).sum() == -n % N and abs(most / least - 2) < 0.05:
        return "repeated rows", {}
    # The rows of a device have a weight of 1 / N together, if it takes their mean.
    shares = [N * right[counts == c].sum() * c for c in set(counts)]
    # Without tokens their number tells how much each row counts.
    sizes = [] if bench.form == "weighted" else [*n / (N * counts)]
    is_whole = all(abs(k - round(k)) < 0.05 for k in shares + sizes)
    if is_whole and "accumulate" not in words:
        return "mean of means" + " of tokens" * (bench.form == "weighted"), {}
    return "unequal rows", {"least": least, "most": most}
