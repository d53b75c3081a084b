"""Medians, ranges, accuracies, and the one rule by which something is faster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import numpy

from d2lpar.errors import RecordError
from d2lpar.records import kinds
from d2lpar.records.kinds import (
    ArmSample,
    BenchmarkHeader,
    FrameRecord,
    Header,
    Run,
    group,
    timed_epochs,
)
from d2lpar.text import as_ratio, number

NOT_TIMED = "one epoch, not timed"  # why a training has no seconds per epoch
FEWEST = 4  # processes a side, below which a rank test can never say 5 %
FEWEST_ALONE = 4  # samples of a single process, whose range then says enough
MANY = 8  # samples from which quartiles say more than the range
LEVEL = 0.05  # share of equal pairs that may be told apart
# By how much medians of equal work differ at most between two processes: the seeds of
# figures/ by 1.11 on cores, 1.07 in Gluon and 1.47 from scratch on GPUs.
# Between the four processes of figures/scaling the ratio of steps on one context and on
# two differs by 1.31 in 95 % of cases: their samples are short.
FLOORS = {"cpu": 1.15, "cpu, steps": 1.3, "gpu": 1.15, "gpu, from scratch": 1.5}


@dataclass(frozen=True)
class Summary:
    """Samples of one work: median, spread and `n`, in the samples' unit; NaN for none.

    `low` and `high` bound what pictures draw: the range, from 8 samples on quartiles.
    `processes` has the median of each process that measured some of the samples;
    `floor` is the factor by which two of equal work may differ.
    """

    median: float
    low: float
    high: float
    n: int
    samples: tuple[float, ...]
    processes: tuple[float, ...]
    floor: float = FLOORS["cpu"]
    in_turn: bool = False  # samples of one process, taken in turn with another side's

    def __str__(self) -> str:
        if not self.n:
            return NOT_TIMED
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f}, n={self.n})"

    def cells(self, scale: float = 1.0) -> list[str]:
        """Three cells of a table: median, range and n, "-" for what is unknown."""
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

    def is_below(self, other: Summary) -> bool:
        """Return whether this is less than the other, by the rule of `compare`."""
        found = compare(other, self)
        return found.is_told and found.ratio > 1


NOTHING = Summary(math.nan, math.nan, math.nan, 0, (), ())


def summarize(
    samples: Sequence[float], *more_processes: Sequence[float], **how: Any
) -> Summary:
    """Summarize the samples of one process, and of more; `how` are fields of Summary.

    Raises ValueError for no samples.

    >>> found = summarize([3.0, 1.0], [2.0, 2.5])
    >>> found.median, found.low, found.high, found.n, found.processes
    (2.25, 1.0, 3.0, 4, (2.0, 2.25))
    """
    processes = [own for own in (samples, *more_processes) if len(own)]
    values = [value for own in processes for value in own]
    if not values:
        raise ValueError("summarize: there are no samples")
    ends = (25, 75) if len(values) >= MANY else (0, 100)
    low, high = numpy.percentile(values, ends)
    return Summary(
        float(median(values)),
        float(low),
        float(high),
        len(values),
        tuple(map(float, values)),
        tuple(float(median(own)) for own in processes),
        **how,
    )


def of_processes(samples: Sequence[float], **how: Any) -> Summary:
    """Summarize samples that are each of a process of its own."""
    return summarize(*([value] for value in samples), **how)


# The rule


@dataclass(frozen=True)
class Comparison:
    """How many times as long `a` takes as `b`, and whether that can be told.

    `low` and `high` are the interval that holds the ratio in 95 % of cases, or all
    ratios of samples where there are too few processes for one.
    """

    ratio: float
    low: float
    high: float
    is_told: bool
    is_alone: bool  # a single process a side: told by the floor, without a test

    def is_within(self, margin: float) -> bool:
        """Return whether both are equal but for a `margin` of 0.02: the claim "no"."""
        return not self.is_alone and 1 - margin <= self.low and self.high <= 1 + margin


def compare(a: Summary, b: Summary) -> Comparison:
    """Compare two works by the one rule that everything says "faster" by.

    With four processes a side or more, in turn: an exact two-sided rank-sum test
    (Mann and Whitney) below 5 %. With fewer: the ranges do not overlap, and the medians
    differ by more than equal work may (`floor`). Samples that one process took in turn
    must pass the test and the floor, since they share what is peculiar to it.
    """
    floor = max(a.floor, b.floor)
    sides = a.processes, b.processes
    in_one = a.in_turn and b.in_turn and min(map(len, sides)) < FEWEST
    if in_one:
        sides = a.samples, b.samples
    if min(map(len, sides)) >= FEWEST:
        ratio, low, high = ratio_interval(*sides)
        told = p_value(*sides) < LEVEL
        if in_one:
            told = told and not 1 / floor <= ratio <= floor
        return Comparison(ratio, low, high, told, False)
    if min(a.n, b.n) < 1 or not b.median > 0:
        return Comparison(math.nan, 0.0, math.inf, False, True)
    ratio, apart = a.median / b.median, a.least > b.most or b.least > a.most
    far = not 1 / floor <= ratio <= floor
    told = apart and far and min(a.n, b.n) >= FEWEST_ALONE
    low, high = a.least / b.most, a.most / b.least
    return Comparison(ratio, low, high, told, True)


def p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the exact two-sided p of the rank-sum test, ties at their mean rank.

    It is the share of all ways to deal the ranks out whose sum is as far from the mean.
    """
    ranks = _ranks([*a, *b])
    sums, shares = _sums_of(tuple(ranks), len(a))
    mean = len(a) * (len(ranks) + 1) / 2
    far = abs(ranks[: len(a)].sum() - mean)
    return float(shares[abs(sums - mean) >= far - 1e-9].sum())


def _ranks(values: Sequence[float]) -> numpy.ndarray:
    """Return each value's rank from 1, the mean rank for equal values."""
    array = numpy.asarray(values)
    below = (array[:, None] > array[None]).sum(axis=1)
    equal = (array[:, None] == array[None]).sum(axis=1)
    return below + (equal + 1) / 2


@lru_cache(maxsize=64)
def _sums_of(ranks: tuple[float, ...], size: int) -> tuple[numpy.ndarray, ...]:
    """Return the possible sums of `size` of the ranks, and the share of each."""
    doubled = [round(2 * rank) for rank in ranks]  # whole numbers, also of ties
    ways = numpy.zeros((size + 1, sum(doubled) + 1))  # by how many ranks, and their sum
    ways[0, 0] = 1
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    (sums,) = ways[size].nonzero()
    return sums / 2, ways[size, sums] / ways[size].sum()


def ratio_interval(
    a: Sequence[float], b: Sequence[float]
) -> tuple[float, float, float]:
    """Return the median of all ratios a / b, and their 95 % interval.

    It is the interval of Hodges and Lehmann: its ends are those ratios which the rank
    test would just not refuse.
    """
    ratios = numpy.sort(numpy.divide.outer(numpy.asarray(a), numpy.asarray(b)).ravel())
    k = _pairs_outside(len(a), len(b))
    return float(numpy.median(ratios)), float(ratios[k - 1]), float(ratios[-k])


@lru_cache
def _pairs_outside(n: int, m: int) -> int:
    """Return which of the sorted n m ratios, from either end, bounds the interval."""
    ranks = tuple(float(rank) for rank in range(1, n + m + 1))
    sums, shares = _sums_of(ranks, n)
    u = sums - n * (n + 1) / 2  # how many pairs are below
    return sum(bool(shares[u <= k].sum() <= LEVEL / 2) for k in range(n * m // 2))


def quartiles_apart(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether the quartiles do not overlap: a rule of thumb, not d2lpar's."""
    (a1, a3), (b1, b3) = (numpy.percentile(side, (25, 75)) for side in (a, b))
    return bool(a3 < b1 or b3 < a1)


def false_alarms(
    samples: Sequence[float], n: int, trials: int = 2_000, seed: int = 0
) -> dict[str, float]:
    """Return how often rules tell two samples of equal work apart, by the rule.

    Both samples have `n` values, drawn from `samples` with replacement.
    """
    rng, found = numpy.random.default_rng(seed), {"quartiles": 0, "rank test": 0}
    for _ in range(trials):
        a, b = rng.choice(samples, (2, n))
        found["quartiles"] += quartiles_apart(a, b)
        found["rank test"] += n >= FEWEST and p_value(a, b) < LEVEL
    return {name: count / trials for name, count in found.items()}


def ratio(a: Summary, b: Summary) -> float | None:
    """Return how many times as long `a` takes as `b`, or None if it cannot be told.

    >>> slow, fast = summarize([4.0, 4.2, 4.1, 4]), summarize([2.0, 2.1, 2.2, 2])
    >>> round(ratio(slow, fast), 2), ratio(slow, slow)
    (1.98, None)
    """
    found = compare(a, b)
    return found.ratio if found.is_told else None


def in_cell(found: float | None) -> str:
    """Return a ratio as tables have it, "-" where there is none."""
    return "-" if found is None else f"{found:.2f}"


def phrase(
    this: str,
    mine: Summary,
    other: str,
    others: Summary,
    repeat: str = "",
    unit: str = "s",
) -> str:
    """Say how fast `this` is beside the `other`, which took `mine` and `others`.

    `repeat` names what may tell where this cannot be told; `unit` is the samples'.

    >>> slow, fast = summarize([4.0, 4.2, 4.1, 4]), summarize([2.0, 2.1, 2.2, 2])
    >>> phrase("b", fast, "a", slow)
    'b is about 2.0 times as fast as a (one run each; equal runs differ by up to 1.15 times)'
    >>> slow, fast = of_processes([4, 4.2, 4.1, 4]), of_processes([2, 2.1, 2.2, 2])
    >>> phrase("b", fast, "a", slow)
    'b is 2.0 times as fast as a (1.8 to 2.1)'
    >>> phrase("b", slow, "a", slow)
    'whether b is as fast as a cannot be told: 4.05 (4.00-4.20) and 4.05 (4.00-4.20) s'
    """  # noqa: E501
    if min(mine.n, others.n) < 1:
        return f"whether {this} is as fast as {other} cannot be told ({NOT_TIMED})"
    found = compare(others, mine)
    if not found.is_told:
        values = " and ".join(map(_with_range, (mine, others)))
        advice = f"; {repeat} may tell" if repeat and found.is_alone else ""
        unknown = f"whether {this} is as fast as {other} cannot be told"
        return f"{unknown}: {values} {unit}{advice}"
    ends = found.low, found.high
    ratio, verb, adjective = found.ratio, "is", "fast"
    if ratio < 1:
        ratio, verb, adjective = 1 / ratio, "takes", "long"
        ends = 1 / found.high, 1 / found.low
    about, why = "", f" ({' to '.join(map(as_ratio, ends))})"
    if found.is_alone:
        floor = max(mine.floor, others.floor)
        about = "about "
        why = f" (one run each; equal runs differ by up to {floor:g} times)"
    return (
        f"{this} {verb} {about}{as_ratio(ratio)} times as {adjective} as {other}{why}"
    )


def in_short(mine: Summary, others: Summary) -> str:
    """Return how fast one is beside the other in few words: "1.8 times as fast"."""
    found = compare(others, mine)
    if not found.is_told:
        return "which is faster cannot be told" + " from single runs" * found.is_alone
    about, adjective = "about " * found.is_alone, "fast" if found.ratio >= 1 else "long"
    return f"{about}{as_ratio(max(found.ratio, 1 / found.ratio))} times as {adjective}"


def _with_range(found: Summary) -> str:
    """Return a median and its range as text: "1.97 (1.83-2.19)"."""
    middle, spread, _ = found.cells()
    return middle if spread == "-" else f"{middle} ({spread})"


def floor_of(header: Header | BenchmarkHeader) -> float:
    """Return by which factor two runs of equal work may differ on a machine."""
    if isinstance(header, BenchmarkHeader):
        return FLOORS["gpu, from scratch" if header.on_gpus else "cpu"]
    if header.device_kind == "cpu":
        return FLOORS["cpu, steps" if header.chapter == "scaling" else "cpu"]
    from_scratch = header.chapter == "multiple_gpus" or header.variant == "scratch"
    return FLOORS["gpu, from scratch" if from_scratch else "gpu"]


def seconds_per_epoch(*runs: Run) -> Summary:
    """Training seconds per epoch of all runs, without warm-ups: n is 0 for none."""
    for run in runs:
        check(run)
    return of_timed_epochs(runs, lambda epoch: epoch.seconds)


def of_timed_epochs(runs: Sequence[Run], value: Callable) -> Summary:
    """Summarize a value of the epochs that are no warm-ups: n is 0 for none.

    Each repeat of each run was measured by a process of its own.
    """
    processes = [
        list(map(value, epochs))
        for run in runs
        for epochs in group(timed_epochs(run), lambda epoch: epoch.repeat).values()
    ]
    if not processes:
        return NOTHING
    return summarize(*processes, floor=floor_of(runs[0].header))


def accuracy_by_epoch(run: Run) -> dict[int, list[float]]:
    """Return test accuracies in [0, 1] by ascending epoch, one per repeat."""
    check(run)
    epochs = sorted(run.lines_of(kinds.EpochRecord), key=lambda e: e.epoch)
    return group(epochs, lambda e: e.epoch, lambda e: e.test_acc)


def quality_by_epoch(run: Run, measure: str = "frechet") -> dict[int, list[float]]:
    """Return a measure of a GAN's faces by epoch, one per repeat."""
    frames = sorted(run.lines_of(FrameRecord), key=lambda f: f.epoch)
    return group(frames, lambda f: f.epoch, lambda f: getattr(f, measure))


class ArmTimes(NamedTuple):
    """What one arm of a benchmark measured of one work, without the warm-ups."""

    name: str
    work: str
    is_peer: bool
    samples: list[ArmSample]
    why_not: str  # why there are no samples
    floor: float

    @property
    def seconds(self) -> list[float]:
        return [sample.seconds for sample in self.samples]

    @property
    def summary(self) -> Summary:
        """Return the summary of the seconds; each round had a process of its own."""
        rounds = group(self.samples, lambda x: x.round, lambda x: x.seconds)
        return summarize(*rounds.values(), floor=self.floor)


def arm_times(run: Run) -> list[ArmTimes]:
    """Return the arms of a benchmark's record, work by work, in the order they ran."""
    arms = []
    for work, same in group(run.lines, lambda line: line.work).items():
        for name, lines in group(same, lambda line: line.arm).items():
            samples = [x for x in lines if isinstance(x, ArmSample) and not x.warm_up]
            absent = [x.why_not for x in lines if isinstance(x, kinds.ArmAbsent)]
            why_not = "" if samples else [*absent, "only warmed up"][0]
            is_peer = name in run.header.peers
            floor = floor_of(run.header)
            arms.append(ArmTimes(name, work, is_peer, samples, why_not, floor))
    return arms


def is_gan(run: Run) -> bool:
    """Return whether the run trained a GAN, which has no test accuracy."""
    return bool(run.lines_of(kinds.GanEpochRecord))


def final_accuracy(run: Run) -> float:
    """Return the repeats' median test accuracy after the last epoch, in [0, 1]."""
    return median(list(accuracy_by_epoch(run).values())[-1])


def final_quality(run: Run, measure: str = "frechet") -> float:
    """Return a measure of a GAN's last faces: the repeats' median; NaN without any."""
    by_epoch = list(quality_by_epoch(run, measure).values())
    return median(by_epoch[-1]) if by_epoch else math.nan


def references(run: Run) -> dict[str, dict[str, float]]:
    """Return the quality of reference sets, by name; {} in records without them."""
    frames = run.lines_of(FrameRecord)
    return frames[0].references if frames else {}


def check(run: Run) -> None:
    """Raise :class:`RecordError` for a run without epochs."""
    if not run.epochs:
        raise RecordError(f"{run.path or 'a run'}: holds no epochs; see d2lpar report")
