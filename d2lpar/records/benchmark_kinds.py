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

    What else the arm reports (`epoch`, `test_acc`, `samples_per_sec`) is in `extra`.
    """

    kind: ClassVar[str] = "arm-sample"
    drawn_by: ClassVar[str] = "bars"

    arm: str
    round: int
    seconds: float
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class ArmAbsent(Line):
    """An arm that could not run in a round, and why, in one clause."""

    kind: ClassVar[str] = "arm-absent"
    drawn_by: ClassVar[str] = "bars"

    arm: str
    round: int
    why_not: str
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class KernelSamples(Line):
    """Seconds of `work` ("x2" or "update") done in one `way`, one value per repeat."""

    kind: ClassVar[str] = "kernel-samples"
    drawn_by: ClassVar[str] = "kernel_times"

    devices: int
    threads: int  # of each context
    work: str
    way: str
    round: int
    seconds: list[float]
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class SolverSamples(Line):
    """Seconds to solve least squares, one value per repeat.

    `devices` is 0 for a library that has no contexts. `why_not` is empty, or says why
    the arm did not run; then `seconds` is empty.
    """

    kind: ClassVar[str] = "solver-samples"
    drawn_by: ClassVar[str] = "solver_times"

    arm: str
    devices: int
    rows: int
    columns: int
    round: int
    seconds: list[float] = field(default_factory=list)
    why_not: str = ""
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointSeconds(Line):
    """Seconds to write a checkpoint of LeNet, one value per repeat."""

    kind: ClassVar[str] = "checkpoint"

    seconds: list[float]
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class RestartSeconds(Line):
    """What it costs that a worker is killed and the run restarts, in seconds.

    `cost` is what remains of `killed` - `undisturbed` after the steps that were `lost`.
    """

    kind: ClassVar[str] = "restart"

    undisturbed: float
    lost: float
    killed: float
    cost: float
    extra: dict = field(default_factory=dict)
