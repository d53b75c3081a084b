"""Timings of array work as pictures and text: two clocks, a roofline, copies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.kinds import Run, TimingRecord
from d2lpar.records.summary import Summary, summarize
from d2lpar.text import number, plain_table, plural

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
SHORT = {
    "x2": "x\u00a0\u00d7\u00a02",
    "sum": "sum",
    "trig": "\u03a3\u00a0sin\u00b2/cos\u00b2",
    "product": "matrix product",
}


@dataclass(frozen=True)
class Row:
    """All samples of one operation in one form, the repeats of a run pooled.

    `shape` is in words, "100 x 10"; `where` is "2 devices", "CPU" for the host beside
    GPUs, or ""; `num_devices` is 0 for a library of the host.
    """

    operation: str
    library: str
    form: str
    shape: str
    num_devices: int
    where: str
    num_bytes: int
    flops: int
    seconds: Summary
    naive: Summary

    @property
    def name(self) -> str:
        return ", ".join(filter(None, (self.library, self.form, self.where)))

    @property
    def ms(self) -> str:
        """The median in milliseconds."""
        return number(1e3 * self.seconds.median)

    @property
    def gb_per_sec(self) -> float:
        """Of all devices together; they copy at the same time."""
        together = self.num_devices if self.operation in TRANSFERS else 1
        return together * self.num_bytes / self.seconds.median / 1e9

    @property
    def gflop_per_sec(self) -> float:
        return self.flops / self.seconds.median / 1e9

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte."""
        return self.flops / self.num_bytes


def rows(runs: Sequence[Run]) -> list[Row]:
    """The runs' timings by ascending device count, repeats of a row pooled.

    Raises :class:`RecordError` for a run without timings.
    """
    pooled: dict[tuple, list[TimingRecord]] = {}
    for run in sorted(runs, key=lambda run: run.header.num_devices):
        if not run.of(TimingRecord):
            raise RecordError(f"{labels.where(run)}: holds no timings")
        for x in run.of(TimingRecord):
            count = run.header.num_devices if x.library == "MXNet" else 0
            key = (count, x.operation, x.library, x.form, tuple(x.shape))
            pooled.setdefault(key, []).append(x)
    on_gpus = any(run.header.device_kind == "gpu" for run in runs)
    table = []
    for (count, operation, library, form, shape), same in pooled.items():
        where = plural(count, "GPU" if on_gpus else "device")
        if not count:
            where = "CPU" if on_gpus else ""
        row = Row(
            operation=operation,
            library=library,
            form=form,
            shape=" x ".join(f"{n:,}" for n in shape),
            num_devices=count,
            where=where,
            num_bytes=same[0].num_bytes,
            flops=same[0].flops,
            seconds=summarize([s for line in same for s in line.seconds]),
            naive=summarize([s for line in same for s in line.naive_seconds]),
        )
        table.append(row)
    return table


def of(operation: str, table: Sequence[Row]) -> list[Row]:
    """The rows of one operation."""
    return [row for row in table if row.operation == operation]


def fastest(table: Iterable[Row]) -> Row | None:
    """The row with the least median; None where there is none."""
    return min(table, key=lambda row: row.seconds.median, default=None)


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """All pictures and ``<stem>-results.txt``; return the files.

    Raises :class:`RecordError` for a run that holds no timings.
    """
    return page.save({**pictures(runs), "results": results(runs)}, folder, stem)


def pictures(runs: Sequence[Run]) -> dict[str, Figure]:
    """A picture of two clocks per operation, "roofline", and "copies"."""
    table = rows(runs)
    drawn = {name: _clocks(name, table, runs) for name in TITLES if of(name, table)}
    copied, product = fastest(of("copy", table)), fastest(of("product", table))
    if copied and product:
        drawn["roofline"] = _roofline(table, copied, product, runs)
    if of(TRANSFERS[0], table):
        drawn["copies"] = _copies(table, runs)
    return drawn


def _clocks(operation: str, table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """A bar per library, form and device count, the fastest first; by both clocks."""
    shown = sorted(of(operation, table), key=lambda row: row.seconds.median)
    bars = [
        page.Bar(
            row.name,
            # Not its single samples: a picture has the medians and quartiles of a row.
            [row.seconds.q1, row.seconds.median, row.seconds.q3],
            page.color_of(row.library, row.library != "MXNet"),
            mark=row.naive.median,
        )
        for row in shown
    ]
    headers = [run.header for run in runs]
    copied, limit = fastest(of("copy", table)), ""
    if copied and operation != "product":
        limit = f"Dashed: its bytes at a copy's {number(copied.gb_per_sec)} GB/s. "
    picture = page.new(
        f"{TITLES[operation]}, by two clocks",
        labels.subtitle(f"{shown[0].shape}, float32", runs),
        "Bars: devices have finished, medians and quartiles; diamonds: calls have "
        f"returned. {limit}{labels.stamp(headers)}",
        size=(page.WIDE, page.bars_height(bars)),
    )
    (axes,) = picture.axes
    scale = page.bars(axes, bars, "s", dots=False)
    if limit:
        least = shown[0].num_bytes / (copied.gb_per_sec * 1e9)
        axes.axvline(least * scale, **page.DASHED)
    return picture.figure


def _roofline(
    table: Sequence[Row], copied: Row, product: Row, runs: Sequence[Run]
) -> Figure:
    """GFLOP/s against FLOP per byte, under what copy and product allow.

    Four series: MXNet as written and its fastest form, NumPy, and PyTorch.
    """
    picture = page.new(
        "Roofline: rate against arithmetic intensity",
        labels.subtitle("slope: the fastest copy; roof: the fastest product", runs),
        labels.stamp([run.header for run in runs]),
        size=(page.WIDE, 4.8),
    )
    (axes,) = picture.axes
    first, last = 0.06, 4 * product.intensity
    roof = product.gflop_per_sec
    ridge = roof / copied.gb_per_sec
    slope = [first, max(ridge, first)]
    axes.plot(slope, [copied.gb_per_sec * x for x in slope], color="0.35", ls="--")
    axes.plot([ridge, last], [roof, roof], color="0.35")
    series: dict[str, dict[str, Row]] = {}  # the fastest row of each operation
    for row in table:
        if row.operation not in TITLES or "float64" in row.form:
            continue
        name = ", ".join(filter(None, (row.library, row.where)))
        if row.library == "MXNet":
            written = row.form == "as written"
            name = "MXNet, as written" if written else "MXNet, fastest form"
        points = series.setdefault(name, {})
        points[row.operation] = fastest([points.get(row.operation, row), row])
    for k, (name, points) in enumerate(series.items()):
        color = page.color_of(name, "MXNet" not in name)
        face = "white" if name == "MXNet, as written" else color
        style = {"ls": "", "marker": page.MARKERS[k], "ms": 7, "mec": color}
        at = zip(*((row.intensity, row.gflop_per_sec) for row in points.values()))
        axes.plot(*at, **style, color=color, mfc=face, label=name)
    axes.set(xscale="log", yscale="log", ylabel="GFLOP/s")
    axes.set_xlabel("floating-point operations per byte")
    axes.margins(y=0.12)
    box = {"fc": "white", "ec": "none", "pad": 0.5}
    place = {"textcoords": "offset points", "ha": "center", "bbox": box}
    for operation, name in SHORT.items():  # above its fastest point
        points = [x[operation] for x in series.values() if operation in x]
        if points:
            best = fastest(points)
            axes.annotate(name, (best.intensity, best.gflop_per_sec), (0, 9), **place)
    axes.legend(loc="lower right")
    return picture.figure


def _copies(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GB/s against bytes: copies by direction, and where there are any all-reduces.

    On the most devices that were measured; the text has the others.
    """
    panels = {"copies": TRANSFERS}
    if of("all-reduce", table):
        panels["all-reduce"] = ("all-reduce",)
    count = max(row.num_devices for row in of(TRANSFERS[0], table))
    where = plural(count, labels.device_word(runs[0].header))
    picture = page.new(
        f"Copies and all-reduces on {where}, by size",
        labels.subtitle("all devices copy at the same time", runs),
        labels.stamp([run.header for run in runs]),
        panels=len(panels),
        size=(5.2 * len(panels), page.TALL),
    )
    for axes, (title, directions) in zip(picture.axes, panels.items()):
        names = []
        for k, direction in enumerate(directions):
            points = [
                (row.num_bytes, row.gb_per_sec)
                for row in of(direction, table)
                if row.num_devices == count
            ]
            if points:
                axes.plot(*zip(*points), **page.look(k))
                names.append((*points[-1], f"{direction}\n{points[-1][1]:.3g} GB/s"))
        axes.set_title(title)
        page.bytes_along(axes, "bytes of an array")
        page.log_numbers_up(axes, "GB/s")
        page.beside(axes, names)
    return picture.figure


def results(runs: Sequence[Run]) -> str:
    """Everything as text: times, rates, and the published numbers beside ours."""
    measured, published = [], []
    table = rows(runs)
    for row in table:
        q1, q3 = number(1e3 * row.seconds.q1), number(1e3 * row.seconds.q3)
        measured.append([
            f"{row.operation} {row.shape}", row.library, row.form,
            str(row.num_devices or "host"), row.ms, f"{q1}-{q3}, n={row.seconds.n}",
            number(1e3 * row.naive.median), number(row.gb_per_sec),
            number(row.gflop_per_sec),
        ])  # fmt: skip
    for operation, source, printed, ours in PUBLISHED:
        here = [r for r in of(operation, table) if (r.library, r.form) == ours]
        repeated = f"{here[0].ms} ms for {here[0].shape}" if here else "-"
        published.append([operation, source, printed, repeated])
    columns = ["operation", "library", "form", "devices", "ms", "quartiles, n"]
    columns += ["naive ms", "GB/s", "GFLOP/s"]
    headers = [run.header for run in runs]
    sections = [
        plain_table(columns, measured),
        "What the sources printed, and what the same line takes here:",
        plain_table(["operation", "source", "printed", "here"], published),
        f"{labels.hardware(headers)}. {labels.stamp(headers)}",
    ]
    return "\n\n".join(sections) + "\n"
