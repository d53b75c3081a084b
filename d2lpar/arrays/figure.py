"""Timings of array work: two clocks side by side, a roofline, copies and all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records import wording
from d2lpar.records.kinds import Run
from d2lpar.records.timing_table import (
    TITLES,
    TRANSFERS,
    Row,
    bandwidth,
    copy_rate,
    each,
    fastest,
    of,
    product_rate,
    results,
    rows,
    shape,
)

WRITTEN = ("as written", "dot")  # the forms of the sources
SHORT = {
    "x2": "x\u00a0\u00d7\u00a02",
    "sum": "sum",
    "trig": "\u03a3\u00a0sin\u00b2/cos\u00b2",
    "product": "matrix product",
}


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """All pictures and ``<stem>-results.txt``; return the files.

    Raises :class:`RecordError` for a run that holds no timings.
    """
    return page.save({**pictures(runs), "results": results(runs)}, folder, stem)


def pictures(runs: Sequence[Run]) -> dict[str, Figure]:
    """A picture of two clocks per operation, "roofline", and "copies"."""
    table = rows(runs)
    drawn = {name: _clocks(name, table, runs) for name in TITLES if of(name, table)}
    product = product_rate(table)
    if bandwidth(table) and product and product.flops:
        drawn["roofline"] = _roofline(table, runs)
    if of(TRANSFERS[0], table):
        drawn["copies"] = _copies(table, runs)
    return drawn


def _stamp(runs: Sequence[Run]) -> str:
    return wording.stamp([run.header for run in runs])


def _clocks(operation: str, table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """A bar per library, form and device count, the fastest first; by both clocks."""
    shown = sorted(of(operation, table), key=lambda row: row.seconds.median)
    # A picture has the medians and quartiles of a row, not its single samples.
    bars = [
        page.Bar(
            row.name,
            [row.seconds.q1, row.seconds.median, row.seconds.q3],
            page.color_of(row.library, row.library != "MXNet"),
            mark=row.naive.median,
        )
        for row in shown
    ]
    copied, limit = bandwidth(table), ""
    if copied and operation != "product":
        least = shown[0].num_bytes / (copy_rate(copied) * 1e9)
        rate = wording.number(copy_rate(copied))
        limit = f"Dashed: its bytes at a copy's {rate} GB/s. "
    picture = page.new(
        _clocks_title(operation, shown),
        wording.subtitle(f"{TITLES[operation]}, {shape(shown[0])}, float32", runs),
        "Bars: devices have finished, medians and quartiles of "
        f"{each(row.seconds.n for row in shown)}; diamonds: calls have returned. "
        f"{limit}{_stamp(runs)}",
        size=(page.WIDE, page.bars_height(bars)),
    )
    (axes,) = picture.axes
    ms = page.bars(axes, bars, "s", dots=False)
    if limit:
        axes.axvline(least * ms, **page.DASHED)
    return picture.figure


def _clocks_title(operation: str, shown: Sequence[Row]) -> str:
    first, name = shown[0], SHORT[operation]
    said = f"{first.name} is the fastest at {name}"
    rival = next((r for r in shown if r.library != first.library), None)
    if rival is None:
        return said
    ratio = rival.seconds.median / first.seconds.median
    return f"{said}: {ratio:.3g} times as fast as {rival.name}"


def _roofline(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GFLOP/s against FLOP per byte, under what copy and product allow."""
    copied, best = bandwidth(table), product_rate(table)
    roof, series = best.flops / best.seconds.median / 1e9, _series(table)
    picture = page.new(
        _roofline_title(table, copied, best),
        wording.subtitle("rate against arithmetic intensity", runs),
        "Slope: the fastest copy; roof: the fastest product. Operations per byte read "
        "or written, sin and cos one each. "
        f"{_stamp(runs)}",
        size=(page.WIDE, 4.8),
    )
    (axes,) = picture.axes
    first, last = 0.06, 4 * best.flops / best.num_bytes
    ridge = roof / copy_rate(copied)
    slope = [first, max(ridge, first)]
    axes.plot(slope, [copy_rate(copied) * x for x in slope], color="0.35", ls="--")
    axes.plot([ridge, last], [roof, roof], color="0.35")
    for k, (name, points) in enumerate(series.items()):
        color = page.color_of(name, "MXNet" not in name)
        face = {"mfc": "white"} if "as written" in name and "MXNet" in name else {}
        axes.plot(
            [row.flops / row.num_bytes for row in points.values()],
            [row.flops / row.seconds.median / 1e9 for row in points.values()],
            ls="", marker=page.MARKERS[k], ms=7, mec=color, color=color, label=name,
            **face,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", ylabel="GFLOP/s")
    axes.set_xlabel("floating-point operations per byte")
    axes.margins(y=0.12)
    _name_points(axes, series)
    axes.legend(loc="lower right")
    return picture.figure


def _name_points(axes: Axes, series: dict[str, dict[str, Row]]) -> None:
    """The name of each operation above its fastest point."""
    for operation in TITLES:
        points = [found[operation] for found in series.values() if operation in found]
        if points:
            best = fastest(points)
            at = best.flops / best.num_bytes, best.flops / best.seconds.median / 1e9
            place = {"textcoords": "offset points", "ha": "center"}
            place["bbox"] = {"fc": "white", "ec": "none", "pad": 0.5}
            axes.annotate(SHORT[operation], at, (0, 9), **place)


def _roofline_title(table: Sequence[Row], copied: Row, best: Row) -> str:
    """What share of the limit each operation's fastest form reaches.

    The limit is that of the devices: beside GPUs the forms of the host do not count.
    """
    said = []
    for operation in TITLES:
        row = fastest(r for r in of(operation, table) if r.where != "CPU")
        if row and operation != "product":
            x = row.flops / row.num_bytes
            limit = min(copy_rate(copied) * x, best.flops / best.seconds.median / 1e9)
            share = row.flops / row.seconds.median / 1e9 / (limit or 1.0)
            # More than the memory can give comes out of a cache.
            cached = f" ({row.num_bytes / 1e6:.0f} MB, cached)" if share > 1 else ""
            said.append(f"{SHORT[operation]} {share:.0%}{cached}")
    if not said:
        return f"The matrix product sets the limit of arithmetic: {best.name}"
    return f"Of what memory allows, the fastest forms reach: {', '.join(said)}"


def _series(table: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """Four series: MXNet as written and its fastest form, NumPy, and PyTorch.

    By name the fastest row of each operation in float32.
    """
    series: dict[str, dict[str, Row]] = {}
    for row in table:
        if row.operation in TITLES and "float64" not in row.form:
            name = ", ".join(filter(None, (row.library, row.where)))
            if row.library == "MXNet":
                written = row.form in WRITTEN
                name = "MXNet, as written" if written else "MXNet, fastest form"
            points = series.setdefault(name, {})
            points[row.operation] = fastest([points.get(row.operation, row), row])
    return series


def _copies(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GB/s against bytes: copies by direction, and where there are any all-reduces.

    On the most devices that were measured; the text has the others.
    """
    panels = [TRANSFERS, ("all-reduce",)] if of("all-reduce", table) else [TRANSFERS]
    count = max(row.num_devices for row in of(TRANSFERS[0], table))
    where = wording.plural(count, wording.noun(runs[0].header))
    names = ("copies", "all-reduce")
    picture = page.new(
        _copies_title(table, count),
        wording.subtitle(f"GB/s by size on {where}", runs),
        "Copies: bytes of all devices, which copy at the same time, by the seconds. "
        "All-reduce: bytes of one device's array by the seconds of the sum. "
        f"{_stamp(runs)}",
        panels=len(panels),
        size=(5.2 * len(panels), page.TALL),
    )
    for axes, directions, name in zip(picture.axes, panels, names):
        labels = []
        for k, direction in enumerate(directions):
            curve = [r for r in of(direction, table) if r.num_devices == count]
            points = [(row.num_bytes, _gb(row)) for row in curve]
            if points:
                axes.plot(*zip(*points), **page.look(k))
                labels.append((*points[-1], f"{direction}\n{points[-1][1]:.3g} GB/s"))
        axes.set_title(name)
        page.bytes_along(axes, "bytes of an array")
        page.log_numbers_up(axes, "GB/s")
        page.beside(axes, labels)
    return picture.figure


def _copies_title(table: Sequence[Row], count: int) -> str:
    rates = {
        name: max(_gb(r) for r in of(name, table) if r.num_devices == count)
        for name in (*TRANSFERS, "all-reduce")
        if any(r.num_devices == count for r in of(name, table))
    }
    best = max(rates, key=rates.get)
    said = f"Copies from {best} reach {rates[best]:.3g} GB/s"
    if "all-reduce" in rates and best != "all-reduce":
        said += f", an all-reduce {rates['all-reduce']:.3g} GB/s"
    return said


def _gb(row: Row) -> float:
    """GB/s; devices that copy at the same time count together."""
    together = row.num_devices if row.operation in TRANSFERS else 1
    return together * row.num_bytes / row.seconds.median / 1e9
