"""Trainings in numbers: seconds per epoch, speedups, accuracies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records.kinds import (
    FrameRecord,
    GanEpochRecord,
    Run,
    group,
    timed_epochs,
)
from d2lpar.records.summary import Summary, summarize


@dataclass(frozen=True)
class Scaling:
    """A device count of a sweep against the smallest one; `ideal` is their ratio."""

    num_devices: int
    ideal: float
    speedup: float
    spread: tuple[float, float]

    @property
    def efficiency(self) -> float:
        return self.speedup / self.ideal

    @property
    def efficiency_spread(self) -> tuple[float, float]:
        low, high = self.spread
        return low / self.ideal, high / self.ideal


def scaling(runs: Sequence[Run]) -> list[Scaling]:
    """Speedups over the smallest device count, by ascending count, on the same data."""
    first, *others = sorted(runs, key=lambda run: run.header.num_devices)
    smallest, base = first.header.num_devices, seconds_per_epoch(first)
    points = [Scaling(smallest, 1.0, 1.0, (1.0, 1.0))]
    for run in others:
        n = run.header.num_devices
        points.append(Scaling(n, n / smallest, *speedup(base, seconds_per_epoch(run))))
    return points


def seconds_per_epoch(run: Run) -> Summary:
    """Training seconds per epoch of all repeats, without each one's warm-up epoch."""
    check(run)
    return summarize([e.seconds for e in timed_epochs(run)])


def accuracy_by_epoch(run: Run) -> dict[int, list[float]]:
    """Test accuracies in [0, 1] by ascending epoch, one per repeat."""
    check(run)
    epochs = sorted(run.epochs, key=lambda e: e.epoch)
    return group(epochs, lambda e: e.epoch, lambda e: e.test_acc)


def quality_by_epoch(run: Run) -> dict[int, list[float]]:
    """A GAN's distances to real faces by the epoch of the frame, one per repeat."""
    frames = sorted(run.of(FrameRecord), key=lambda f: f.epoch)
    return group(frames, lambda f: f.epoch, lambda f: f.quality)


def is_gan(run: Run) -> bool:
    """Whether the run trained a GAN, which has no test accuracy."""
    return bool(run.of(GanEpochRecord))


def final_accuracy(run: Run) -> float:
    """Test accuracy after the last epoch, in [0, 1]: the median of the repeats."""
    return median(list(accuracy_by_epoch(run).values())[-1])


def final_quality(run: Run) -> float:
    """A GAN's last distance to real faces, median of the repeats; NaN for no frames."""
    by_epoch = list(quality_by_epoch(run).values())
    return median(by_epoch[-1]) if by_epoch else math.nan


def check(run: Run) -> None:
    """Raise :class:`RecordError` for a run without epochs."""
    if not run.epochs:
        raise RecordError(f"{run.path or 'a run'}: holds no epochs")


def speedup(base: Summary, other: Summary) -> tuple[float, tuple[float, float]]:
    """Of the medians; lowest and highest while both times stay within quartiles."""
    spread = base.q1 / other.q3, base.q3 / other.q1
    return base.median / other.median, spread
