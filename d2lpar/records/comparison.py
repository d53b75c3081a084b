"""Medians, quartiles, accuracies, and what is faster, if the quartiles tell it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy

from d2lpar.errors import RecordError
from d2lpar.records import kinds
from d2lpar.records.kinds import ArmSample, FrameRecord, Run, group, timed_epochs
from d2lpar.text import as_ratio, number

FEWEST = 3  # samples that have quartiles
NOT_TIMED = "one epoch, not timed"  # why a training has no seconds per epoch


@dataclass(frozen=True)
class Summary:
    """Median and quartiles of `n` samples, in the samples' unit; NaN for none."""

    median: float
    q1: float
    q3: float
    n: int

    def __str__(self) -> str:
        if not self.n:
            return NOT_TIMED
        return f"{self.median:.2f} ({self.q1:.2f}-{self.q3:.2f}, n={self.n})"

    def overlaps(self, other: Summary) -> bool:
        """Return whether the quartiles overlap: then neither is less than the other."""
        return self.q1 <= other.q3 and other.q1 <= self.q3

    def is_below(self, other: Summary) -> bool:
        """Return whether this is less than the other, as far as samples can tell."""
        return min(self.n, other.n) >= FEWEST and self.q3 < other.q1

    def cells(self, scale: float = 1.0) -> list[str]:
        """Three cells of a table: median, quartiles and n, "-" for what is unknown."""
        if not self.n:
            return ["-", "-", "0"]
        quartiles = f"{number(scale * self.q1)}-{number(scale * self.q3)}"
        middle = number(scale * self.median)
        return [middle, quartiles if self.n > 1 else "-", str(self.n)]


def summarize(samples: Sequence[float]) -> Summary:
    """Median, lower and upper quartile, n. Raises ValueError for no samples.

    >>> summarize([3.0, 1.0, 2.0])
    Summary(median=2.0, q1=1.5, q3=2.5, n=3)
    """
    if len(samples) == 0:
        raise ValueError("summarize: there are no samples")
    q1, median, q3 = numpy.percentile(samples, (25, 50, 75))
    return Summary(float(median), float(q1), float(q3), len(samples))


def ratio(a: Summary, b: Summary) -> float | None:
    """Return the median of `a` over that of `b`, or None if they cannot be told apart.

    >>> slow, fast = summarize([4.0, 4.2, 4.1]), summarize([2.0, 2.1, 2.2])
    >>> round(ratio(slow, fast), 2), ratio(slow, slow)
    (1.95, None)
    """
    differ = a.is_below(b) or b.is_below(a)
    return a.median / b.median if differ and b.median else None


def ratio_of_pairs(ratios: Sequence[float]) -> float | None:
    """Return the median of ratios of neighbouring samples, or None if it may be 1."""
    found = summarize(ratios)
    may_be_1 = found.n < FEWEST or found.q1 <= 1 <= found.q3
    return None if may_be_1 else found.median


def in_cell(found: float | None) -> str:
    """Return a ratio as tables have it, "-" where there is none."""
    return "-" if found is None else f"{found:.2f}"


def phrase(this: str, mine: Summary, other: str, others: Summary) -> str:
    """Say how fast `this` is beside the `other`, which took `mine` and `others`.

    >>> slow, fast = summarize([4.0, 4.2, 4.1]), summarize([2.0, 2.1, 2.2])
    >>> phrase("b", fast, "a", slow)
    'b is 2.0 times as fast as a'
    >>> phrase("b", slow, "a", slow)
    'the speeds of b and a cannot be told apart (the quartiles overlap)'
    """
    if min(mine.n, others.n) < FEWEST:
        why = "" if mine.n and others.n else f" ({NOT_TIMED})"
        return f"too few samples to tell whether {this} is as fast as {other}{why}"
    speedup = ratio(others, mine)
    if speedup is None:
        return (
            f"the speeds of {this} and {other} cannot be told apart (the quartiles "
            "overlap)"
        )
    if speedup > 1:
        return f"{this} is {as_ratio(speedup)} times as fast as {other}"
    return f"{this} takes {as_ratio(1 / speedup)} times as long as {other}"


def seconds_per_epoch(*runs: Run) -> Summary:
    """Training seconds per epoch of all runs, without warm-ups: n is 0 for none."""
    for run in runs:
        check(run)
    return of_timed_epochs(runs, lambda epoch: epoch.seconds)


def of_timed_epochs(runs: Sequence[Run], value: Callable) -> Summary:
    """Summarize a value of the epochs that are no warm-ups: n is 0 for none."""
    values = [value(epoch) for run in runs for epoch in timed_epochs(run)]
    return summarize(values) if values else Summary(math.nan, math.nan, math.nan, 0)


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

    @property
    def seconds(self) -> list[float]:
        return [sample.seconds for sample in self.samples]


def arm_times(run: Run) -> list[ArmTimes]:
    """Return the arms of a benchmark's record, work by work, in the order they ran."""
    arms = []
    for work, same in group(run.lines, lambda line: line.work).items():
        for name, lines in group(same, lambda line: line.arm).items():
            samples = [x for x in lines if isinstance(x, ArmSample) and not x.warm_up]
            absent = [x.why_not for x in lines if isinstance(x, kinds.ArmAbsent)]
            why_not = "" if samples else [*absent, "only warmed up"][0]
            is_peer = name in run.header.peers
            arms.append(ArmTimes(name, work, is_peer, samples, why_not))
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
        raise RecordError(f"{run.path or 'a run'}: holds no epochs")
