"""Timings to pictures: two clocks side by side, a roofline, copies and all-reduce.

Draws records of :mod:`d2lpar.studies.array_timings`; numbers and words come from
:mod:`d2lpar.records.timing_table`. Never imports MXNet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar.figures.page import COLORS, LINES, MARKERS, new_page, plain_style, save
from d2lpar.records import wording
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import Run
from d2lpar.records.timing_table import (
    TITLES,
    TRANSFERS,
    Row,
    bandwidth,
    copy_rate,
    each,
    ms,
    of,
    product_rate,
    provenance,
    results,
    rows,
    shape,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    runs: Sequence[Run],
    out: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Write every picture as PNG and SVG, and ``<stem>-results.txt``; return the files.

    Raises :class:`RecordError` for a run that holds no timings.
    """
    with plain_style():
        named = {f"{stem}-{name}": fig for name, fig in pictures(runs).items()}
        table = Path(out) / f"{stem}-results.txt"
        with replacing(table) as tmp:
            tmp.write_text(results(runs), encoding="utf-8")
            return [*save(named, Path(out)), table]


def pictures(runs: Sequence[Run]) -> dict[str, Figure]:
    """One picture of two clocks an operation, "roofline", and "copies"."""
    table = rows(runs)
    drawn = {name: _clocks(name, table, runs) for name in TITLES if of(name, table)}
    if bandwidth(table) and product_rate(table):
        drawn["roofline"] = _roofline(table, runs)
    if of(TRANSFERS[0], table):
        drawn["copies"] = _copies(table, runs)
    return drawn


def _clocks(operation: str, table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """Milliseconds by both clocks, each library, form and device count a column."""
    from matplotlib.ticker import FuncFormatter

    shown = _by_library(of(operation, table))
    copied = bandwidth(table)
    keys = ["synchronised clock: the devices have finished; bar: quartiles",
            "naive clock: the calls have returned"]  # fmt: skip
    if copied and operation != "product":
        keys.append(
            f"its bytes at the rate of the fastest copy, {copy_rate(copied):.3g} GB/s: "
            "less is possible only in cache"
        )
    page = new_page(
        wording.title(f"{TITLES[operation]}, {shape(shown[0])}", runs),
        f"Medians of {each(row.seconds.n for row in shown)} repetitions after a "
        f"warm-up, results checked. {provenance(runs)}",
        keys=keys,
        ticks=["\n".join((row.library, row.form, row.where)) for row in shown],
    )
    (axes,) = page.axes
    at = range(len(shown))
    synchronised = [1e3 * row.seconds.median for row in shown]
    naive = [1e3 * row.naive.median for row in shown]
    axes.vlines(at, naive, synchronised, color="0.7", lw=1)
    spread = [
        [1e3 * (row.seconds.median - row.seconds.q1) for row in shown],
        [1e3 * (row.seconds.q3 - row.seconds.median) for row in shown],
    ]
    bars = axes.errorbar(
        at, synchronised, spread, fmt=MARKERS[0], color=COLORS[0], ms=6, capsize=3
    )
    (hollow,) = axes.plot(
        at, naive, MARKERS[1], color=COLORS[1], mfc="none", ms=9, mew=1.3
    )
    lines = [bars, hollow]
    for x, row in zip(at, shown):
        axes.annotate(
            ms(row), (x, 1e3 * row.seconds.q3), (0, 7), textcoords="offset points",
            ha="center", size=7.5,
        )  # fmt: skip
    if len(keys) == 3:
        least = 1e3 * shown[0].num_bytes / (copy_rate(copied) * 1e9)
        lines.append(axes.axhline(least, color="0.35", ls=LINES[1], lw=1.2))
    axes.set_yscale("log")
    axes.margins(x=0.1, y=0.14)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: wording.number(ms)))
    axes.set_xticks(list(at), page.ticks)
    axes.set_ylabel("ms")
    page.legend(lines)
    return page.figure


def _roofline(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GFLOP/s against FLOP per byte, under what copy and product allow."""
    copied, best = bandwidth(table), product_rate(table)
    roof = best.flops / best.seconds.median / 1e9
    series: dict[str, list[Row]] = {}
    for row in _by_library(table):
        if row.operation in TITLES and "float64" not in row.form:
            written = row.form in ("as written", "dot")
            which = "as written" if written else "fastest other form"
            key = ", ".join(filter(None, (row.library, which, row.where)))
            series.setdefault(key, []).append(row)
    page = new_page(
        wording.title("Roofline", runs),
        "Rate against arithmetic intensity: operations for each byte that must be read "
        "or written, sin and cos one each. What is above the slope works in cache. "
        f"{provenance(runs)}",
        keys=[
            f"limit of memory, {copy_rate(copied):.3g} GB/s: copy, {copied.name}",
            f"limit of arithmetic, {roof:.3g} GFLOP/s: product, {best.name}",
            *series,
        ],
    )
    (axes,) = page.axes
    ends = [0.06, 4 * best.flops / best.num_bytes]
    ridge = roof / copy_rate(copied)
    slope = [ends[0], max(ridge, ends[0])]
    lines = axes.plot(
        slope, [copy_rate(copied) * x for x in slope], color="0.2", ls=LINES[1]
    )
    lines += axes.plot([ridge, ends[1]], [roof, roof], color="0.2", ls=LINES[0])
    for k, (name, found) in enumerate(series.items()):
        points = {}
        for row in sorted(found, key=lambda row: -row.seconds.median):
            points[row.operation] = row  # the fastest comes last
        shift = 1.06 ** (k - len(series) / 2)  # beside each other, not one over another
        lines += axes.plot(
            [shift * row.flops / row.num_bytes for row in points.values()],
            [row.flops / row.seconds.median / 1e9 for row in points.values()],
            MARKERS[k % len(MARKERS)],
            color=COLORS[k % len(COLORS)],
            mfc="none" if "as written" in name else None,
            ms=6,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(y=0.12)
    for row in {
        row.operation: row for row in table if row.operation in TITLES
    }.values():
        at = (row.flops / row.num_bytes, 0.98)
        axes.text(*at, row.operation, ha="center", va="top", size=8,
                  transform=axes.get_xaxis_transform())  # fmt: skip
    axes.set_xlabel("floating-point operations per byte")
    axes.set_ylabel("GFLOP/s")
    page.legend(lines)
    return page.figure


def _copies(table: Sequence[Row], runs: Sequence[Run]) -> Figure:
    """GB/s against bytes: copies by direction, and where there are any all-reduces."""
    reduces = of("all-reduce", table)
    panels = [TRANSFERS, ("all-reduce",)] if reduces else [TRANSFERS]
    counts = sorted({row.num_devices for row in of(TRANSFERS[0], table)})
    curves = [
        (panel, direction, count, curve)
        for panel, directions in enumerate(panels)
        for direction in directions
        for count in counts
        if (curve := [r for r in of(direction, table) if r.num_devices == count])
    ]
    page = new_page(
        wording.title("Copies and all-reduce by size", runs),
        "Copies: bytes of all devices, which copy at the same time, by the seconds. "
        "All-reduce: bytes of one device's array by the seconds until every device has "
        f"the sum. {provenance(runs)}",
        panels=len(panels),
        keys=[
            f"{direction}, {curve[0].where}: {1e6 * curve[0].seconds.median:.3g} us "
            f"for {_bytes(curve[0].num_bytes)}, {_gb(curve[-1]):.3g} GB/s for "
            f"{_bytes(curve[-1].num_bytes)}"
            for _, direction, count, curve in curves
        ],
    )
    lines = []
    for panel, direction, count, curve in curves:
        color = [*TRANSFERS, "all-reduce"].index(direction)
        kind = counts.index(count)
        lines += page.axes[panel].plot(
            [row.num_bytes for row in curve],
            [_gb(row) for row in curve],
            color=COLORS[color],
            ls=LINES[kind % len(LINES)],
            marker=MARKERS[kind % len(MARKERS)],
            ms=4,
        )
    for axes, directions in zip(page.axes, panels):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = sorted({r.num_bytes for d in directions for r in of(d, table)})
        axes.set_xticks(sizes[:: -(-len(sizes) // 4)])
        axes.xaxis.set_major_formatter(lambda size, _: _bytes(size))
        axes.set_xlabel("bytes of an array")
        axes.set_ylabel(f"GB/s, {'all-reduce' if len(directions) == 1 else 'copies'}")
    page.legend(lines)
    return page.figure


def _by_library(table: Sequence[Row]) -> list[Row]:
    """MXNet on 1, 2, ... devices, then the host's libraries."""
    return sorted(table, key=lambda row: (row.library, row.num_devices))


def _gb(row: Row) -> float:
    together = row.num_devices if row.operation in TRANSFERS else 1
    return together * row.num_bytes / row.seconds.median / 1e9


def _bytes(size: float) -> str:
    """4096 -> "4 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    return ""
