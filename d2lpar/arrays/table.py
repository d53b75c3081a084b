"""Timing records as rows and as text: times, rates, and what the sources published."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from d2lpar.errors import RecordError
from d2lpar.records import wording
from d2lpar.records.kinds import Run, TimingRecord
from d2lpar.records.summary import Summary, summarize
from d2lpar.records.tables import plain_table

TITLES = {
    "x2": "Every number twice",
    "sum": "A sum",
    "trig": "Sum of sin^2/cos^2",
    "product": "Product of two square matrices",
}
TRANSFERS = ("host to device", "device to host", "device to device")
# Operation; which source measured it on what; what it printed; the library and form of
# our row that repeats a measurement on a CPU.
PUBLISHED = (
    ("x2", "least-squares notes: NumPy, CPU of Colab", "33.6 ms",
     ("NumPy", "as written")),
    ("x2", "least-squares notes: PyCUDA, Tesla T4, naive clock", "0.7 ms", None),
    ("sum", "CryptoPunks notebook: GPU of Colab, naive clock",
     "28.6 to 68.8 % less than the CPU", None),
    ("trig", "GPU wiki: NumPy in float64, n1-standard-4", "4.12 s",
     ("NumPy", "as written, float64")),
    ("trig", "GPU wiki: PyTorch, n1-standard-4", "738 ms", ("PyTorch", "as written")),
    ("trig", "GPU wiki: PyTorch, Tesla T4", "18.9 ms", None),
    ("product", "GPUSOROBAN posts: PyTorch, CPU not named", "296.9 s",
     ("PyTorch", "as written")),
    ("product", "GPUSOROBAN posts: PyTorch, GPU not named", "0.554, 0.466, 0.457 s",
     None),
)  # fmt: skip
COLUMNS = ["operation", "library", "form", "devices", "ms", "quartiles, n", "naive ms"]
COLUMNS += ["first ms", "GB/s", "GFLOP/s"]


@dataclass(frozen=True)
class Row:
    """All samples of one operation in one form, the repeats of a run pooled."""

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
    beside_gpus: bool = False  # then the host is another device

    @property
    def where(self) -> str:  # "2 devices", or "" for the host
        if self.num_devices:
            return wording.plural(
                self.num_devices, "GPU" if self.beside_gpus else "device"
            )
        return "CPU" if self.beside_gpus else ""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.library, self.form, self.where)))


def rows(runs: Sequence[Run]) -> list[Row]:
    """The runs' timings by ascending device count, repeats of a row pooled.

    Raises :class:`RecordError` for a run without timings.
    """
    lines: dict[tuple, list[TimingRecord]] = {}
    for run in sorted(runs, key=lambda run: run.header.num_devices):
        if not run.of(TimingRecord):
            raise RecordError(f"{wording.where(run)}: holds no timings")
        for x in run.of(TimingRecord):
            count = run.header.num_devices if x.library == "MXNet" else 0
            key = (x.operation, x.library, x.form, tuple(x.shape), count)
            lines.setdefault((*key, x.num_bytes, x.flops), []).append(x)
    return [
        Row(
            *key,
            summarize([s for line in same for s in line.seconds]),
            summarize([s for line in same for s in line.naive_seconds]),
            max((s for line in same for s in line.warmup_seconds), default=0.0),
            any(run.header.device_kind == "gpu" for run in runs),
        )
        for key, same in lines.items()
    ]


def of(operation: str, table: Sequence[Row]) -> list[Row]:
    """The rows of one operation."""
    return [row for row in table if row.operation == operation]


def fastest(table: Iterable[Row]) -> Row | None:
    """The row with the least median; None where there is none."""
    return min(table, key=lambda row: row.seconds.median, default=None)


def bandwidth(table: Sequence[Row]) -> Row | None:
    """The fastest copy of an array as large as x2's: the limit of memory."""
    return fastest(of("copy", table))


def product_rate(table: Sequence[Row]) -> Row | None:
    """The fastest large product: the limit of arithmetic."""
    return fastest(of("product", table))


def results(runs: Sequence[Run]) -> str:
    """Everything as text: times, rates, MXNet against the rest, published numbers."""
    table, ratios, published = rows(runs), [], []
    for operation in TITLES:
        forms = of(operation, table)
        most = max((row.num_devices for row in forms), default=0)
        mxnet = fastest(row for row in forms if row.num_devices == most)
        host = fastest(row for row in forms if row.num_devices == 0)
        if mxnet and host:
            ratio = wording.number(mxnet.seconds.median / host.seconds.median)
            takes = f"takes {ratio} times as long as {host.name}"
            ratios.append(f"{operation}: {mxnet.name}, {takes}")
    for operation, source, printed, ours in PUBLISHED:
        here = [r for r in of(operation, table) if (r.library, r.form) == ours]
        repeated = f"{ms(here[0])} ms for {shape(here[0])}" if here else "-"
        published.append([operation, source, printed, repeated])
    sections = [
        wording.title("Timings", runs),
        plain_table(COLUMNS, map(_cells, table)),
        "\n".join(ratios),  # MXNet on the most devices against the host
        "What the sources printed, and what the same line takes here:\n"
        + plain_table(["operation", "source", "printed", "here"], published),
        textwrap.fill(provenance(runs), 88),
    ]
    return "\n\n".join(filter(None, sections)) + "\n"


def _cells(row: Row) -> list[str]:
    seconds, count = row.seconds.median, max(row.num_devices, 1)
    moved = row.num_bytes * (count if row.operation in TRANSFERS else 1)
    return [
        f"{row.operation} {shape(row)}",
        row.library,
        row.form,
        str(row.num_devices or "host"),
        ms(row),
        f"({1e3 * row.seconds.q1:.3g}-{1e3 * row.seconds.q3:.3g}, n={row.seconds.n})",
        *map(wording.number, (1e3 * row.naive.median, 1e3 * row.first)),
        *map(wording.number, (moved / seconds / 1e9, row.flops / seconds / 1e9)),
    ]


def shape(row: Row) -> str:
    """The shape in words: "100 x 10"."""
    return " x ".join(f"{n:,}" for n in row.shape)


def ms(row: Row) -> str:
    """The median in milliseconds."""
    return wording.number(1e3 * row.seconds.median)


def copy_rate(copied: Row) -> float:
    """GB/s of a copy; its bytes count twice, read and written."""
    return copied.num_bytes / copied.seconds.median / 1e9


def each(values: Iterable[int]) -> str:
    """The values' range in words: "7", or "3 to 7"."""
    ordered = sorted(set(values))
    return " to ".join(map(str, dict.fromkeys((ordered[0], ordered[-1]))))


def provenance(runs: Sequence[Run]) -> str:
    """Hardware, threads, libraries, date and commit: there are no batches here."""
    headers = [run.header for run in runs]
    lines = [line for run in runs for line in run.of(TimingRecord)]
    libraries = {line.library: line.version for line in lines}
    where = "; ".join(dict.fromkeys(wording.devices(header) for header in headers))
    cpus = " and ".join(dict.fromkeys(header.cpu_model for header in headers))
    threads = {x.threads for x in lines if x.library != "MXNet" and x.threads}
    return wording.sentences(
        f"Hardware: {cpus}; {where}",
        f"NumPy and PyTorch: up to {each(threads)} threads" if threads else "",
        ", ".join(f"{name} {version}" for name, version in libraries.items()),
        f"Seed {wording.each(header.seed for header in headers)}",
        f"{max(header.date for header in headers)[:10]}, "
        f"{wording.each(map(wording.commit, headers))}",
    )
