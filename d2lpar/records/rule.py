"""The one rule by which something is faster, in numbers and in words.

Two settings took turns: a turn's ratio is that of the times which both took in it. The
rule is about these ratios, so noise that slows both sides of a turn cancels. It was
chosen by the simulations in docs/usage.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from typing import Any

import numpy

from d2lpar.text import as_ratio, number

NOT_TIMED = "one epoch, not timed"  # why a training has no seconds per epoch
FEWEST = 4  # turns; the interval of three is twice as wide
LEVEL = 0.05  # share of equal pairs that are told apart
SAME = 1.15  # two settings are the same if their ratio is within this factor of 1
NEIGHBOURS = 2  # batches on either side whose spread a batch shares
MARGIN = f"within {100 * SAME - 100:.0f} %"
MARKS = f"=: the same {MARGIN}, ?: not told"
MANY = 8  # samples from which quartiles say more than the range


@dataclass(frozen=True)
class Summary:
    """Samples of one work: median, spread and `n`, in the samples' unit; NaN for none.

    `low` and `high` bound what pictures draw: the range, from 8 samples on quartiles.
    `turns` has the median of each turn; two works took turns if they share its key.
    """

    median: float
    low: float
    high: float
    n: int
    samples: tuple[float, ...]
    turns: Mapping[Any, float] = field(default_factory=dict)

    def cells(self, scale: float = 1.0) -> list[str]:
        """Return the median, range and n as cells of a table, "-" for unknown ones."""
        if not self.n:
            return ["-", "-", "0"]
        spread = f"{number(scale * self.least)}-{number(scale * self.most)}"
        return [number(scale * self.median), spread if self.n > 1 else "-", str(self.n)]

    @property
    def least(self) -> float:
        return min(self.samples)

    @property
    def most(self) -> float:
        return max(self.samples)


NOTHING = Summary(math.nan, math.nan, math.nan, 0, ())


def summarize(
    samples: Sequence[float], turns: Mapping[Any, float] | None = None
) -> Summary:
    """Summarize samples, which took turns with others if `turns` has their medians.

    Raises ValueError for no samples.
    """
    middle, n = float(median(samples)), len(samples)
    low, high = numpy.percentile(samples, (25, 75) if n >= MANY else (0, 100)).tolist()
    return Summary(middle, low, high, n, tuple(map(float, samples)), turns or {})


def in_turns(by_turn: Mapping[Any, Sequence[float]]) -> Summary:
    """Summarize the samples of each turn, if any; the median is of turns' medians."""
    measured = {turn: values for turn, values in by_turn.items() if len(values)}
    if not measured:
        return NOTHING
    samples = [value for values in measured.values() for value in values]
    turns = {turn: float(median(values)) for turn, values in measured.items()}
    return replace(summarize(samples, turns), median=float(median(turns.values())))


def of_turns(samples: Sequence[float]) -> Summary:
    """Summarize samples of which the k-th is that of turn k."""
    return summarize(samples, dict(enumerate(map(float, samples))))


# The rule


@dataclass(frozen=True)
class Comparison:
    """How many times as long `a` takes as `b`, and what can be said of it.

    `low` and `high` bound the ratio in 95 % of cases, and `within` is the factor of 1
    that it is within in 95 %. Without four `turns` nothing is told: `ratio` is that of
    the medians, `low` and `high` are those of the ranges, and `within` is infinite.
    """

    ratio: float
    low: float
    high: float
    within: float
    turns: int

    @property
    def verdict(self) -> str:
        """Return "faster" or "slower" (that `b` is), "same" or "not told"."""
        if math.isfinite(self.within) and not self.low <= 1 <= self.high:
            return "faster" if self.ratio > 1 else "slower"
        return "same" if self.within <= SAME else "not told"

    @property
    def is_told(self) -> bool:
        """Return whether one is faster."""
        return self.verdict in ("faster", "slower")

    @property
    def cell(self) -> str:
        """Return the ratio with the mark that tables have: "1.62", "0.97=", "1.2?"."""
        if math.isnan(self.ratio):
            return "-"
        mark = {"same": "=", "not told": "?"}.get(self.verdict, "")
        return f"{self.ratio:.2f}{mark}"


def compare(a: Summary, b: Summary) -> Comparison:
    """Compare two works by the one rule that everything says "faster" by.

    With four turns or more, one is faster if the 95 % interval of the mean log ratio of
    the turns, Student's, excludes 1. Both are the same if the 90 % interval is within
    1/1.15 and 1.15: two one-sided tests at 5 %. Otherwise nothing is told.
    """
    return compare_all([(a, b)])[0]


def compare_all(pairs: Sequence[tuple[Summary, Summary]]) -> list[Comparison]:
    """Compare pairs of works of one study, such as a pair for each batch in order.

    The probability that *any* pair of equal works is told apart is 5 % (Bonferroni).
    """
    found, judged, logs = [], [], []
    for k, (a, b) in enumerate(pairs):
        turns = [turn for turn in a.turns if turn in b.turns]
        ratio = low = high = math.nan
        if a.n and b.n and b.least > 0:
            ratio, low, high = a.median / b.median, a.least / b.most, a.most / b.least
        found.append(Comparison(ratio, low, high, math.inf, len(turns)))
        if len(turns) >= FEWEST:
            judged.append(k)
            logs.append(numpy.log([a.turns[turn] / b.turns[turn] for turn in turns]))
    both = zip(judged, intervals(logs, LEVEL), intervals(logs, 2 * LEVEL))
    for k, (mean, half), (_, narrower) in both:
        ratio, low, high = numpy.exp([mean, mean - half, mean + half]).tolist()
        within = math.exp(abs(mean) + narrower)
        found[k] = Comparison(ratio, low, high, within, found[k].turns)
    return found


def intervals(logs: Sequence[numpy.ndarray], share: float) -> Iterator[tuple]:
    """Yield the mean of each setting's log ratios, and half of its interval's width.

    ``logs[k]`` has setting k's turns in its first axis; further axes are studies. In a
    `share` of studies of equal works any interval excludes 0. A setting's standard
    deviation is its own, or that of it and its neighbours if larger.
    """
    freedom = [len(values) - 1 for values in logs]
    squares = [values.var(axis=0) * len(values) for values in logs]
    for k, values in enumerate(logs):
        near = slice(max(0, k - NEIGHBOURS), k + NEIGHBOURS + 1)
        pooled = sum(squares[near]) / sum(freedom[near])
        variance = numpy.maximum(squares[k] / freedom[k], pooled)
        t = t_quantile(share / len(logs), sum(freedom[near]))
        yield values.mean(axis=0), t * numpy.sqrt(variance / len(values))


@cache
def t_quantile(share: float, freedom: int) -> float:
    """Return the t beyond which, on both sides, a `share` of Student's t is."""
    low, high = 0.0, 1e6
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        is_more = _beyond(middle, freedom) > share
        low, high = (middle, high) if is_more else (low, middle)
    return high


def _beyond(t: float, freedom: int) -> float:
    """Return the share beyond t and -t: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    term = math.sin(angle) * (cosine if odd else 1.0)
    total = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    return 1 - (2 / math.pi * (angle + total) if odd else total)


# In words


def phrase(
    this: str,
    mine: Summary,
    other: str,
    others: Summary,
    repeat: str = "",
    unit: str = "s",
    when: str = "in this run",
) -> str:
    """Say how fast `this` is beside the `other`, which took `mine` and `others`.

    `repeat` tells where this cannot be told; `unit` is the samples'.

    >>> slow, fast = of_turns([4, 4.2, 4.1, 4]), of_turns([2, 2.1, 2.2, 2])
    >>> phrase("b", fast, "a", slow)
    'b is 2.0 times as fast as a (1.9 to 2.1)'
    >>> phrase("b", slow, "a", slow)
    'b is as fast as a within 15 % (1.00; 1.00 to 1.00)'
    >>> phrase("b", of_turns([2, 7, 2, 7]), "a", slow)
    'whether b is as fast as a is not told by 4 turns: 1.09 times (0.35 to 3.41)'
    >>> phrase("b", summarize([2.0, 2.2]), "a", summarize([4.0, 4.2]), "--repeats 4")
    'in this run b took 0.51 times as long as a (2.00-2.20 and 4.00-4.20 s); whether it is so in general: --repeats 4'
    """  # noqa: E501
    found = compare(others, mine)
    if math.isnan(found.ratio):
        return f"whether {this} is as fast as {other} cannot be told ({NOT_TIMED})"
    ends = f"{found.low:.2f} to {found.high:.2f}"
    if found.is_told:
        ratio, low, high, words = found.ratio, found.low, found.high, "is {} fast"
        if ratio < 1:
            ratio, low, high, words = 1 / ratio, 1 / high, 1 / low, "takes {} long"
        words = words.format(f"{as_ratio(ratio)} times as")
        return f"{this} {words} as {other} ({as_ratio(low)} to {as_ratio(high)})"
    if found.verdict == "same":
        words = f"is as fast as {other} {MARGIN}"
        return f"{this} {words} ({found.ratio:.2f}; {ends})"
    if found.turns >= FEWEST:
        return (
            f"whether {this} is as fast as {other} is not told by {found.turns} turns: "
            f"{found.ratio:.2f} times ({ends})"
        )
    sides = (side.cells() for side in (mine, others))
    ranges = " and ".join(middle if ends == "-" else ends for middle, ends, _ in sides)
    general = f"; whether it is so in general: {repeat}" if repeat else ""
    return (
        f"{when} {this} took {1 / found.ratio:.2f} times as long as {other} "
        f"({ranges} {unit}){general}"
    )


def in_short(mine: Summary, others: Summary) -> str:
    """Return how fast one is beside the other in few words, "" where it is not told."""
    found = compare(others, mine)
    if found.verdict == "same":
        return f"as fast {MARGIN}"
    if not found.is_told:
        return ""
    adjective = "fast" if found.ratio > 1 else "long"
    return f"{as_ratio(max(found.ratio, 1 / found.ratio))} times as {adjective}"
