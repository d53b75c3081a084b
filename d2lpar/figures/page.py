"""The house style of all pictures: layout, palette, labels, bars, and their files.

A picture has a title, a subtitle with the workload and the hardware, and a caption of
two lines at most. Lines are labelled where they end. The same library has the same
colour in every picture, and nothing is told by colour alone.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from d2lpar.errors import RecordError
from d2lpar.records.atomic import replacing
from d2lpar.records.comparison import Summary, summarize
from d2lpar.text import byte_size, number

# Okabe and Ito's palette, told apart by colour-blind eyes; its yellow is too pale here.
OURS, D2L, PYTORCH, NUMPY = "#0072B2", "#D55E00", "#B0568F", "#009E73"
OTHER = "0.62"  # another library, or what ours are compared with
COLORS = (OURS, "#E69F00", "#000000", "#56B4E9", "0.5", "#003A5C")  # none of these
COUNTS = ("#56B4E9", OURS, "#003A5C")  # ours on more and more devices
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", (0, (6, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 1.5, 1, 1.5)))
NAMES = {"s": "seconds", "ms": "milliseconds"}  # of units along an axis
DASHED = {"color": "0.35", "ls": LINES[1], "lw": 1.2}  # a limit or an ideal
INK, PALE = "0.13", "0.4"  # of words

SMALL, NORMAL, LARGE = 9.0, 10.0, 13.0  # points, to be read at half size
WIDE, TALL = 7.6, 4.0  # inches of a panel that stands alone
MAX_LINES = 2  # of a title, a subtitle and a caption each
MAX_DOTS = 200  # beside a bar; more say nothing, and make an SVG of megabytes
MAX_AREA = 2_500  # square inches of a picture: 170 MB of pixels


class Picture(NamedTuple):
    """A figure with its title, subtitle and caption, and its empty axes, row by row."""

    figure: Figure
    axes: list[Axes]


def new(
    title: str,
    subtitle: str,
    caption: str = "",
    *,
    panels: int = 1,
    rows: int = 1,
    size: tuple[float, float] | None = None,
    **subplots,
) -> Picture:
    """A figure with `panels` side by side in each of `rows`.

    `size` are the inches of all panels, without the words; `subplots` is passed on to
    :meth:`matplotlib.figure.Figure.subplots`.
    """
    width, height = size or ((WIDE, TALL) if panels == 1 else (4.7 * panels, TALL))
    title = _wrapped(title, width, LARGE * 1.09)  # bold
    subtitle = _wrapped(subtitle, width, NORMAL)
    caption = _wrapped(caption, width, SMALL)
    above = 0.12 + 0.245 * _lines(title) + 0.185 * _lines(subtitle)
    below = 0.06 + 0.165 * _lines(caption)
    whole = height + above + below
    figure = Figure(figsize=(width, whole), layout="constrained")
    figure.set_label(title)
    place = {"va": "top", "ha": "left"}
    top = 1 - 0.12 / whole
    figure.text(0.12 / width, top, title, size=LARGE, weight="bold", **place)
    top -= 0.245 * _lines(title) / whole
    figure.text(0.12 / width, top, subtitle, color=PALE, **place)
    place["va"] = "bottom"
    bottom = 0.08 / whole
    figure.text(0.12 / width, bottom, caption, size=SMALL, color=PALE, **place)
    box = (0, below / whole, 1, height / whole)
    figure.get_layout_engine().set(rect=box)
    axes = figure.subplots(rows, panels, squeeze=False, **subplots)
    return Picture(figure, list(axes.flat))


def _lines(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _wrapped(text: str, width: float, size: float) -> str:
    return wrap(text, width - 0.24, size, most=MAX_LINES)


def wrap(text: str, width: float, size: float, *, most: int | None = None) -> str:
    """The text broken to about `width` inches at `size` points, in `most` lines."""
    characters = max(8, int(width * 132 / size))
    lines = textwrap.wrap(
        re.sub(r"[ \n\t]+", " ", text).strip(), characters,
        break_on_hyphens=False, max_lines=most, placeholder=" ...",
    )  # fmt: skip
    # Of two lines the first should not be much longer than the second.
    if len(lines) == 2 and len(lines[0]) + len(lines[1]) < 2 * characters - 6:
        even = (len(lines[0]) + len(lines[1])) // 2 + 5
        balanced = textwrap.wrap(" ".join(lines), even, break_on_hyphens=False)
        lines = balanced if len(balanced) == 2 else lines
    return "\n".join(lines).replace("$", r"\$")  # a dollar sign would begin a formula


def look(k: int, **others) -> dict:
    """Color, line and marker of the k-th curve, and other keywords for its `plot`."""
    ink = {"color": COLORS[k % len(COLORS)], "ls": LINES[k % len(LINES)]}
    return {**ink, "marker": MARKERS[k % len(MARKERS)], "ms": 4.5, "lw": 1.8, **others}


def count_color(k: int) -> str:
    """The color of ours on the k-th of ascending device counts."""
    return COUNTS[min(k, len(COUNTS) - 1)]


def color_of(name: str, is_peer: bool = True) -> str:
    """The color of an arm or a library by its name."""
    if "d2l" in name and "d2lpar" not in name:
        return D2L
    if "torch" in name.lower():
        return PYTORCH
    if "numpy" in name.lower():
        return NUMPY
    return OTHER if is_peer else OURS


def quartiles(summaries: Sequence[Summary], scale: float = 1.0) -> list[list[float]]:
    """Whiskers from the lower to the upper quartile, as `errorbar` takes them."""
    below = [scale * (s.median - s.q1) for s in summaries]
    return [below, [scale * (s.q3 - s.median) for s in summaries]]


@dataclass(frozen=True)
class Bar:
    """A bar: its name, the values whose median it shows, and a word after the number.

    `mark` is another value of the same, drawn as a hollow diamond. Without values
    `note` says why there are none.
    """

    name: str
    values: Sequence[float]
    color: str = OURS
    note: str = ""
    mark: float | None = None

    def in_ms(self) -> Bar:
        """The same bar of seconds in milliseconds."""
        mark = None if self.mark is None else 1e3 * self.mark
        return replace(self, values=[1e3 * v for v in self.values], mark=mark)


def bars(
    axes: Axes,
    rows: Sequence[Bar],
    unit: str,
    width: float = WIDE,
    *,
    most: int = 0,
    dots: bool = True,
) -> float:
    """A bar per row, downwards: the median, quartiles as whiskers, all values as dots.

    Their names stand at the left, their medians at the right. `width` is that of the
    panel in inches; it has room for `most` rows, if that is more; without `dots` only
    whiskers show the values. Seconds (`unit` "s") are shown in ms where all are below a
    tenth. Returns the scale: 1000 in that case, or else 1.
    """
    scale, longest = 1.0, max((v for row in rows for v in row.values), default=1e-9)
    if unit == "s" and longest < 0.1:
        rows = [row.in_ms() for row in rows]
        scale, longest, unit = 1e3, 1e3 * longest, "ms"
    for k, row in enumerate(rows):
        if row.values:
            _bar(axes, k, row, unit, dots)
        else:
            text = wrap(f"not measured: {row.note}", 0.6 * width, SMALL, most=2)
            axes.text(0, k, text, va="center", size=SMALL, color=PALE)
    names = [wrap(row.name, 0.42 * width, NORMAL) for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
    axes.set(xlim=(0, 1.3 * longest), xlabel=NAMES.get(unit, unit))
    axes.set_ylim(max(len(rows), most) - 0.45, -0.55)
    return scale


def _bar(axes: Axes, k: int, row: Bar, unit: str, dots: bool) -> None:
    """The k-th bar with its whisker, dots and number."""
    s = summarize(row.values)
    axes.barh(k, s.median, 0.62, color=row.color, lw=0)
    if s.n > 1:
        low, high = (s.q1, s.q3) if dots else (min(row.values), max(row.values))
        spread = [[s.median - low], [high - s.median]]
        whisker = {"color": INK, "capsize": 3, "lw": 1.2}
        axes.errorbar(s.median, k - 0.08 * dots, xerr=spread, **whisker)
    if dots and 1 < s.n <= MAX_DOTS:
        # Below the whisker, in two rows: few hide others.
        places = [k + 0.16 + 0.12 * (i % 2) for i in range(s.n)]
        dot = {"mfc": "white", "mec": INK, "mew": 0.6, "ms": 3, "ls": ""}
        axes.plot(row.values, places, "o", **dot)
    if row.mark is not None:
        axes.plot(row.mark, k, "D", mfc="white", mec=INK, ms=5.5, zorder=4)
    text = f"{number(s.median)} {unit}  {row.note}".strip()
    end = max(*row.values, row.mark or 0)
    place = {"textcoords": "offset points", "va": "center"}
    place["weight"] = "bold" if row.note else "normal"
    axes.annotate(text, (end, k), (6, 0), **place)


def bars_height(rows: Sequence[Bar]) -> float:
    """Inches of a panel with these bars and its axis."""
    return 0.75 + 0.46 * len(rows)


def beside(
    axes: Axes, labels: Sequence[tuple[float, float, str]], *, left: bool = False
) -> None:
    """Words beside points (x, y, words), moved apart where they would overlap."""
    box = {"fc": "white", "ec": "none", "pad": 0.4, "alpha": 0.92}
    place = {"textcoords": "offset points", "va": "center", "bbox": box}
    place["ha"], aside = ("right", -8) if left else ("left", 8)
    texts = [
        axes.annotate(words, (x, y), (aside, 0), size=SMALL, **place)
        for x, y, words in labels
    ]
    figure = axes.get_figure()
    figure.draw_without_rendering()  # lays the panels out, so that places are known
    points = 72 / figure.dpi
    wide = [text.get_window_extent() for text in texts]
    for group in _overlapping([(box.x0, box.x1) for box in wide]):
        group.sort(key=lambda k: wide[k].y0 + wide[k].y1)
        middles = [points * (wide[k].y0 + wide[k].y1) / 2 for k in group]
        heights = [points * (wide[k].y1 - wide[k].y0) + 1 for k in group]
        for k, middle, moved in zip(group, middles, _apart(middles, heights)):
            texts[k].set_position((aside, moved - middle))


def _overlapping(intervals: Sequence[tuple[float, float]]) -> list[list[int]]:
    """The numbers of the intervals (from, to), those together that overlap."""
    groups: list[list[int]] = []
    end = float("-inf")
    for k in sorted(range(len(intervals)), key=lambda k: intervals[k][0]):
        if intervals[k][0] >= end:
            groups.append([])
        groups[-1].append(k)
        end = max(end, intervals[k][1])
    return groups


def _apart(middles: Sequence[float], heights: Sequence[float]) -> list[float]:
    """The ascending middles moved as little as keeps the heights from overlapping."""
    offsets = [0.0]
    for low, high in zip(heights, heights[1:]):
        offsets.append(offsets[-1] + (low + high) / 2)
    # Labels that touch move as one block, to the mean of the places they would have.
    blocks: list[list[float]] = []
    for middle, offset in zip(middles, offsets):
        blocks.append([middle - offset])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    starts = [_mean(block) for block in blocks for _ in block]
    return [start + offset for start, offset in zip(starts, offsets)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def key(picture: Picture) -> None:
    """One line between subtitle and panels that names the first panel's inks."""
    figure = picture.figure
    engine = figure.get_layout_engine()
    left, bottom, width, height = engine.get()["rect"]
    room = 0.3 / figure.get_figheight()
    engine.set(rect=(left, bottom, width, height - room))
    handles, labels = picture.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0, bottom + height),
        ncols=len(labels), handlelength=1.2, columnspacing=1.4, borderaxespad=0.3,
    )  # fmt: skip


def epochs_along(axes: Axes, seams: Sequence[int] = ()) -> None:
    """Whole epochs on the x axis; a thin line after each that a run resumed from."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    for epoch in seams:
        axes.axvline(epoch, color="0.5", lw=0.8, ls=LINES[2])


def bytes_along(axes: Axes, name: str) -> None:
    """Sizes on a logarithmic x axis, in KiB and MiB."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=5))
    axes.xaxis.set_major_formatter(lambda size, _: byte_size(size))
    axes.set_xlabel(name)


def log_numbers_up(axes: Axes, name: str, *, minor: bool = False) -> None:
    """A logarithmic y axis with plain numbers; `minor` for less than two decades."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    if minor:  # all nine of a decade would overlap
        axes.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
    axes.yaxis.set_minor_formatter(lambda y, _: f"{y:,g}" if minor else "")
    axes.set_ylabel(name)


@contextmanager
def plain_style():
    """Matplotlib's own defaults, whatever the user's matplotlibrc, and ours on top."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("font", size=NORMAL)
        matplotlib.rc("text", color=INK)
        matplotlib.rc("axes", grid=True, axisbelow=True, labelcolor=INK)
        matplotlib.rc("axes", edgecolor="0.6", titlesize=NORMAL, titlelocation="left")
        matplotlib.rc("axes.spines", top=False, right=False)
        matplotlib.rc("axes.grid", axis="y")
        matplotlib.rc(("xtick", "ytick"), color="0.6", labelcolor=INK)
        matplotlib.rc("legend", frameon=False, fontsize=SMALL)
        matplotlib.rc("figure.constrained_layout", w_pad=0.12, h_pad=0.08)
        matplotlib.rc("grid", color="0.9")
        matplotlib.rc("savefig", dpi=150)
        # The same record gives the same SVG, with words that can be searched.
        matplotlib.rc("svg", hashsalt="d2lpar", fonttype="none")
        yield


def save(drawn: dict[str, Figure | str], folder: Path, stem: str = "") -> list[Path]:
    """Write figures as ``<stem>-<name>`` PNG and SVG, texts as TXT; return the paths.

    All are written before the first is renamed into place. Raises
    :class:`RecordError`, and writes nothing, for words that make a picture too large.
    """
    from PIL import Image, PngImagePlugin

    paths = []
    for key, figure in drawn.items():
        width, height = (0, 0) if isinstance(figure, str) else figure.get_size_inches()
        if width * height > MAX_AREA:
            raise RecordError(
                f"{folder / '-'.join(filter(None, (stem, key)))}: these records make a "
                f"picture of {width:.0f} x {height:.0f} inches; draw fewer of them"
            )
    with ExitStack() as renames:

        def new(name: str) -> Path:
            paths.append(folder / name)
            return renames.enter_context(replacing(paths[-1]))

        for key, figure in drawn.items():
            name = "-".join(filter(None, (stem, key)))
            if isinstance(figure, str):
                new(f"{name}.txt").write_text(figure, encoding="utf-8")
                continue
            png, svg = new(f"{name}.png"), new(f"{name}.svg")
            title = figure.get_label().replace("\n", " ")
            figure.savefig(svg, format="svg", metadata={"Title": title, "Date": None})
            figure.savefig(png, format="png")
            info = PngImagePlugin.PngInfo()
            info.add_text("Title", title)
            # 256 colors are enough, and a third of the bytes.
            with Image.open(png) as picture:
                few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
            few.save(png, format="png", optimize=True, dpi=(150, 150), pnginfo=info)
    return paths
