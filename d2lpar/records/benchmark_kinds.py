"""What benchmarks record: a header, and the samples of arms that ran in turn."""

from __future__ import annotations

from dataclasses import dataclass, field

from d2lpar.records.line import Line


@dataclass(frozen=True)
class BenchmarkHeader(Line, kind="benchmark"):
    """The provenance of a benchmark, whose arms ran in fresh processes in turn.

    `benchmark` names the record and its pictures; `work` completes "seconds for ...".
    `peers` are the arms that are not ours. `gpus` are the models in the machine,
    `on_gpus` those that were used. `note` is what the caption says of the arms.
    """

    benchmark: str
    work: str
    command: str
    cpu_model: str
    cores: int
    versions: dict  # by library; "not installed" where it is not
    git_commit: str | None
    git_dirty: bool | None
    date: str  # ISO 8601, UTC
    peers: list[str] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    on_gpus: list[str] = field(default_factory=list)
    note: str = ""
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class ArmSample(Line, kind="arm-sample", drawn_by="bars"):
    """One timed unit of an arm's work, in the order in which its process printed them.

    `work` is what the arm did, where a benchmark's arms do several things: only arms
    with the same work are compared. A `warm_up` does not count. What else the arm
    reports (`epoch`, `test_acc`, `samples_per_sec`) is in `extra`.
    """

    arm: str
    round: int
    seconds: float
    work: str = ""
    warm_up: bool = False
    extra: dict = field(default_factory=dict)


@dataclass(frozen=True)
class ArmAbsent(Line, kind="arm-absent", drawn_by="bars"):
    """An arm that could not run in a round, and why, in one clause."""

    arm: str
    round: int
    why_not: str
    work: str = ""
    extra: dict = field(default_factory=dict)
