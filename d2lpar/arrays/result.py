"""What timings of array work found: times and rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from d2lpar.records import labels
from d2lpar.records.kinds import Run, TimingRecord, group
from d2lpar.records.result import Result, Table
from d2lpar.records.rule import Summary, summarize
from d2lpar.text import number, plural

TITLES = {
    "x2": "Every number twice",
    "sum": "A sum",
    "trig": "Sum of sin²/cos²",
    "product": "Matrix product",
}
TRANSFERS = ("host to device", "device to host", "device to device")


@dataclass(frozen=True)
class Row:
    """Hold all samples of one operation in one form.

    `where` is "1 device (2 threads)", "CPU" (the host beside GPUs) or ""; `num_devices`
    is 0 for a library of the host.
    """

    num_devices: int
    operation: str
    library: str
    form: str
    shape: tuple[int, ...]
    where: str
    num_bytes: int
    flops: int
    seconds: Summary
    naive: Summary

    @property
    def gb_per_sec(self) -> float:
        """Return the rate of all devices together; they copy at the same time."""
        together = self.num_devices if self.operation in TRANSFERS else 1
        return together * self.num_bytes / self.seconds.median / 1e9


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the runs' timings by ascending device count, repeats of a row pooled."""
    pooled: dict[tuple, list[TimingRecord]] = {}
    for run in sorted(runs, key=lambda run: run.header.num_devices):
        for x in run.lines_of(TimingRecord):
            on_host = not x.devices or x.devices[0].startswith("host")
            count = 0 if on_host else run.header.num_devices
            key = (count, x.operation, x.library, x.form, tuple(x.shape))
            pooled.setdefault(key, []).append(x)
    on_gpus = any(run.header.device_kind == "gpu" for run in runs)
    words = {0: "CPU" if on_gpus else ""}
    words |= {run.header.num_devices: labels.configuration(run.header) for run in runs}
    table = []
    for key, same in pooled.items():
        seconds = summarize([s for line in same for s in line.seconds])
        naive = summarize([s for line in same for s in line.naive_seconds])
        where, line = words[key[0]], same[0]
        table.append(Row(*key, where, line.num_bytes, line.flops, seconds, naive))
    return table


def fastest_forms(table: Sequence[Row]) -> list[Row]:
    """Return the fastest form of each operation in each library, by device count."""
    shown = [row for row in table if row.operation in TITLES]
    by_library = group(shown, lambda r: (r.operation, r.library, r.num_devices))
    return [min(same, key=lambda r: r.seconds.median) for same in by_library.values()]


def shape(row: Row) -> str:
    """Return the shape in words: "100 x 10"."""
    return " x ".join(f"{n:,}" for n in row.shape)


def result(runs: Sequence[Run]) -> Result:
    """Return the fastest form of each operation in each library, further all forms."""
    table = rows(runs)
    cells, samples = [], set()
    for row in fastest_forms(table):
        where = plural(row.num_devices, "device") if row.num_devices else "host"
        *times, n = row.seconds.cells(1e3)
        names = [row.operation, row.library, row.form, where]
        cells.append([*names, *times, number(1e3 * row.naive.median)])
        samples.add(n)
    columns = ["operation", "library", "fastest form", "", "ms", "range", "naive"]
    shown = [row for row in table if row.operation in TITLES]
    shapes = {row.operation: f"{row.operation}: {shape(row)}" for row in shown}
    note = (
        f"{', '.join(shapes.values())}; ms: by a clock that is read after the devices "
        f"have finished; naive: by one read at once; n: {' or '.join(sorted(samples))}"
    )
    answers = {}
    if ours := [row for row in shown if row.library == "MXNet"]:
        slowest = max(ours, key=lambda row: row.seconds.median)
        naive, ms = (number(1e3 * s.median) for s in (slowest.naive, slowest.seconds))
        answers["clocks"] = [
            f"A clock that does not wait reads {naive} ms for {slowest.operation}, "
            f"{slowest.form}, on {slowest.where}, which takes {ms} ms."
        ]
    return Result(Table(columns, cells, 4), note, answers, [_everything(table)])


def _everything(table: Sequence[Row]) -> Table:
    """All forms: times by both clocks, and rates."""
    columns = ["operation", "library", "form", "devices", "ms", "range", "n",
               "naive ms", "GB/s", "GFLOP/s"]  # fmt: skip
    cells = [
        [f"{row.operation} {shape(row)}", row.library, row.form,
         str(row.num_devices or "host"), *row.seconds.cells(1e3),
         number(1e3 * row.naive.median), number(row.gb_per_sec),
         number(row.flops / row.seconds.median / 1e9)]
        for row in table
    ]  # fmt: skip
    return Table(columns, cells, names=3, title="Every form:")
