"""When does a second device pay: a study's records and its bracket.

With B samples on N devices, for which Python issues work in turn (Chapter 5)::

    max(N * issue, one(B / N)) <= step <= N * issue + one(B / N) + (N - 1) * exchange
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from d2lpar.records.kinds import PARTS, AllReduceRecord, Run, StepRecord, group
from d2lpar.records.rule import Summary, in_turns, of_turns, summarize


def break_even(speedup_by_batch: Mapping[int, float]) -> float | None:
    """Return the batch size above which more devices are faster than one.

    Interpolated on a logarithmic scale. The smallest batch if all are faster; None if
    the largest is slower.

    >>> break_even({1: 0.5, 4: 1.5, 16: 1.9})
    2.0
    """
    points = sorted(speedup_by_batch.items(), reverse=True)
    if points[0][1] < 1:
        return None
    for (high, above), (low, below) in zip(points, points[1:]):
        if below < 1:
            return float(low * (high / low) ** ((1 - below) / (above - below)))
    return float(points[-1][0])


@dataclass(frozen=True)
class Study:
    """One implementation (`name`): its runs, and its steps by (devices, batch)."""

    name: str
    runs: Sequence[Run]

    @cached_property
    def records(self) -> dict[tuple[int, int], dict[tuple[int, int], StepRecord]]:
        """Return each step's record of every process, a repeat of a run."""
        found: dict = {}
        for k, run in enumerate(self.runs):
            for line in run.lines_of(StepRecord):
                count = line.num_devices or run.header.num_devices
                step = found.setdefault((count, line.global_batch_size), {})
                step[k, line.repeat] = line
        return dict(sorted(found.items()))

    @property
    def counts(self) -> list[int]:
        """Return the measured device counts, ascending."""
        return sorted({n for n, _ in self.records})

    @property
    def batches(self) -> list[int]:
        """Return the measured global batches, ascending."""
        return sorted({batch for _, batch in self.records})

    def seconds(self, num_devices: int, global_batch_size: int) -> Summary:
        """Summarize the samples of a measured step, in turn if one run measured all.

        Each process is a turn; if there is only one, each sample.
        """
        lines = self.records[num_devices, global_batch_size]
        turns = {k: line.seconds for k, line in lines.items() if line.num_devices}
        if not turns:
            return summarize([s for line in lines.values() for s in line.seconds])
        if len({process for step in self.records.values() for process in step}) == 1:
            return of_turns(*turns.values())
        return in_turns(turns)

    @cached_property
    def steps(self) -> dict[tuple[int, int], float]:
        """Return the median seconds of a step."""
        return {key: self.seconds(*key).median for key in self.records}

    @cached_property
    def exchange(self) -> float | None:
        """Return median seconds of the all-reduce, per device beyond the first."""
        own = [(n, line.seconds) for n, line in _sums(self.runs) if line.in_steps]
        fewest = min((n for n, _ in own), default=0)
        seconds = [s for n, of_one in own if n == fewest for s in of_one]
        return median(seconds) / (fewest - 1) if seconds else None

    def bracket(self, num_devices: int) -> dict[int, tuple[float, float]]:
        """Return bounds in seconds of a step by global batch; {} where not measured."""
        bounds = {}
        for (n, batch), device in self.steps.items():
            lines = self.records[n, batch].values()
            issue = [s for line in lines for s in line.issue_seconds]
            if n == 1 and issue and self.exchange is not None:
                python = num_devices * median(issue)
                high = python + device + (num_devices - 1) * self.exchange
                bounds[num_devices * batch] = max(python, device), high
        return bounds

    @cached_property
    def parts(self) -> dict[tuple[int, int], dict[str, float]]:
        """Return median seconds of a step's parts by (devices, batch)."""
        measured = {}
        for key in sorted(self.records, key=lambda key: key[::-1]):
            found = [line.parts for line in self.records[key].values() if line.parts]
            if found:
                measured[key] = {name: median(p[name] for p in found) for name in PARTS}
        return measured


def studies(runs: Sequence[Run]) -> list[Study]:
    """Return one study per variant, in the order of the runs."""
    by_variant = group(runs, lambda run: run.header.variant)
    return [
        Study(same[0].header.settings.get("implementation", variant), same)
        for variant, same in by_variant.items()
    ]


def all_reduces(runs: Sequence[Run]) -> dict[tuple[int, int, int], dict[str, Summary]]:
    """Return seconds by (devices, arrays, bytes), then by variant; n 0: refused."""
    found = {}
    by_size = group(_sums(runs), lambda s: (s[0], s[1].num_arrays, s[1].num_bytes))
    for size, lines in by_size.items():
        by_variant = group(lines, lambda s: s[1].variant, lambda s: s[1].seconds)
        found[size] = {
            variant: in_turns(dict(enumerate(seconds)))
            for variant, seconds in by_variant.items()
        }
    return found


def _sums(runs: Sequence[Run]) -> list[tuple[int, AllReduceRecord]]:
    """Return all records of all-reduces, each with its number of devices."""
    return [
        (line.num_devices or run.header.num_devices, line)
        for run in runs
        for line in run.lines_of(AllReduceRecord)
    ]
