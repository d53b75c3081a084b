"""Which mistake of the table explains a wrong step?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError
from d2lpar.verify.bench import LR, Bench, fitted
from d2lpar.verify.mistakes import ACCUMULATED, CLIPPED, SENTENCES, STEPS, TWO_STEPS


class Wrong(NamedTuple):
    """A wrong step of `n` samples, the right one, and the elements that differ."""

    n: int
    got: numpy.ndarray
    ref: numpy.ndarray
    at: numpy.ndarray
    tol: numpy.ndarray


def explain(bench: Bench, n: int, words: dict, known) -> tuple[str, str]:
    """Return the mistake that explains a wrong step of n samples, and a line.

    It explains the step of every batch size that is tried, even ones of an even batch.
    If several mistakes do, one of the `known` mistakes of other checks is taken.
    """
    small = bench.small_batch * words.get("accumulate", 1) + (n % bench.N > 0)
    steps = list(wrong_steps(bench, [n] if n < bench.N else [small, n], words))
    if not steps:  # a repeated call is right
        return "unsteady", SENTENCES["unsteady"]
    near = [predicted(bench, wrong, words) for wrong in steps]
    wrong, often = steps[0], [m for m in near[0] if all(m in names for names in near)]
    off = abs(wrong.got - wrong.ref).max() / abs(wrong.ref).max()
    name, values = "", dict[str, Any](off=f"{off:.0e}")
    if often:
        name = next((m for m in often if m in known), often[0])
        values["k"] = near[0][name]
    else:
        with suppress(RunError):
            if found := factor(bench, steps, words):
                name, values["c"] = found
            elif bench.differing(bench.several(range(wrong.n), **words), wrong.got):
                name = "unsteady"
            elif off < 1 / 32 and bench.is_rough(bench.N) and not bench.is_rough(1):
                name = "half precision"
    line = SENTENCES[name].format(N=bench.N, **values)
    line += ", in step 2" * (name == "factor" and "steps" in words)
    parts = [bool(numpy.isin(part, wrong.at).any()) for part in bench.parts]
    if sum(parts) < sum(wrong.ref[part].any() for part in bench.parts):
        line = f"parameter {', '.join(map(str, numpy.flatnonzero(parts)))}: {line}"
    return name.replace("factors", "factor"), line


def wrong_steps(bench: Bench, sizes, words: dict) -> Iterator[Wrong]:
    """Yield the steps of such batch sizes that are wrong, each after a small batch."""
    for n in sizes:
        with suppress(RunError):  # this step does not take every size
            bench.several(range(bench.small_batch))
            got, ref = bench.both(range(n), **words)
            if parts := bench.differing(got, ref):
                tol = bench.tolerance(ref)
                far = ~(abs(got - ref) <= tol)
                at = numpy.concatenate([bench.parts[k] for k in parts])
                yield Wrong(n, got, ref, at[far[at]], tol)


def predicted(bench: Bench, wrong: Wrong, words) -> dict[str, int]:
    """Return the mistakes whose formulas give the wrong step, and by which device."""
    n, got, ref, at, tol = wrong
    if not numpy.isfinite(got).all():
        return {"not finite": 0}
    table: dict[str, Any] = STEPS
    if "clip_norm" in words or "steps" in words:
        table = CLIPPED if "clip_norm" in words else TWO_STEPS
    near: dict[str, int] = {}
    for order, shards in dealt(bench, n, words.get("accumulate", 1)):
        case = Case(bench, n, ref, words, order, shards)
        for names in (ACCUMULATED, table) if case.A > 1 else (table,):
            for name, formula in names.items():
                for k, update in enumerate(formula(case)):
                    scale = max(1, abs(update).max() / (abs(ref).max() or 1))
                    rest = (got - update)[at]
                    # In 16 bits a small difference is within the tolerance of much.
                    explains = 4 * norm(rest) < norm((got - ref)[at])
                    if explains and (abs(rest) <= 3 * tol[at] * scale).all():
                        near.setdefault(name, k % bench.N)
    return near


class Case:
    """One device's steps, of which the formulas of the table make wrong ones.

    `order` has all rows as they are dealt out, and `shards` each device's rows.
    """

    def __init__(self, bench: Bench, n: int, right, words: dict, order, shards):
        self.bench, self.n, self.N, self.right = bench, n, bench.N, right
        self.order, self.kind, self.A = order, bench.form, words.get("accumulate", 1)
        if bench.form == "other" and is_clipped_by_value(bench):
            self.kind = "clipped by value"
        rows, small, extra = [*range(n)], range(bench.small_batch), -n % self.N
        self.zeros = extra * [bench.even_batch + 1]
        self.fillings = [[], order[:extra], order[n - extra :]]
        self.whole = self.mean(rows)
        self.own = [self.mean(shard) for shard in shards]
        self.parts = [self.part(shard) for shard in shards]
        self.left = self.part(small)
        self.means = [sum(self.own) / min(n, self.N), sum(self.own) / self.N]
        self.means += [sum(len(s) / n * u for s, u in zip(shards, self.own))]
        if "steps" in words:
            times = [k * self.whole for k in range(1, self.N + 1)]
            self.added = [right + a for k in times for a in (k, k / self.N)]
            self.added += [right + self.whole - part for part in self.parts]
            starts = (bench.start + own for own in self.own)
            self.parts_after = [self.part(s, at) for s, at in zip(shards, starts)]
        if self.A > 1:
            pieces = [numpy.array_split(shard, self.A) for shard in shards]
            together = [[row for p in pieces for row in p[a]] for a in range(self.A)]
            sums = [sum(map(self.mean, p)) for p in pieces]
            self.sums = [
                sum(sums) / self.N,
                sum(self.share(s) * u for s, u in zip(shards, sums)),
                sum(map(self.mean, together)),
            ]
            self.sums_by_A = [s / self.A for s in self.sums]
            self.last = [self.part(p[-1]) for p in pieces]
            self.one_by_one = 0 * right
            for piece in together:
                at = bench.start + self.one_by_one
                self.one_by_one = self.one_by_one + self.mean(piece, at)

    def mean(self, rows, start=None):
        """Return one device's update with these rows."""
        with suppress(RunError):  # BatchNorm may want two samples
            return self.bench.recall(rows, start) if len(rows) else 0 * self.right
        return 0 * self.right if self.kind == "weighted" else numpy.nan * self.right

    def part(self, rows, start=None):
        """Return what these rows add to the right update."""
        return self.share(rows) * self.mean(rows, start)

    def share(self, rows) -> float:
        """Return the share that rows have in the whole batch."""
        rest = {*range(self.n)} - {*rows}
        if self.kind != "weighted" or not rest:
            return 1.0 if self.kind == "sum" else len(rows) / self.n
        return fitted(self.whole, self.mean(rows), self.mean([*rest]))

    def clip(self, update, by=None):
        """Return an update, scaled as if `by` were to be clipped."""
        limit = self.bench.clip_norm * LR
        return update * min(1, limit / (norm(update if by is None else by) or 1))


def is_clipped_by_value(bench: Bench) -> bool:
    """Return whether a value is the largest of many elements of one device's steps."""
    rows = range(bench.even_batch)
    whole, *own = map(bench.recall, (rows, rows[::2], rows[1::2]))
    most, tol = abs(whole).max(), bench.tolerance(whole).max()
    count = (abs(whole) > most - tol).sum()
    alike = all(abs(abs(update).max() - most) <= tol for update in own)
    return alike and 1 < count < 0.9 * (whole != 0).sum()  # Adam's: all


def dealt(bench: Bench, n: int, pieces: int) -> Iterator[tuple[list, list]]:
    """Yield ways to deal rows out: all in their order, and those of each device."""
    N, rows = bench.N, list(range(n))
    yield rows, [list(own) for own in numpy.array_split(rows, N)]
    yield rows, [rows[k::N] for k in range(N)]
    if pieces > 1:  # accelerate deals whole pieces out in turn
        turns = [numpy.array_split(own, N) for own in numpy.array_split(rows, pieces)]
        yield rows, [[*numpy.concatenate(own)] for own in zip(*turns)]
    if torch := sys.modules.get("torch"):  # its DistributedSampler, which shuffles
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(n, generator=generator, device="cpu").tolist()
        yield order, [order[k::N] for k in range(N)]


def factor(bench: Bench, steps: list[Wrong], words) -> tuple[str, str] | None:
    """Return the factor of all wrong steps, or of what rows change, after its name."""
    if bench.form == "other" and words:
        return None  # not known what it would be
    alike = {word: value for word, value in words.items() if word != "steps"}
    for of_rows in (False, True):
        factors = []
        for wrong in steps:
            rows, other = range(wrong.n), bench.other
            there = right = 0 * wrong.ref
            if of_rows:  # weight decay, which no row changes, goes in the difference
                there = other.several(rows, bench.start, **words)
                right = other.alone(rows, bench.start, **words)
            elif "steps" in words:
                there = right = bench.several(rows, **alike)
            factors.append(fitting(wrong, wrong.got - there, wrong.ref - right))
        least, most = min(factors), max(factors)
        if not numpy.isfinite(factors).all():
            continue
        if most - least > 1e-3 * most:
            return "factors", f"{least:.4g} to {most:.4g}"
        if of_rows and abs(most - 1) < 1e-3:
            return "constant part", ""
        if of_rows and abs(most) < 1e-3:
            return "unsteady", ""
        names = {bench.N: "N times", 1 / bench.N: "divided by N"}
        near = [names[c] for c in names if abs(most / c - 1) < 1e-3]
        return (near or ["factor"])[0], f"{most:.4f}"
    return None


def fitting(wrong: Wrong, got, ref) -> float:
    """Return the factor of `ref` that gives `got`, or nan."""
    at, tol = wrong.at, 6 * wrong.tol[wrong.at]
    off = abs(wrong.got - wrong.ref)[at]
    c = got[at] @ ref[at] / ((ref[at] @ ref[at]) or 1)
    rest = abs(got - c * ref)[at]
    fits = (rest <= tol * max(1, c)).all() and 4 * norm(rest) < norm(off)
    return c if fits and (off > tol).any() else numpy.nan
