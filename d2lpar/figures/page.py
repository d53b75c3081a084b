"""What all pictures look like: title, keys and caption, palette, bars, and their files.

Matplotlib's constrained layout makes room for the words.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator

from d2lpar.records import wording
from d2lpar.records.atomic import replacing
from d2lpar.records.kinds import Run
from d2lpar.records.summary import Summary, summarize

# Okabe and Ito's palette, told apart by colour-blind eyes; its yellow is too pale here.
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #000000 #E69F00 #56B4E9".split()
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", (0, (6, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 1.5, 1, 1.5)))
# Straight lines only: a dotted hatch makes an SVG of 150 kB.
HATCHES = ("", "///", "xx", "---", "\\\\\\", "|||", "++", "\\\\--")
DASHED = {"color": "0.35", "ls": LINES[1], "lw": 1.2}  # a limit or an ideal

SMALL, NORMAL, LARGE = 7.5, 9.0, 11.0  # points


class Picture(NamedTuple):
    """A figure with its title and caption, its empty axes, and its wrapped keys."""

    figure: Figure
    axes: list[Axes]
    keys: list[str]

    def legend(self, lines: list[Line2D]) -> Figure:
        """Write the keys of the lines under the title; return the figure."""
        self.figure.legend(
            lines, self.keys, loc="outside upper left", frameon=False,
            handlelength=5, labelspacing=0.3, borderaxespad=0.8,
            title=self.figure.get_label(), title_fontsize=LARGE, alignment="left",
        )  # fmt: skip
        return self.figure


def new(
    runs: Sequence[Run],
    what: str,
    caption: str,
    *,
    panels: int = 1,
    keys: Sequence[str] = (),
    ticks: Sequence[str] = (),
    strip: bool = False,
    provenance: str = "",
) -> Picture:
    """A figure as high as its words need; with `keys`, their legend holds the title.

    The last panel's x axis is labelled with `ticks` at 0, 1, ... With `strip` a low
    panel with the same x axis stands below the only one. The caption ends with what the
    runs ran on: `provenance`, or else that of trainings.
    """
    width = 4.3 * panels if panels > 1 else max(6.4, 0.85 * len(ticks) + 1)
    keys = [wrap(key, width - 0.9, NORMAL) for key in keys]
    column = (width / panels - 0.9) / max(len(ticks), 1)
    ticks = [wrap(tick, column, SMALL) for tick in ticks]
    caption = f"{caption.strip()} {provenance or wording.provenance(runs)}"
    lines = len(keys) + "".join([*keys, wrap(caption, width, SMALL)]).count("\n")
    lines += max((tick.count("\n") for tick in ticks), default=0)
    height = 4.3 + 1.2 * strip + 0.15 * lines
    figure = Figure(figsize=(width, height), layout="constrained")
    label(figure, wording.title(what, runs), caption, in_legend=bool(keys))
    if strip:
        axes = figure.subplots(2, height_ratios=[3.4, 1], sharex=True)
    else:
        axes = figure.subplots(1, panels, squeeze=False)[0]
    if ticks:
        axes[-1].set_xticks(range(len(ticks)), ticks, size=SMALL)
    return Picture(figure, list(axes), keys)


def label(figure: Figure, title: str, caption: str, *, in_legend: bool = False) -> None:
    """The title above the panels, unless the legend holds it; the caption below."""
    width = figure.get_figwidth()
    figure.set_label(wrap(title, width, LARGE))
    if not in_legend:
        figure.suptitle(figure.get_label(), x=0.02, ha="left", size=LARGE)
    figure.supxlabel(wrap(caption, width, SMALL), x=0.02, ha="left", size=SMALL)


def wrap(text: str, width: float, size: float) -> str:
    """The text broken to about `width` inches at `size` points."""
    characters = max(1, int(width * 128 / size))
    whole = {"break_on_hyphens": False}
    lines = (textwrap.fill(line, characters, **whole) for line in text.splitlines())
    return "\n".join(lines).replace("$", r"\$")  # a dollar sign would begin a formula


def look(k: int, **others) -> dict:
    """Color, line and marker of the k-th curve, and other keywords for its `plot`."""
    ink = {"color": COLORS[k % len(COLORS)], "ls": LINES[k % len(LINES)]}
    return {**ink, "marker": MARKERS[k % len(MARKERS)], "ms": 4, **others}


def quartiles(summaries: Sequence[Summary], scale: float = 1.0) -> list[list[float]]:
    """Whiskers from the lower to the upper quartile, as `errorbar` takes them."""
    below = [scale * (s.median - s.q1) for s in summaries]
    return [below, [scale * (s.q3 - s.median) for s in summaries]]


def median_bar(axes: Axes, k: int, values: Sequence[float], unit: str) -> None:
    """The k-th bar: the median, quartiles as whiskers, every value as a dot."""
    s, color = summarize(values), COLORS[k % len(COLORS)]
    pale = [(part + 2) / 3 for part in to_rgb(color)]  # under a hatch of the color
    hatch = HATCHES[k % len(HATCHES)]
    axes.bar(k, s.median, 0.62, color=pale, edgecolor=color, hatch=hatch, lw=1.2)
    # Side by side in the order of time, and clear of the whiskers: nothing hides.
    places = [0.44 * (i + 0.5) / s.n - 0.22 for i in range(s.n)]
    clear = 0.06 if s.n > 1 else 0.0
    places = [k + x + (clear if x >= 0 else -clear) for x in places]
    many = s.n > 400  # an SVG of thousands of circles is megabytes
    dot = {"mfc": "white", "mec": "black", "mew": 0.6, "ms": 3, "rasterized": many}
    axes.plot(places, values, "o", zorder=4, **dot)
    if s.n > 1:
        axes.errorbar(k, s.median, quartiles([s]), color="k", capsize=4, zorder=5)
    text, above = f"{wording.number(s.median)} {unit}\nn = {s.n}", (0, 5)
    axes.annotate(
        text, (k, max(values)), above, textcoords="offset points", ha="center"
    )
    axes.grid(False, axis="x")
    axes.margins(y=0.2)
    axes.set_ylim(bottom=0)


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
    axes.xaxis.set_major_formatter(lambda size, _: wording.byte_size(size))
    axes.set_xlabel(name)


def log_numbers_up(axes: Axes, name: str, *, minor: bool = False) -> None:
    """A logarithmic y axis with plain numbers; `minor` for less than two decades."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    axes.yaxis.set_minor_formatter(lambda y, _: f"{y:,g}" if minor else "")
    axes.set_ylabel(name)


@contextmanager
def plain_style():
    """Matplotlib's own defaults, whatever the user's matplotlibrc, and ours on top."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("font", size=NORMAL)
        matplotlib.rc("axes", grid=True, axisbelow=True)
        matplotlib.rc("axes.spines", top=False, right=False)
        matplotlib.rc("figure.constrained_layout", w_pad=0.1, h_pad=0.1)
        matplotlib.rc("grid", color="0.88")
        matplotlib.rc("hatch", linewidth=0.8)
        matplotlib.rc("savefig", dpi=150)
        # The same record gives the same SVG, with words that can be searched.
        matplotlib.rc("svg", hashsalt="d2lpar", fonttype="none")
        yield


def save(drawn: dict[str, Figure | str], folder: Path, stem: str = "") -> list[Path]:
    """Write figures as ``<stem>-<name>`` PNG and SVG, texts as TXT; return the paths.

    All are written before the first is renamed into place.
    """
    paths = []
    with ExitStack() as renames:

        def new(name: str) -> Path:
            paths.append(folder / name)
            return renames.enter_context(replacing(paths[-1]))

        for key, figure in drawn.items():
            name = "-".join(filter(None, (stem, key)))
            if isinstance(figure, str):
                new(f"{name}.txt").write_text(figure, encoding="utf-8")
                continue
            title = {"Title": figure.get_label().replace("\n", " ")}
            figure.savefig(new(f"{name}.png"), format="png", metadata=title)
            title["Date"] = None
            figure.savefig(new(f"{name}.svg"), format="svg", metadata=title)
    return paths
