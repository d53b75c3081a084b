"""Paper and ink: a picture as high as its words need, its palette, and its files.

What a picture shows is decided elsewhere (:mod:`d2lpar.figures.drawing`,
:mod:`d2lpar.figures.solvers`); here is what all of them look like. Loads Matplotlib with
the first picture only.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from d2lpar.records.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# Okabe and Ito's palette, told apart by colour-blind eyes; its yellow is too pale here.
COLORS = "#0072B2 #D55E00 #009E73 #CC79A7 #000000 #E69F00 #56B4E9".split()
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("6 2", "1 1.3", "6 2 1 2", "3 1.5 1 1.5 1 1.5")  # lengths on and off
LINES = ("-", *((0, tuple(map(float, dashes.split()))) for dashes in DASHES))
# Straight lines only: a dotted hatch makes an SVG of 150 kB.
HATCHES = ("", "///", "xx", "---", "\\\\\\", "|||", "++", "\\\\--")

MARGIN = 0.15  # inches between the text and the picture's edge
SMALL, NORMAL, LARGE = 7.5, 9.0, 11.0  # points
LINE = 1.25  # height of a line of text, in its size


class Page(NamedTuple):
    """An empty picture with its title and caption; `keys` and `ticks` are wrapped."""

    figure: Figure
    axes: list[Axes]
    keys: list[str]
    ticks: list[str]
    legend_at: float  # y of the legend's lower edge, in parts of the height
    strip: Axes | None = None  # below the panel, with the same x

    def legend(self, lines: list[Line2D]) -> None:
        """What the lines are, below the panels: there it hides no curve."""
        corner = (MARGIN / self.figure.get_figwidth(), self.legend_at)
        frame = {"frameon": False, "borderpad": 0, "borderaxespad": 0}
        space = {"loc": "lower left", "labelspacing": 0.3, "handlelength": 5}
        self.figure.legend(lines, self.keys, bbox_to_anchor=corner, **frame, **space)


def new_page(
    title: str,
    caption: str,
    panels: int = 1,
    keys: Sequence[str] = (),
    ticks: Sequence[str] = (),
    strip: bool = False,
) -> Page:
    """A picture as high as its words need: every line of text has its room reserved.

    With `strip` a low panel stands below the only one, and shares its x axis.
    """
    from matplotlib.figure import Figure

    left, right, gap = 0.8, 0.2, 0.9 if panels > 1 else 0.0
    panel = 3.45 if panels > 1 else max(5.4, 0.85 * len(ticks))
    width = left + panels * panel + (panels - 1) * gap + right
    column = width - 2 * MARGIN
    title, title_height = wrap(title, column, LARGE)
    caption, caption_height = wrap(caption, column, SMALL)
    wrapped_keys = [wrap(key, column - 0.8, NORMAL) for key in keys]
    wrapped_ticks = [wrap(t, panel / (len(ticks) + 0.2) - 0.1, NORMAL) for t in ticks]

    legend_at = MARGIN + caption_height + 0.12
    keys_height = sum(height + 0.03 for _, height in wrapped_keys)
    ticks_height = max((height for _, height in wrapped_ticks), default=0.16)
    axis_name_height = 0.26
    bottom = legend_at + keys_height + 0.1 + axis_name_height + ticks_height
    top = MARGIN + title_height + 0.1
    strip_height = 1.15 if strip else 0.0
    height = bottom + strip_height + 3.1 + top

    figure = Figure(figsize=(width, height))
    figure.set_label(title)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    figure.subplots_adjust(
        left=left / width,
        right=1 - right / width,
        bottom=(bottom + strip_height) / height,
        top=1 - top / height,
        wspace=gap / panel,
    )
    x, y = MARGIN / width, MARGIN / height
    figure.text(x, 1 - y, title, size=LARGE, va="top")
    figure.text(x, y, caption, size=SMALL, va="bottom")
    low = None
    if strip:
        box = (left / width, bottom / height, panel / width, 0.9 / height)
        low = figure.add_axes(box, sharex=axes[0])
        axes[0].tick_params(labelbottom=False)
    return Page(
        figure,
        list(axes),
        [text for text, _ in wrapped_keys],
        [text for text, _ in wrapped_ticks],
        legend_at / height,
        low,
    )


def wrap(text: str, width: float, size: float) -> tuple[str, float]:
    """The text broken to `width` inches at `size` points, and its height in inches.

    Measured, not counted: capitals are twice as wide as small letters.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)

    def fits(line: str) -> bool:
        extent = text_to_path.get_text_width_height_descent(line, font, ismath=False)
        return extent[0] <= 0.96 * 72 * width  # pixels and other fonts differ a little

    lines = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            if line and not fits(f"{line} {word}"):
                lines, line = [*lines, line], ""
            while not fits(word) and len(word) > 1:  # longer than a line
                end = max(n for n in range(1, len(word)) if n == 1 or fits(word[:n]))
                lines, word = [*lines, word[:end]], word[end:]
            line = f"{line} {word}".strip()
        lines += [line] if line else []
    # A dollar sign would begin a formula.
    return "\n".join(lines).replace("$", r"\$"), len(lines) * size * LINE / 72


def mark_seams(axes: Axes, epochs: Sequence[int]) -> None:
    """A thin line after each epoch where a run was taken up from a checkpoint."""
    for epoch in epochs:
        axes.axvline(epoch, color="0.5", lw=0.8, ls=LINES[2])


@contextmanager
def plain_style():
    """Matplotlib's own defaults, whatever the user's matplotlibrc, and ours on top."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rc("font", size=NORMAL)
        matplotlib.rc("axes", grid=True, axisbelow=True)
        matplotlib.rc("axes.spines", top=False, right=False)
        matplotlib.rc("grid", color="0.88")
        matplotlib.rc("hatch", linewidth=0.8)
        matplotlib.rc("savefig", dpi=150)
        # The same record gives the same SVG, with words that can be searched.
        matplotlib.rc("svg", hashsalt="d2lpar", fonttype="none")
        yield


def save(figures: dict[str, Figure], out: Path) -> list[Path]:
    """Write each as PNG and SVG; rename into place when the last one is written."""
    paths = []
    with ExitStack() as renames:
        for name, figure in figures.items():
            title = {"Title": figure.get_label().replace("\n", " ")}
            for ending, metadata in (("png", title), ("svg", {**title, "Date": None})):
                paths.append(out / f"{name}.{ending}")
                tmp = renames.enter_context(replacing(paths[-1]))
                figure.savefig(tmp, format=ending, metadata=metadata)
    return paths
