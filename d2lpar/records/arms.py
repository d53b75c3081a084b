"""A benchmark's arms: which of their samples count, and the table of the results."""

from __future__ import annotations

from typing import NamedTuple

from d2lpar.records.comparison import summarize
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run, group
from d2lpar.text import plain_table


class ArmTimes(NamedTuple):
    """What one arm measured of one work: the samples that count, or why none do."""

    name: str
    work: str
    is_peer: bool
    samples: list[ArmSample]
    why_not: str

    @property
    def seconds(self) -> list[float]:
        return [sample.seconds for sample in self.samples]


def arm_times(run: Run) -> list[ArmTimes]:
    """The arms of a benchmark's record, work by work, in the order they ran."""
    arms = []
    for work, same in group(run.lines, lambda line: line.work).items():
        for name, lines in group(same, lambda line: line.arm).items():
            of = group(lines, type)
            samples = [line for line in of.get(ArmSample, ()) if not line.warm_up]
            absent = [line.why_not for line in of.get(ArmAbsent, ())]
            why_not = "" if samples else [*absent, "only warmed up"][0]
            is_peer = name in run.header.peers
            arms.append(ArmTimes(name, work, is_peer, samples, why_not))
    return arms


def table(run: Run) -> str:
    """Median, quartiles and number of samples of every arm, as plain text."""
    rows, absent = [], []
    for arm in arm_times(run):
        if arm.seconds:
            s = summarize(arm.seconds)
            cells = [f"{s.median:.3g}", f"{s.q1:.3g}-{s.q3:.3g}", str(s.n)]
            rows.append([arm.work, arm.name, *cells])
        else:
            absent.append(f"{arm.name}: not measured: {arm.why_not}")
    columns = ["work", "arm", "seconds", "quartiles", "n"]
    if not any(row[0] for row in rows):
        columns, rows = columns[1:], [row[1:] for row in rows]
    return "\n".join([plain_table(columns, rows, names=len(columns) - 3), *absent])
