"""Timings of array work: two clocks side by side, a roofline, copies and all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from d2lpar.arrays.table import (
    TITLES,
    TRANSFERS,
    Row,
    fastest,
    of,
    results,
    rows,
    shape,
)
from d2lpar.figures import labels, page
from d2lpar.records.kinds import Run
from d2lpar.text import number, plural

SHORT = {
    "x2": "x\u00a0\u00d7\u00a02",
    "sum": "sum",
    "trig": "\u03a3\u00a0sin\u00b2/cos\u00b2",
    "product": "matrix product",
}


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


def _stamp(runs: Sequence[Run]) -> str:
    return labels.stamp([run.header for run in runs])


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
    copied, limit = fastest(of("copy", table)), ""
    if copied and operation != "product":
        limit = f"Dashed: its bytes at a copy's {number(copied.gb_per_sec)} GB/s. "
    picture = page.new(
        f"{TITLES[operation]}, by two clocks",
        labels.subtitle(f"{shape(shown[0])}, float32", runs),
        "Bars: devices have finished, medians and quartiles; diamonds: calls have "
        f"returned. {limit}{_stamp(runs)}",
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
        _stamp(runs),
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
        _stamp(runs),
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
