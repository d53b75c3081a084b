"""`d2lpar table RECORDS`: what records timed, as rows for a paper or for pandas."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records import files, labels
from d2lpar.records.comparison import (
    NOTHING,
    Comparison,
    Summary,
    accuracy_by_epoch,
    arm_times,
    compare,
    floor_of,
    seconds_per_epoch,
    summarize,
)
from d2lpar.records.kinds import (
    BenchmarkHeader,
    EpochRecord,
    PointRecord,
    Run,
    StepRecord,
    TimingRecord,
)
from d2lpar.text import number

COUNT = re.compile(r"\d+ (GPU|context|worker)s?")  # of devices, in an arm's name
LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


@dataclass(frozen=True)
class Row:
    """What a record timed of one work on some devices, and beside the fewest of them.

    The numbers are of processes, each by its median; of a single process they are of
    its samples. Seconds are those of `unit`.
    """

    record: str
    work: str
    devices: int
    unit: str
    seconds: Summary
    accuracies: Sequence[float]  # after the last epoch, one per training
    found: Comparison | None  # None for the row that others are compared with
    failed: str = ""  # why its seconds say nothing

    @property
    def spread(self) -> Sequence[float]:
        """Return the numbers whose median and range the row has."""
        several = len(self.seconds.processes) > 1
        return self.seconds.processes if several else self.seconds.samples

    @property
    def verdict(self) -> str:
        """Return "faster", "slower" or "not told" by the one rule, or what `failed`.

        It is "" for the row that others are compared with.
        """
        if self.failed or self.found is None:
            return self.failed
        if not self.found.is_told:
            return "not told"
        return "faster" if self.found.ratio > 1 else "slower"

    def values(self) -> dict[str, object]:
        """Return all numbers by their names, None for what is not known."""
        told = self.found if self.verdict in ("faster", "slower") else None
        ends = self.accuracies
        return {
            "record": self.record,
            "work": self.work,
            "devices": self.devices,
            "unit": self.unit,
            "median": median(self.spread) if self.spread else None,
            "least": min(self.spread, default=None),
            "most": max(self.spread, default=None),
            "processes": len(self.seconds.processes),
            "samples": self.seconds.n,
            "verdict": self.verdict,
            "times_as_fast": told.ratio if told else None,
            "times_as_fast_low": told.low if told else None,
            "times_as_fast_high": told.high if told else None,
            "test_accuracy": median(ends) if ends else None,
            "test_accuracy_least": min(ends, default=None),
            "test_accuracy_most": max(ends, default=None),
        }

    def cells(self) -> list[str]:
        """Return what a reader wants of the row, as text in the order of `READ`."""
        values = self.values()
        beside = self.verdict or "-"
        if told := values["times_as_fast"]:
            about = "about " if self.found and self.found.is_alone else ""
            beside = f"{about}{told:.2f} times as fast"
        return [
            self.work,
            str(self.devices),
            self.unit,
            _with_range(self.spread, number),
            str(len(self.seconds.processes)),
            str(self.seconds.n),
            beside,
            _with_range(self.accuracies, "{:.3f}".format),
        ]


READ = ["work", "devices", "unit", "median (range)", "processes", "samples", "verdict"]
READ += ["test accuracy"]


def _with_range(values: Sequence[float], in_words: Callable[[float], str]) -> str:
    if not values:
        return "-"
    middle, *ends = map(in_words, (median(values), min(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({'-'.join(ends)})"


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return a row per work and device count of each record, in their order.

    A work of one sweep is compared with that on its fewest devices. Raises
    :class:`RecordError` for a record without times.
    """
    found: list[tuple[tuple, Run, str, int, Summary]] = []
    for run in runs:
        timed = list(times(run))
        if not timed:
            raise RecordError(f"{labels.where(run)}: holds no times of its samples")
        for work, devices, seconds in timed:
            found.append(((files.sweep_of(run), work), run, work, devices, seconds))
    base: dict[tuple, tuple[int, Summary]] = {}
    for key, _, _, devices, seconds in sorted(found, key=lambda row: row[3]):
        base.setdefault(key, (devices, seconds))
    table = []
    for key, run, work, devices, seconds in found:
        fewest, others = base[key]
        learns = bool(run.lines_of(EpochRecord))  # and not a GAN
        by_epoch = list(accuracy_by_epoch(run).values()) if learns else []
        table.append(Row(
            labels.where(run), _named(run, work), devices, _unit(run), seconds,
            by_epoch[-1] if by_epoch else [],
            None if devices == fewest else compare(others, seconds), _failed(run),
        ))  # fmt: skip
    return table


def _failed(run: Run) -> str:
    """Return "not converged" for a solve that ends above those beside it, or ""."""
    if not run.lines_of(PointRecord):
        return ""
    from d2lpar.least_squares.result import FAILED, reached

    solves = [run]
    for path in files.finished_in(run.path.parent) if run.path else []:
        with suppress(RecordError, OSError):  # a stranger's file
            solves.append(files.read(path))
    same = [solve for solve in solves if files.sweep_of(solve) == files.sweep_of(run)]
    return "" if reached(same)[run.header.variant] else FAILED


def _named(run: Run, work: str) -> str:
    """Return a row's work with the recipe of its run."""
    if isinstance(run.header, BenchmarkHeader):
        return work
    return f"{work}, {files.recipe_of(run.header)}"


def _unit(run: Run) -> str:
    """Return what the seconds of a record are of."""
    if isinstance(run.header, BenchmarkHeader):
        return f"s for {run.header.work}"
    return "s/step" if run.lines_of(StepRecord) else "s/epoch" if run.epochs else "s"


def times(run: Run) -> Iterator[tuple[str, int, Summary]]:
    """Yield (form, number of devices, seconds) of whatever a record timed."""
    if isinstance(run.header, BenchmarkHeader):
        for arm in arm_times(run):
            words = f"{arm.name}, {arm.work}".removesuffix(", ").split(", ")
            counts = [word for word in words if COUNT.fullmatch(word)]
            row = ", ".join(word for word in words if word not in counts)
            n = int(counts[0].split()[0]) if counts else 1
            name = row or run.header.benchmark
            yield name, n, arm.summary if arm.samples else NOTHING
    elif run.lines_of(StepRecord):
        from d2lpar.scaling.model import studies
        from d2lpar.scaling.result import name_of

        for study in studies([run]):
            for n, batch in study.records:
                yield f"{name_of(study)}, batch {batch:,}", n, study.seconds(n, batch)
    elif run.lines_of(PointRecord):
        from d2lpar.least_squares.result import seconds_of

        yield run.header.variant, run.header.num_devices, seconds_of(run)
    elif run.lines_of(TimingRecord):
        for line in run.lines_of(TimingRecord):
            name = f"{line.operation}, {line.library}, {line.form}"
            floor = floor_of(run.header)
            yield name, len(line.devices), summarize(line.seconds, floor=floor)
    elif run.epochs:
        graphs = run.header.gpu_build.get("cuda_graphs")
        how = {None: "", True: ", CUDA graphs", False: ", no graph"}[graphs]
        yield run.header.chapter + how, run.header.num_devices, seconds_per_epoch(run)


# As text


def as_csv(table: Sequence[Row]) -> str:
    """Return all numbers, comma-separated; empty for what is not known."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(table[0].values()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values() for row in table)
    return file.getvalue().rstrip("\n")


def as_markdown(table: Sequence[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [READ, ["---"] * len(READ), *(row.cells() for row in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_latex(table: Sequence[Row]) -> str:
    """Return the rows as a tabular of LaTeX, which needs no package."""

    def line(cells: Sequence[str]) -> str:
        escaped = ("".join(LATEX.get(c, c) for c in cell) for cell in cells)
        return " & ".join(escaped) + r" \\"

    body = [line(row.cells()) for row in table]
    return "\n".join([
        r"\begin{tabular}{lrlrrrll}", r"\hline", line(READ), r"\hline", *body,
        r"\hline", r"\end{tabular}",
    ])  # fmt: skip


FORMATS = {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}
