"""Timings as a table: every row's times and rates, what is fastest, and the seeds'.

Reads records of :mod:`d2lpar.studies.array_timings`; computes nothing but medians and rates. Pure
text: no drawing, no MXNet.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from d2lpar.errors import RecordError
from d2lpar.records import wording
from d2lpar.records.kinds import Run, TimingRecord
from d2lpar.records.summary import Summary, summarize

TITLES = {
    "x2": "Every number twice",
    "sum": "A sum",
    "trig": "Sum of sin^2/cos^2",
    "product": "Product of two square matrices",
}
TRANSFERS = ("host to device", "device to host", "device to device")
# Operation, where the seed measured what, what it printed; and our row for the CPU ones
# as library and form.
SEEDS = (
    ("x2", "000: NumPy, CPU of Colab", "33.6 ms", ("NumPy", "as written")),
    ("x2", "000: PyCUDA, Tesla T4, naive clock", "0.7 ms", None),
    ("sum", "003: GPU of Colab, naive clock", "28.6 to 68.8 % less than the CPU", None),
    ("trig", "002: NumPy in float64, n1-standard-4", "4.12 s",
     ("NumPy", "as written, float64")),
    ("trig", "002: PyTorch, n1-standard-4", "738 ms", ("PyTorch", "as written")),
    ("trig", "002: PyTorch, Tesla T4", "18.9 ms", None),
    ("product", "004: PyTorch, CPU not named", "296.9 s", ("PyTorch", "as written")),
    ("product", "004: PyTorch, GPU not named", "0.554, 0.466, 0.457 s", None),
)  # fmt: skip
COLUMNS = "{:24} {:8} {:20} {:>7} {:>28} {:>9} {:>10} {:>8} {:>9}".format


@dataclass(frozen=True)
class Row:
    """All samples of one operation in one form: the repeats of a run together."""

    operation: str
    library: str
    form: str
    shape: tuple[int, ...]
    num_devices: int  # 0 for a library of the host
    num_bytes: int
    flops: int
    seconds: Summary
    naive: Summary
    first: float  # the slowest warm-up, in seconds

    @property
    def where(self) -> str:
        """What it ran on: "2 devices", or "host"."""
        return wording.plural(self.num_devices, "device") if self.num_devices else ""

    @property
    def name(self) -> str:
        """Library, form and devices."""
        return ", ".join(filter(None, (self.library, self.form, self.where)))


def rows(runs: Sequence[Run]) -> list[Row]:
    """The runs' timings by ascending device count, pooled over their repeats.

    Raises :class:`RecordError` for a run that holds no timings.
    """
    found: dict[tuple, list] = {}
    for run in sorted(runs, key=lambda run: run.header.num_devices):
        if not run.of(TimingRecord):
            raise RecordError(f"{wording.where(run)}: holds no timings")
        for line in run.of(TimingRecord):
            count = run.header.num_devices if line.library == "MXNet" else 0
            key = (line.operation, line.library, line.form, tuple(line.shape), count)
            found.setdefault(key, []).append(line)
    return [
        Row(
            *key,
            lines[0].num_bytes,
            lines[0].flops,
            summarize([s for line in lines for s in line.seconds]),
            summarize([s for line in lines for s in line.naive_seconds]),
            max((s for line in lines for s in line.warmup_seconds), default=0.0),
        )
        for key, lines in found.items()
    ]


def bandwidth(table: Sequence[Row]) -> Row | None:
    """The fastest copy of an array as large as x2's: the most that memory gives."""
    return min(of("copy", table), key=lambda row: row.seconds.median, default=None)


def product_rate(table: Sequence[Row]) -> Row | None:
    """The fastest large product: the most arithmetic that was seen."""
    return min(of("product", table), key=lambda row: row.seconds.median, default=None)


def results(runs: Sequence[Run]) -> str:
    """Everything as plain text: times, rates, MXNet against the rest, the seeds."""
    table = rows(runs)
    lines = [
        wording.title("Timings", runs),
        "",
        COLUMNS("operation", "library", "form", "devices", "ms (quartiles, n)",
                "naive ms", "first ms", "GB/s", "GFLOP/s"),
        *map(_line, table),
    ]  # fmt: skip
    for operation in TITLES:
        mxnet, rival = fastest(table, operation)
        if mxnet and rival:
            ratio = mxnet.seconds.median / rival.seconds.median
            lines += [
                "",
                f"{operation}: {mxnet.name}, takes {wording.number(ratio)} times as "
                f"long as {rival.name}",
            ]
    lines += ["", "What the seeds printed, and what their line takes here:"]
    for operation, where, printed, ours in SEEDS:
        here = [r for r in of(operation, table) if (r.library, r.form) == ours]
        shown = f"; here {ms(here[0])} ms for {shape(here[0])}" if here else ""
        lines.append(f"{operation:8} {where:38} {printed}{shown}")
    return "\n".join([*lines, "", textwrap.fill(provenance(runs), 88), ""])


def fastest(table: Sequence[Row], operation: str) -> tuple[Row | None, Row | None]:
    """MXNet's fastest form on the most devices, and the fastest of the host's."""
    found = of(operation, table)
    most = max((row.num_devices for row in found), default=0)
    return tuple(
        min(
            (row for row in found if row.num_devices == count),
            key=lambda row: row.seconds.median,
            default=None,
        )
        for count in (most, 0)
    )


def _line(row: Row) -> str:
    seconds, count = row.seconds.median, max(row.num_devices, 1)
    moved = row.num_bytes * (count if row.operation in TRANSFERS else 1)
    return COLUMNS(
        f"{row.operation} {shape(row)}",
        row.library,
        row.form,
        row.num_devices or "host",
        f"{ms(row)} ({1e3 * row.seconds.q1:.3g}-{1e3 * row.seconds.q3:.3g}, "
        f"n={row.seconds.n})",
        wording.number(1e3 * row.naive.median),
        wording.number(1e3 * row.first),
        wording.number(moved / seconds / 1e9),
        wording.number(row.flops / seconds / 1e9),
    )


def of(operation: str, table: Sequence[Row]) -> list[Row]:
    return [row for row in table if row.operation == operation]


def shape(row: Row) -> str:
    return " x ".join(f"{n:,}" for n in row.shape)


def ms(row: Row) -> str:
    return wording.number(1e3 * row.seconds.median)


def copy_rate(copied: Row) -> float:
    """GB/s of a copy, read and written."""
    return copied.num_bytes / copied.seconds.median / 1e9


def each(values) -> str:
    found = sorted(set(values))
    return " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))


def provenance(runs: Sequence[Run]) -> str:
    """Hardware, threads, libraries, date and commit: there are no batches here."""
    headers = [run.header for run in runs]
    libraries = {
        line.library: line.version for run in runs for line in run.of(TimingRecord)
    }
    where = "; ".join(dict.fromkeys(wording.devices(header) for header in headers))
    cpus = " and ".join(dict.fromkeys(header.cpu_model for header in headers))
    threads = (
        each(
            line.threads
            for run in runs
            for line in run.of(TimingRecord)
            if line.library != "MXNet"
        )
        if len(libraries) > 1
        else ""
    )
    sentences = [
        f"Hardware: {cpus}; {where}",
        f"NumPy and PyTorch: up to {threads} threads" if threads else "",
        ", ".join(f"{name} {version}" for name, version in libraries.items()),
        f"Seed {wording.each(runs, lambda run: run.header.seed)}",
        f"{max(header.date for header in headers)[:10]}, "
        f"{wording.each(runs, lambda run: wording.commit(run.header))}",
    ]
    return " ".join(f"{sentence}." for sentence in sentences if sentence)
