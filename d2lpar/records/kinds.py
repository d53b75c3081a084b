"""The list of all kinds of lines in record files, and a record as it is read.

A new kind is a dataclass in a module of this room, and its name in :data:`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2lpar.records.benchmark_kinds import ArmAbsent, ArmSample, BenchmarkHeader
from d2lpar.records.line import Line
from d2lpar.records.run_kinds import (
    EpochRecord,
    FrameRecord,
    GanEpochRecord,
    Header,
    PointRecord,
    Sample,
    timed,
)
from d2lpar.records.study_kinds import INT8 as INT8
from d2lpar.records.study_kinds import PARTS as PARTS
from d2lpar.records.study_kinds import PRECISIONS as PRECISIONS
from d2lpar.records.study_kinds import (
    AllReduceRecord,
    PrecisionRecord,
    ScaledEpoch,
    StepRecord,
    TimingRecord,
)

# Where a record holds several kinds, the first of them here draws and sums it up.
KINDS: tuple[type[Line], ...] = (
    Header,
    BenchmarkHeader,
    TimingRecord,
    StepRecord,
    PointRecord,
    PrecisionRecord,
    GanEpochRecord,
    EpochRecord,
    ArmSample,
    ArmAbsent,
    AllReduceRecord,
    ScaledEpoch,
    FrameRecord,
    Sample,
)
HEADERS = (Header, BenchmarkHeader)
EPOCHS = (EpochRecord, GanEpochRecord)


@dataclass(frozen=True)
class Run:
    """A record file as read: its header and the lines after it, in the file's order."""

    header: Header | BenchmarkHeader
    lines: tuple[Line, ...]
    path: Path | None = None

    def of(self, *kinds: type) -> tuple:
        """The lines of these kinds, in the order of the file."""
        return tuple(line for line in self.lines if isinstance(line, kinds))

    @property
    def epochs(self) -> tuple[EpochRecord | GanEpochRecord, ...]:
        """The epochs of a training."""
        return self.of(*EPOCHS)

    @property
    def main_kind(self) -> type[Line] | None:
        """The kind that draws the record and sums it up; None where no line does."""
        present = {type(line) for line in self.lines}
        return next((kind for kind in KINDS if kind.drawn_by and kind in present), None)

    def summary(self) -> str:
        """The result in one clause; empty where there is none."""
        return self.main_kind.summary(group(self.lines, type)) if self.main_kind else ""


def timed_epochs(run: Run) -> list[EpochRecord | GanEpochRecord]:
    """The epochs whose time counts (:func:`~d2lpar.records.run_kinds.timed`)."""
    return timed(run.epochs)


def group(
    items: Iterable, key: Callable, value: Callable = lambda item: item
) -> dict[Any, list]:
    """Lists of the items' values by `key`, in the order in which keys first appear."""
    grouped: dict[Any, list] = {}
    for item in items:
        grouped.setdefault(key(item), []).append(value(item))
    return grouped
