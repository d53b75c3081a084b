"""What the arms of a benchmark measured, read from its record."""

from __future__ import annotations

from typing import NamedTuple

from d2lpar.records.kinds import ArmAbsent, ArmSample, Run, group
from d2lpar.records.rule import Summary, in_turns


class ArmTimes(NamedTuple):
    """What one arm measured of one work, without the warm-ups."""

    name: str
    work: str
    is_peer: bool
    samples: list[ArmSample]
    summary: Summary  # of the seconds; a round, in new processes, is a turn
    why_not: str  # why there are no samples

    @property
    def seconds(self) -> list[float]:
        return [sample.seconds for sample in self.samples]


def arm_times(run: Run) -> list[ArmTimes]:
    """Return the arms of a benchmark's record, work by work, in the order they ran."""
    arms, date = [], run.header.date
    for work, same in group(run.lines, lambda line: line.work).items():
        for name, lines in group(same, lambda line: line.arm).items():
            samples = [x for x in lines if isinstance(x, ArmSample) and not x.warm_up]
            turns = group(samples, lambda x: (date, x.round), lambda x: x.seconds)
            absent = [x.why_not for x in lines if isinstance(x, ArmAbsent)]
            why_not = "" if samples else [*absent, "only warmed up"][0]
            is_peer = name in run.header.peers
            arms.append(
                ArmTimes(name, work, is_peer, samples, in_turns(turns), why_not)
            )
    return arms
