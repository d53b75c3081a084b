"""Timings of array work: two clocks side by side, a roofline, copies and all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    ms,
    of,
    product_rate,
    provenance,
    results,
    rows,
    shape,
)


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
    # MXNet on 1, 2, ... devices, then the host's libraries.
    table = sorted(rows(runs), key=lambda row: (row.library, row.num_devices))
    drawn = {name: _clocks(name, table, runs) for name in TITLES if of(name, table)}
    if bandwidth(table) and product_rate(table):
        drawn["roofline"] = _roofline(table, runs)
    if of(TRANSFERS[0], table):
        drawn["copies"] = _copies(table, runs)
    return drawn


def _clocks(operation: str, table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """Milliseconds by both clocks, each library, form and device count a column."""
    shown, copied = of(operation, table), bandwidth(table)
    keys = ["synchronised clock: the devices have finished; bar: quartiles",
            "naive clock: the calls have returned"]  # fmt: skip
    if copied and operation != "product":
        keys.append(
            f"its bytes at the rate of the fastest copy, {copy_rate(copied):.3g} GB/s: "
            "less is possible only in cache"
        )
    picture = page.new(
        runs,
        f"{TITLES[operation]}, {shape(shown[0])}",
        f"Medians of {each(row.seconds.n for row in shown)} repetitions after a "
        "warm-up, results checked.",
        provenance=provenance(runs),
        keys=keys,
        ticks=["\n".join((row.library, row.form, row.where)) for row in shown],
    )
    (axes,) = picture.axes
    at = range(len(shown))
    medians = [1e3 * row.seconds.median for row in shown]
    naive = [1e3 * row.naive.median for row in shown]
    axes.vlines(at, naive, medians, color="0.7", lw=1)
    spread = page.quartiles([row.seconds for row in shown], 1e3)
    dot = page.look(0, ls="", ms=6, capsize=3)
    lines = [axes.errorbar(at, medians, spread, **dot)]
    lines += axes.plot(at, naive, **page.look(1, ls="", ms=9, mfc="none", mew=1.3))
    for x, row in zip(at, shown):
        above = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
        axes.annotate(ms(row), (x, 1e3 * row.seconds.q3), size=7.5, **above)
    if len(keys) == 3:
        least = shown[0].num_bytes / (copy_rate(copied) * 1e6)
        lines.append(axes.axhline(least, **page.DASHED))
    axes.margins(x=0.1, y=0.14)
    page.log_numbers_up(axes, "ms")
    return picture.legend(lines)


def _roofline(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GFLOP/s against FLOP per byte, under what copy and product allow."""
    copied, best = bandwidth(table), product_rate(table)
    roof, series = best.flops / best.seconds.median / 1e9, _series(table)
    picture = page.new(
        runs,
        "Roofline",
        "Rate against arithmetic intensity: operations for each byte that must be read "
        "or written, sin and cos one each. What is above the slope works in cache.",
        provenance=provenance(runs),
        keys=[
            f"limit of memory, {copy_rate(copied):.3g} GB/s: copy, {copied.name}",
            f"limit of arithmetic, {roof:.3g} GFLOP/s: product, {best.name}",
            *series,
        ],
    )
    (axes,) = picture.axes
    first, last = 0.06, 4 * best.flops / best.num_bytes
    ridge = roof / copy_rate(copied)
    slope = [first, max(ridge, first)]
    rates = [copy_rate(copied) * x for x in slope]
    lines = axes.plot(slope, rates, color="0.2", ls="--")
    lines += axes.plot([ridge, last], [roof, roof], color="0.2")
    for k, (name, points) in enumerate(series.items()):
        shift = 1.06 ** (k - len(series) / 2)  # beside each other, not one over another
        hollow = {"mfc": "none"} if "as written" in name else {}
        lines += axes.plot(
            [shift * row.flops / row.num_bytes for row in points.values()],
            [row.flops / row.seconds.median / 1e9 for row in points.values()],
            **page.look(k, ls="", ms=6, **hollow),
        )
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="floating-point operations per byte", ylabel="GFLOP/s")
    axes.margins(y=0.12)
    for operation in TITLES:
        for row in of(operation, table)[:1]:
            place = {"ha": "center", "va": "top", "size": 8}
            place["transform"] = axes.get_xaxis_transform()
            axes.text(row.flops / row.num_bytes, 0.98, operation, **place)
    return picture.legend(lines)


def _series(table: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """By library, form and devices, the fastest row of each operation."""
    series: dict[str, dict[str, Row]] = {}
    for row in table:
        if row.operation in TITLES and "float64" not in row.form:
            written = row.form in ("as written", "dot")
            which = "as written" if written else "fastest other form"
            key = ", ".join(filter(None, (row.library, which, row.where)))
            points = series.setdefault(key, {})
            points[row.operation] = fastest([points.get(row.operation, row), row])
    return series


def _copies(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GB/s against bytes: copies by direction, and where there are any all-reduces."""
    panels = [TRANSFERS, ("all-reduce",)] if of("all-reduce", table) else [TRANSFERS]
    counts = sorted({row.num_devices for row in of(TRANSFERS[0], table)})
    curves = [
        (panel, direction, count, curve)
        for panel, directions in enumerate(panels)
        for direction in directions
        for count in counts
        if (curve := [r for r in of(direction, table) if r.num_devices == count])
    ]
    picture = page.new(
        runs,
        "Copies and all-reduce by size",
        "Copies: bytes of all devices, which copy at the same time, by the seconds. "
        "All-reduce: bytes of one device's array by the seconds until every device has "
        "the sum.",
        provenance=provenance(runs),
        panels=len(panels),
        keys=[
            f"{direction}, {curve[0].where}: {1e6 * curve[0].seconds.median:.3g} us "
            f"for {wording.byte_size(curve[0].num_bytes)}, {_gb(curve[-1]):.3g} GB/s "
            f"for {wording.byte_size(curve[-1].num_bytes)}"
            for _, direction, _, curve in curves
        ],
    )
    lines = []
    for panel, direction, count, curve in curves:
        color = page.COLORS[[*TRANSFERS, "all-reduce"].index(direction)]
        style = page.look(counts.index(count), color=color)
        points = [(row.num_bytes, _gb(row)) for row in curve]
        lines += picture.axes[panel].plot(*zip(*points), **style)
    for axes, name in zip(picture.axes, ("copies", "all-reduce")):
        page.bytes_along(axes, "bytes of an array")
        page.log_numbers_up(axes, f"GB/s, {name}")
    return picture.legend(lines)


def _gb(row: Row) -> float:
    """GB/s; devices that copy at the same time count together."""
    together = row.num_devices if row.operation in TRANSFERS else 1
    return together * row.num_bytes / row.seconds.median / 1e9
