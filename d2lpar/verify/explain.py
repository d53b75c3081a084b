"""Which mistake of the table explains a wrong step?"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy
from numpy.linalg import norm

from d2lpar.errors import RunError
from d2lpar.verify import mistakes
from d2lpar.verify.bench import LR, Bench, fitted
from d2lpar.verify.mistakes import SENTENCES


def explain(bench: Bench, n: int, words: dict, known) -> tuple[str, str]:
    """Return the mistake that explains a wrong step of n samples, and a line.

    It explains the step of every batch size that is tried, even ones of an even batch.
    If several mistakes do, one of the `known` mistakes of other checks is taken.
    """
    small = bench.small_batch * words.get("accumulate", 1) + (n % bench.N > 0)
    cases = []
    for size in [n] if n < bench.N else [small, n]:
        with suppress(RunError):  # this step does not take every size
            cases.append(Case(bench, size, words))
    if not (cases := [case for case in cases if case.at.any()]):
        return "unsteady", SENTENCES["unsteady"]  # a repeated call is right
    near, case = [case.names() for case in cases], cases[0]
    off = abs(case.got - case.right).max() / abs(case.right).max()
    name, values = "", dict[str, Any](off=f"{off:.0e}")
    if often := [m for m in near[0] if all(m in names for names in near)]:
        name = next((m for m in often if m in known), often[0])
        values["k"] = near[0][name]
    else:
        with suppress(RunError):
            if found := factor(bench, cases, words):
                name, values["c"] = found
            elif bench.differing(bench.several(range(case.n), **words), case.got):
                name = "unsteady"
            elif off < 1 / 32 and bench.is_rough(bench.N) and not bench.is_rough(1):
                name = "half precision"
    line = SENTENCES[name].format(N=bench.N, **values)
    line += ", in step 2" * (name == "factor" and "steps" in words)
    parts = [k for k, part in enumerate(bench.parts) if case.at[part].any()]
    moved = [case.right[part] != 0 for part in bench.parts]
    is_all = case.at.sum() > 0.9 * sum(moved[k].sum() for k in parts)
    some = "" if is_all or name not in ("factor", "N times") else "some elements of "
    if some or len(parts) < sum(map(numpy.any, moved)):
        line = f"{some}parameter {', '.join(map(str, parts))}: {line}"
    return name.replace("factors", "factor"), line


class Case:
    """A call with n rows that may be wrong, and what mistakes make of it.

    `whole` is a right step. `own` has one device's step with each device's rows, and
    `parts` what these add to the right step. Formulas of the table use them.
    """

    def __init__(self, bench: Bench, n: int, words: dict):
        self.bench, self.n, self.N, self.words = bench, n, bench.N, words
        self.A, self.kind = words.get("accumulate", 1), bench.form
        if bench.form == "other" and is_clipped_by_value(bench):
            self.kind = "clipped by value"
        bench.several(range(bench.small_batch))  # what an earlier step may leave
        self.got, self.right = bench.both(range(n), **words)
        self.tol = bench.tolerance(self.right)
        self.at = ~(abs(self.got - self.right) <= self.tol)

    def names(self) -> dict[str, int]:
        """Return the mistakes whose formulas give the step, and by which device."""
        if not numpy.isfinite(self.got).all():
            return {"not finite": 0}
        tables: list[dict[str, Any]] = [mistakes.ACCUMULATED] * (self.A > 1)
        one_step = mistakes.TWO_STEPS if "steps" in self.words else mistakes.STEPS
        tables.append(mistakes.CLIPPED if "clip_norm" in self.words else one_step)
        near: dict[str, int] = {}
        for order, shards in dealt(self.n, self.N, self.A):
            self.deal(order, shards)
            for name, formula in (row for table in tables for row in table.items()):
                for k, update in enumerate(formula(self)):
                    if self.is_near(update):
                        name = mistakes.NAMES.get((name, self.kind), name)
                        near.setdefault(name, k % self.N)
        return near

    def is_near(self, update) -> bool:
        """Return whether an update is the wrong one, where that is wrong."""
        rest, off = (abs(self.got - u)[self.at] for u in (update, self.right))
        times = max(1, abs(update).max() / (abs(self.right).max() or 1))
        # In 16 bits a small difference is within the tolerance of much.
        is_less = 4 * norm(rest) < norm(off)
        return is_less and (rest <= 3 * times * self.tol[self.at]).all()

    def deal(self, order: list, shards: list[list]) -> None:
        """Compute what formulas use: `shards` has each device's rows."""
        n, N, A, rows = self.n, self.N, self.A, [*range(self.n)]
        zeros, extra = [len(self.bench.rows) + 1], -n % N
        self.fillings = [order[:extra], order[n - extra :]]
        self.order, self.padded = order, rows + extra * zeros
        self.whole = self.mean(rows)
        self.own = [self.mean(shard) for shard in shards]
        self.parts = [self.part(shard) for shard in shards]
        self.left = self.part(range(self.bench.small_batch))
        self.means = [sum(self.own) / min(n, N), sum(self.own) / N]
        self.means += [sum(len(s) / n * u for s, u in zip(shards, self.own))]
        if "steps" in self.words:
            starts = (self.bench.start + own for own in self.own)
            self.parts_after = [self.part(s, at) for s, at in zip(shards, starts)]
        if A > 1:
            pieces = [numpy.array_split(shard, A) for shard in shards]
            together = [[row for p in pieces for row in p[a]] for a in range(A)]
            sums = [sum(map(self.mean, p)) for p in pieces]
            self.sums = [
                sum(sums) / N,
                sum(self.share(s) * u for s, u in zip(shards, sums)),
                sum(map(self.mean, together)),
            ]
            self.last = [self.part(p[-1]) for p in pieces]
            self.pieces = [sum(self.part(p[a]) for p in pieces) for a in range(A)]
            self.one_by_one = 0 * self.right
            for piece in together:
                at = self.bench.start + self.one_by_one
                self.one_by_one = self.one_by_one + self.mean(piece, at)

    def mean(self, rows, start=None):
        """Return one device's update with these rows."""
        with suppress(RunError):  # BatchNorm may want two samples
            return self.bench.alone(rows, start) if len(rows) else 0 * self.right
        return 0 * self.right if self.kind == "weighted" else numpy.nan * self.right

    def part(self, rows, start=None):
        """Return what these rows add to the right update."""
        return self.share(rows) * self.mean(rows, start)

    def share(self, rows) -> float:
        """Return the share that rows have in the whole batch."""
        rest = {*range(self.n)} - {*rows}
        if self.kind != "weighted" or not rest:
            return 1.0 if self.kind == "sum" else len(rows) / self.n
        return fitted(self.mean(range(self.n)), self.mean(rows), self.mean([*rest]))

    def clip(self, update, by=None):
        """Return an update, scaled as if `by` were to be clipped."""
        limit = self.bench.clip_norm * LR
        return update * min(1, limit / (norm(update if by is None else by) or 1))


def is_clipped_by_value(bench: Bench) -> bool:
    """Return whether a value is the largest of many elements of one device's steps."""
    rows = bench.rows
    whole, *own = map(bench.alone, (rows, rows[::2], rows[1::2]))
    most, tol = abs(whole).max(), bench.tolerance(whole).max()
    count = (abs(whole) > most - tol).sum()
    alike = all(abs(abs(update).max() - most) <= tol for update in own)
    return alike and 1 < count < 0.9 * (whole != 0).sum()  # Adam's: all


def dealt(n: int, N: int, pieces: int) -> Iterator[tuple[list, list]]:
    """Yield ways to deal rows out: all in their order, and those of each device."""
    rows = list(range(n))
    yield rows, [list(own) for own in numpy.array_split(rows, N)]
    yield rows, [rows[k::N] for k in range(N)]
    if pieces > 1:  # accelerate deals whole pieces out in turn
        turns = [numpy.array_split(own, N) for own in numpy.array_split(rows, pieces)]
        yield rows, [[*numpy.concatenate(own)] for own in zip(*turns)]
    if torch := sys.modules.get("torch"):  # its DistributedSampler, which shuffles
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(n, generator=generator, device="cpu").tolist()
        yield order, [order[k::N] for k in range(N)]


def factor(bench: Bench, cases: list[Case], words: dict) -> tuple[str, str] | None:
    """Return the factor of what rows change, or of a second step, after its name."""
    if bench.form == "other" and words:
        return None  # not known what it would be
    alike = {word: value for word, value in words.items() if word != "steps"}
    for of_rows in (False, True):
        factors = []
        for case in cases:
            rows, other, there, right = range(case.n), bench.other, 0 * case.tol, 0
            if of_rows:  # weight decay, which no row changes, goes in the difference
                there = other.several(rows, bench.start, **words)
                right = other.alone(rows, bench.start, **words)
            elif "steps" in words:
                there = right = bench.several(rows, **alike)
            way = case.right - right
            c = fitted(case.got, there + way, there, case.at)
            factors.append(c if case.is_near(there + c * way) else numpy.nan)
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
        near = [names[c] for c in names if abs(most / c - 1) < 1e-3 and not words]
        return (near or ["factor"])[0], f"{most:.4f}"
    return None
