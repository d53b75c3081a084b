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

    It explains every batch size that is tried, best as one of the `known` mistakes.
    """
    small = bench.small_batch * words.get("accumulate", 1) + (n % bench.N > 0)
    cases = []
    for size in [n] if n < bench.N else [small, n]:
        with suppress(RunError):  # this step does not take every size
            cases.append(Case(bench, size, words))
    if not (cases := [case for case in cases if case.at.any()]):
        return "unsteady", SENTENCES["unsteady"]  # a repeated call is right
    case, name, values = cases[0], "", [0.0]
    off = abs(case.got - case.right).max() / abs(case.right).max()
    with suppress(RunError):
        for compare in (Case.formulas, Case.factors, lambda c: c.factors(True)):
            found = [compare(case) for case in cases]
            if often := [m for m in found[0] if all(m in names for names in found)]:
                name = next((m for m in often if m in known), often[0])
                values = [names[name] for names in found]
                break
        else:
            if bench.differing(bench.several(range(case.n), **words), case.got):
                name = "unsteady"
            elif off < 1 / 32 and bench.is_rough(bench.N) and not bench.is_rough(1):
                name = "half precision"
    least, most = min(values), max(values)
    is_range = most - least > 1e-3 * most
    c = f"{least:.4g} to {most:.4g}" if is_range else f"{most:.4f}"
    line = SENTENCES[name].format(N=bench.N, off=f"{off:.0e}", k=values[0], c=c)
    if name == "factor":
        line += ", depending on the batch: what is the gradient divided by?" * is_range
        line += ", in step 2" * ("steps" in words)
    parts = bench.differing(case.got, case.right)
    moved = [numpy.count_nonzero(case.right[part]) for part in bench.parts]
    is_all = case.at.sum() > 0.9 * sum(moved[k] for k in parts)
    some = "" if is_all or name not in ("factor", "N times") else "some elements of "
    if some or len(parts) < numpy.count_nonzero(moved):
        line = f"{some}parameter {', '.join(map(str, parts))}: {line}"
    return name, line


class Case:
    """A call with n rows that may be wrong, and what formulas of the table use.

    `right` is what it should be, and `at` where it is not. `whole` is one device's step
    with all rows in their `order`; `shards` has the rows of each device, `own` one
    device's steps with them, and `parts` what these add to the right step.
    `pieces` has the rows of each device for each accumulated piece, `together` of all.
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
        self.whole = self.mean(range(n))
        self.extra = -n % self.N  # to fill the last shard
        self.left = self.part(range(bench.small_batch))

    def formulas(self) -> dict[str, float]:
        """Return the mistakes whose formulas give the step, and by which device."""
        if not numpy.isfinite(self.got).all():
            return {"not finite": 0}
        table: dict[str, Any] = {**mistakes.ACCUMULATED} if self.A > 1 else {}
        one_step = mistakes.TWO_STEPS if "steps" in self.words else mistakes.STEPS
        table |= mistakes.CLIPPED if "clip_norm" in self.words else one_step
        near: dict[str, float] = {}
        for deal in dealt(self.n, self.N, self.A):
            self.order, self.shards = deal
            self.own = [*map(self.mean, self.shards)]
            self.parts = [*map(self.part, self.shards)]
            self.pieces = [*zip(*(numpy.array_split(s, self.A) for s in self.shards))]
            self.together = [*map(numpy.concatenate, self.pieces)]
            self.last = [*map(self.part, self.pieces[-1])]
            for name, formula in table.items():
                for k, update in enumerate(formula(self)):
                    if self.is_near(update):
                        name = mistakes.NAMES.get((name, self.kind), name)
                        near.setdefault(name, k % self.N)
        return near

    def factors(self, of_rows=False) -> dict[str, float]:
        """Return names of how many times as far the step goes, or its rows' part.

        Weight decay, which no row changes, is not in the difference of two batches.
        """
        rows, words, there, right = range(self.n), {**self.words}, 0 * self.tol, 0
        if self.bench.form == "other" and words:
            return {}  # it is not known what it would be
        if of_rows:
            other, at = self.bench.other, self.bench.start - self.bench.other.start
            there, right = (f(rows, at, **words) for f in (other.several, other.alone))
        elif words.pop("steps", None):
            there = right = self.bench.several(rows, **words)
        way = self.right - right
        c = fitted(self.got, there + way, there, self.at)
        if not self.is_near(there + c * way):
            return {}
        n, N = self.n, self.N
        names = {"constant part": 1.0, "unsteady": 0.0} if of_rows else {}
        names |= {"N times": N, "divided by N": 1 / N} if not self.words else {}
        names |= {"not divided": n, "divided twice": 1 / n, "mean of sums": n / N}
        names |= {"factor": c}
        return {m: c for m, u in names.items() if abs(c - u) <= 1e-3 * abs(u or 1)}

    def is_near(self, update) -> bool:
        """Return whether an update is the wrong one, where that is wrong."""
        rest, off = (abs(self.got - u)[self.at] for u in (update, self.right))
        times = max(1, abs(update).max() / (abs(self.right).max() or 1))
        # In 16 bits a small difference is within the tolerance of much.
        is_less = 4 * norm(rest) < norm(off)
        return is_less and (rest <= 3 * times * self.tol[self.at]).all()

    def mean(self, rows, done=0):
        """Return one device's update with these rows, after another update."""
        with suppress(RunError):  # BatchNorm may want two samples
            return self.bench.alone(rows, done) if len(rows) else 0 * self.right
        return 0 * self.right if self.kind == "weighted" else numpy.nan * self.right

    def part(self, rows, done=0):
        """Return what these rows add to the right update."""
        return self.share(rows) * self.mean(rows, done)

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
    whole, *_ = own = [abs(bench.alone(some)) for some in (rows, rows[::2], rows[1::2])]
    most, tol = [update.max() for update in own], bench.tolerance(whole).max()
    count = (whole > most[0] - tol).sum()
    return numpy.ptp(most) <= tol and 1 < count < 0.9 * (whole != 0).sum()  # Adam: all


def dealt(n: int, N: int, pieces: int) -> Iterator[tuple[list, list]]:
    """Yield ways to deal rows out: all in their order, and those of each device."""
    rows = [*range(n)]
    yield rows, numpy.array_split(rows, N)
    yield rows, [rows[k::N] for k in range(N)]
    if pieces > 1:  # accelerate deals whole pieces out in turn
        turns = [numpy.array_split(own, N) for own in numpy.array_split(rows, pieces)]
        yield rows, [*map(numpy.concatenate, zip(*turns))]
    if torch := sys.modules.get("torch"):  # its DistributedSampler, which shuffles
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(n, generator=generator, device="cpu").tolist()
        yield order, [order[k::N] for k in range(N)]
