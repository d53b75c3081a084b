"""The house style of all pictures; nothing is told by colour alone."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

import numpy
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

from d2lpar.records import labels
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import Run
from d2lpar.records.rule import Comparison, Summary, summarize
from d2lpar.text import byte_size, number

STYLE = Path(__file__).with_name("house.mplstyle")
# Okabe and Ito's palette, which colour-blind readers can tell apart. Blue: d2lpar,
# darker for more devices. Libraries have their own colours, all else has OTHERS.
COUNTS = ("#56B4E9", "#0072B2", "#003A5C")
OURS = COUNTS[1]
LIBRARIES = {"MXNet": OURS, "d2l": "#D55E00", "PyTorch": "#B0568F",
             "NumPy": "#009E73", "SciPy": "#000000"}  # fmt: skip
OTHERS = ("#882255", "#999933", "#332288", "#44AA99", "#117733", "0.55")
SUMS = "#E69F00"  # copies and sums between devices, and nothing else
GREY, INK, PALE = "0.62", "0.13", "0.4"
MARKERS = ("o", "s", "^", "D", "v", "P")
SIGNS = dict(zip(MARKERS, "\u25cf\u25a0\u25b2\u25c6\u25bc\u271a"))  # as text
LINES = ("-", (0, (6, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 1.5, 1, 1.5)))
LIMIT = {"color": "0.35", "ls": LINES[1], "lw": 1.2}  # a limit or an ideal

LETTERS = 9.2  # of a title per inch
# Sentences for titles, by the name of a picture.
Answers = Optional[Mapping[str, Sequence[str]]]
MAX_DOTS = 200  # of single samples in a row; more say nothing


class Picture(Figure):
    """A figure with the metadata of its PNG file: title, versions, dates, commits."""

    metadata: dict[str, str]


def new(
    title: str,
    note: str,
    runs: Sequence[Run],
    size: tuple[float, float] = (7.6, 4.2),
    rows: int = 1,
    columns: int = 1,
    **subplots,
) -> Picture:
    """Return a picture of `size` inches with its empty axes, a `note` below."""
    picture = Picture(figsize=size)
    stamp = labels.stamp([run.header for run in runs]) if runs else ""
    picture.metadata = {"Title": title, "Description": stamp}
    left = {"x": 0.12 / size[0], "ha": "left"}
    picture.suptitle(wrap(title, size[0] * LETTERS), size=13, weight="bold", **left)
    picture.supxlabel(wrap(note, size[0] * 14.5), size=9, color=PALE, **left)
    picture.subplots(rows, columns, **subplots)
    return picture


def wrap(text: str, characters: float) -> str:
    """Wrap text to about this number of characters per line, at most two lines."""
    lines = textwrap.wrap(
        text.replace(" %", "\u00a0%"), max(12, int(characters)), max_lines=2,
        placeholder=" ...", break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines).replace("$", r"\$")  # else it would begin a formula


def look(k: int, **others) -> dict:
    """Return the style of the k-th curve as keywords, with `others` added."""
    line = {"color": OTHERS[k % len(OTHERS)], "ls": LINES[k % len(LINES)]}
    return {**line, "marker": MARKERS[k % len(MARKERS)], **others}


def count_color(k: int) -> str:
    """Return the color of d2lpar on the k-th of ascending device counts."""
    return COUNTS[min(k, len(COUNTS) - 1)]


def answer(answers: Answers, name: str, otherwise: str, inches: float = 7.6) -> str:
    """Return the first sentences of an answer that fit two lines, or `otherwise`."""
    title = ""
    for text in (answers or {}).get(name, ()):
        longer = f"{title} {text}".strip()
        if len(textwrap.wrap(longer, int(inches * LETTERS))) > 2:
            break
        title = longer
    return title.removesuffix(".") or otherwise


class Row(NamedTuple):
    """A row of :func:`dots`: name, samples or a summary, color, note, and a tick."""

    name: str
    values: Sequence[float] | Summary
    color: str = OURS
    note: str = ""
    mark: float | None = None


def dots(axes: Axes, rows: Sequence[Row], unit: str, log: bool | None = None) -> None:
    """Draw a row of samples each, downwards: the median, its spread, all as dots.

    Axes begin at 0, or are logarithmic if medians differ tenfold (unless `log` says).
    """
    right = {"transform": axes.get_yaxis_transform(), "va": "center", "size": 9}
    summaries = {
        k: row.values if isinstance(row.values, Summary) else summarize(row.values)
        for k, row in enumerate(rows)
        if row.values
    }
    scale, medians = 1.0, [s.median for s in summaries.values()]
    if unit == "s" and max((s.high for s in summaries.values()), default=1) < 1:
        scale, unit = 1e3, "ms"
    for k, row in enumerate(rows):
        if k not in summaries:
            why_not = f"not measured: {row.note}" if row.note else ""
            axes.text(0.02, k, wrap(why_not, 60), **right)
            continue
        s, color = summaries[k], row.color
        if not isinstance(row.values, Summary) and 1 < s.n <= MAX_DOTS:
            values = scale * numpy.array(row.values)
            axes.plot(values, [k] * s.n, ".", color=color, ms=5, alpha=0.45, mew=0)
        axes.plot([scale * s.low, scale * s.high], [k, k], color=color, lw=2.5)
        axes.plot(scale * s.median, k, "o", color=color, ms=7)
        if row.mark is not None:
            axes.plot([scale * row.mark, scale * s.median], [k, k], color=color, lw=0.8)
            axes.plot(scale * row.mark, k, "|", color=INK, ms=11, mew=1.6)
        value, of = scale * s.median, unit
        if unit == "s" and value < 1:
            value, of = 1e3 * value, "ms"
        words = (f"{number(value)} {of}".strip(), row.note)
        axes.text(1.01, k, "  ".join(filter(None, words)), **right)
    axes.set_yticks(range(len(rows)), [wrap(row.name, 46) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.set_xlabel({"s": "seconds", "ms": "milliseconds"}.get(unit, unit))
    if log is None:
        log = bool(medians) and max(medians) > 10 * min(medians) > 0
    if log:
        log_along(axes, "x")
    else:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def times_as_fast(found: Comparison) -> str:
    """Return a ratio for the note of a row: "1.6\u00d7", "0.97\u00d7 (same)"."""
    mark = "" if found.is_told else f" ({found.verdict})"
    return f"{found.ratio:.2g}\u00d7{mark}"


def height(rows: int) -> float:
    """Return the height in inches of a picture with this number of rows."""
    return 1.5 + 0.36 * rows


def log_along(axes: Axes, which: str, base: int = 10) -> None:
    """Make an axis, "x" or "y", logarithmic unless nothing positive is drawn."""
    column = "xy".index(which)
    if not any((line.get_xydata()[:, column] > 0).any() for line in axes.lines):
        return
    (axes.set_xscale, axes.set_yscale)[column]("log", base=base)
    axis = (axes.xaxis, axes.yaxis)[column]
    low, high = axis.get_view_interval()
    if high / low < 1e6:
        axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    if base == 10 and high / low < 300:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def name_beside(axes: Axes, values: Mapping[str, float]) -> None:
    """Write each name on the right at its y value, apart where two would overlap."""
    axes.get_ylim()  # of all that is drawn
    lowest, gap, heights = -1.0, 0.055, []
    for value in sorted(values.values()):
        _, y = axes.transLimits.transform(axes.transScale.transform((1, value)))
        lowest = max(y, lowest + gap)
        heights.append(lowest)
    top = max(1.0, gap * len(heights)) + gap
    for k in reversed(range(len(heights))):
        top = heights[k] = min(heights[k], top - gap)
    place = {"transform": axes.transAxes, "va": "center", "size": 9}
    for name, y in zip(sorted(values, key=values.__getitem__), heights):
        axes.text(1.02, y, name, color="0.3", **place)


def bytes_along(axes: Axes, name: str) -> None:
    """Show sizes on a logarithmic x axis, in KiB and MiB."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=5))
    axes.xaxis.set_major_formatter(lambda size, _: byte_size(size))
    axes.set_xlabel(name)


def epochs_along(axes: Axes, runs: Sequence[Run] = ()) -> None:
    """Show whole epochs on the x axis; a line where a run was resumed, in words."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    resumed = {run.header.settings.get("resumed_at") for run in runs}
    for epoch in sorted(resumed - {None}):
        axes.axvline(epoch, color="0.5", lw=0.8, ls=LINES[2])
        axes.annotate(
            "of the checkpoint ", (epoch, 1), xycoords=("data", "axes fraction"),
            color="0.4", fontsize="x-small", rotation=90, ha="right", va="top",
        )  # fmt: skip


def quartiles(axes: Axes, points: Sequence[tuple[float, Sequence[float]]], **style):
    """Draw a curve of medians with their spread through points (x, samples)."""
    x, samples = zip(*points)
    found = [(s.low, s.median, s.high) for s in map(summarize, samples)]
    low, middle, high = numpy.transpose(found)
    return axes.errorbar(x, middle, [middle - low, high - middle], capsize=2, **style)


def plain_style():
    """Return a context manager: Matplotlib's defaults with the house style on top."""
    return style.context(STYLE, after_reset=True)


def save(drawn: Mapping[str, Picture | str | bytes], folder: Path) -> list[Path]:
    """Write pictures as ``<name>.png``, texts as .txt, bytes as .gif; return paths."""
    endings: dict[type, str] = {str: "txt", bytes: "gif"}
    paths = []
    for name, content in drawn.items():
        paths.append(folder / f"{name}.{endings.get(type(content), 'png')}")
        with replacing(paths[-1]) as file:
            if isinstance(content, Picture):
                content.savefig(file, format="png", metadata=content.metadata)
            else:
                data = content.encode() if isinstance(content, str) else content
                file.write_bytes(data)
    return paths
