"""Timings of array work: two clocks side by side, a roofline, copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from d2lpar.arrays.result import (
    TITLES,
    TRANSFERS,
    Row,
    fastest,
    rows,
    rows_of,
    shape,
)
from d2lpar.figures import labels, page
from d2lpar.records.kinds import Run, group
from d2lpar.text import plural


def pictures(
    runs: Sequence[Run], answers: Mapping[str, Sequence[str]] | None = None
) -> dict[str, page.Picture]:
    """Two ``clocks``, ``roofline``, and ``copies``, as far as the runs hold them.

    `answers` holds the sentences that title them. Raises :class:`RecordError` for a run
    that holds no timings.
    """
    drawn: dict[str, page.Picture] = {}
    table = rows(runs)
    if any(rows_of(operation, table) for operation in TITLES):
        sentences = (answers or {}).get("clocks", ())
        drawn["clocks"] = clocks(
            runs, page.answer(sentences, "Array work by two clocks")
        )
    ours = [row for row in table if row.num_devices]
    if rows_of("copy", ours) and rows_of("product", ours):
        note = labels.subtitle("on one device; roofs: its fastest copy, product", runs)
        drawn["roofline"] = picture = page.new("Rate by intensity", note, runs)
        model = labels.hardware([runs[0].header]).partition(",")[0]
        roofline(picture.axes[0], table, model)
    if rows_of(TRANSFERS[0], ours):
        note = labels.subtitle("all devices copy at the same time", runs)
        drawn["copies"] = picture = page.new("Copies, by size", note, runs)
        copies(picture.axes[0], runs)
    return drawn


def clocks(runs: Sequence[Run], title: str) -> page.Picture:
    """A panel per operation, a row per library, form and device count."""
    shown = group(rows(runs), lambda row: row.operation)
    shown = {name: shown[name] for name in TITLES if name in shown}
    counts = [len(found) for found in shown.values()]
    note = "dot, line: devices have finished, median, quartiles; tick: calls have "
    note = labels.subtitle(f"{note}returned", runs)
    size = (7.6, 1.1 + sum(0.6 + 0.25 * count for count in counts))
    picture = page.new(title, note, runs, size, rows=len(shown), height_ratios=counts)
    for axes, (name, found) in zip(picture.axes, shown.items()):
        times = []
        for row in found:
            color = page.LIBRARIES.get(row.library, page.GREY)
            mark = row.naive.median
            times.append(page.Row(row.name, row.seconds, color, mark=mark))
        page.dots(axes, times, "s", log=True)
        axes.set_title(f"{TITLES[name]}: {shape(found[0])}")
    return picture


# GB/s and float32 GFLOP/s of NVIDIA's data sheets, by the model in a record's devices.
DATA_SHEETS = {"NVIDIA H200": (4_800, 67_000)}


def roofline(axes: Axes, table: Sequence[Row], model: str = "") -> None:
    """GFLOP/s against FLOP per byte on one device, under its copy and its product.

    MXNet as written, and its other forms: the fastest; NumPy and PyTorch where they
    have the same processor. Solid is the roof of the data sheet of a GPU's `model`.
    """
    fewest = min(row.num_devices for row in table if row.num_devices)
    ours = [row for row in table if row.num_devices == fewest]
    roof = max(row.gflop_per_sec for row in rows_of("product", ours))
    bandwidth, left = copy_rate(ours), 0.06
    ridge, last = roof / bandwidth, rows_of("product", ours)[0].intensity
    if left < ridge:
        axes.plot([left, ridge], [left * bandwidth, roof], **page.LIMIT)
    axes.plot([ridge, 4 * last], [roof, roof], **page.LIMIT)
    if model in DATA_SHEETS:
        rate, most = DATA_SHEETS[model]
        xs, ys = [left, most / rate, 4 * last], [left * rate, most, most]
        axes.plot(xs, ys, color="0.35", lw=1.2)
        words = f"data sheet: {rate:,} GB/s, {most:,} GFLOP/s"
        axes.text(last, 1.3 * most, words, ha="right", va="bottom", size=9)
    x, y, below = math.sqrt(left * ridge), 0.8 * roof, {"va": "top", "size": 9}
    words = f"a product: {_two_digits(roof)} GFLOP/s"
    axes.text(last / 3, y, words, ha="right", **below)
    axes.text(1.2 * x, x * bandwidth, f"a copy: {_two_digits(bandwidth)} GB/s", **below)
    # A host's libraries are drawn unless GPUs are beside it: of each operation the
    # fastest row.
    series: dict[tuple[str, str], list[Row]] = {}
    for row in [*ours, *(row for row in table if not row.where)]:
        if row.operation in TITLES and "float64" not in row.form:
            written = row.form == "as written" or row.operation == "product"
            form = ", as written" if written else ", other forms"
            name = row.library, form if row.num_devices else ""
            series.setdefault(name, []).append(row)
    for k, ((library, form), same) in enumerate(series.items()):
        by_operation = group(same, lambda row: row.operation).values()
        points = [fastest(rows) for rows in by_operation]
        at = [(p.intensity, p.gflop_per_sec) for p in points]
        color = page.LIBRARIES.get(library, page.GREY)
        style = {"ls": "", "marker": page.MARKERS[k], "ms": 7, "color": color}
        face = "white" if form == ", as written" else color
        axes.plot(*zip(*at), label=library + form, mfc=face, **style)
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.set(xlabel="floating-point operations per byte", ylabel="GFLOP/s")
    axes.margins(y=0.15)
    axes.legend(loc="lower right")


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):,g}"


def copy_rate(ours: Sequence[Row]) -> float:
    """GB/s read and written together by the fastest copy within one device's memory."""
    within = [2 * row.gb_per_sec for row in rows_of("device to device", ours)]
    return max([row.gb_per_sec for row in rows_of("copy", ours)] + within)


def copies(axes: Axes, runs: Sequence[Run]) -> None:
    """GB/s of all devices together against bytes, by direction, on the most devices."""
    table = rows(runs)
    count = max(row.num_devices for row in rows_of(TRANSFERS[0], table))
    for k, direction in enumerate(TRANSFERS):
        found = [row for row in rows_of(direction, table) if row.num_devices == count]
        points = [(row.num_bytes, row.gb_per_sec) for row in found]
        if points:
            axes.plot(*zip(*points), **page.look(k, label=direction))
    page.bytes_along(axes, "bytes of an array")
    page.log_along(axes, "y")
    where = plural(count, labels.device_word(runs[0].header))
    axes.set_ylabel(f"GB/s, {where} together")
    axes.legend()
