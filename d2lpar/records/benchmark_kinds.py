"""What benchmarks record: the samples of arms that ran in fresh processes in turn.

All of them have a :class:`~d2lpar.records.headers.BenchmarkHeader`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from d2lpar.records.line import Line


@dataclass(frozen=True)
class ArmSample(Line):
    """One timed unit of an arm's work, in the order in which its process printed them.

    `work` is what the arm did, where a benchmark's arms do several things: only arms
    with the same work are compared. A `warm_up` does not count. What else the arm
    reports (`epoch`, `test_acc`, `samples_per_sec`) is in `extra`.
    """

    kind: ClassVar[str] = "arm-sample"
    drawn_by: ClassVar[str] = "bars"

    arm: str
    round: int
    seconds: float
    work: str = ""
    warm_up: bool = False
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class ArmAbsent(Line):
    """An arm that could not run in a round, and why, in one clause."""

    kind: ClassVar[str] = "arm-absent"
    drawn_by: ClassVar[str] = "bars"

    arm: str
    round: int
    why_not: str
    work: str = ""
    extra: dict = field(default_factory=dict)
