"""Timings of array work: two clocks side by side, and a roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from d2lpar.arrays.result import TITLES, Row, fastest, fastest_forms, rows, rows_of
from d2lpar.figures import page
from d2lpar.records import labels
from d2lpar.records.kinds import Run
from d2lpar.text import number

SHORT = {"x2": "\u00d72", "sum": "sum", "trig": "sin²/cos²", "product": "product"}
# GB/s and float32 GFLOP/s of NVIDIA's data sheets, by the model in a record's devices.
DATA_SHEETS = {"NVIDIA H200": (4_800, 67_000)}


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``clocks`` and ``roofline``, as far as the runs hold them."""
    drawn: dict[str, page.Picture] = {}
    table = rows(runs)
    if shown := fastest_forms(table):
        title = page.answer(answers, "clocks", "Array work, two clocks")
        note = "dot: devices have finished; tick: calls have returned; fastest forms"
        note = labels.subtitle(note, runs)
        size = (7.6, page.height(len(shown)))
        drawn["clocks"] = picture = page.new(title, note, runs, size)
        clocks(picture.axes[0], shown, in_words)
    ours = [row for row in table if row.num_devices]
    if rows_of("copy", ours) and rows_of("product", ours):
        note = (
            "as written and in the fastest form; dashed: its fastest copy and product"
        )
        note = labels.subtitle(f"on one device, {note}", runs)
        drawn["roofline"] = picture = page.new("Rate by intensity", note, runs)
        model = labels.hardware([runs[0].header]).partition(",")[0]
        roofline(picture.axes[0], table, model)
    return drawn


def in_words(row: Row) -> str:
    """Return the operation of a row, its library, and where it ran."""
    return ", ".join(filter(None, (TITLES[row.operation], row.library, row.where)))


def clocks(axes: Axes, table: Sequence[Row], name: Callable[[Row], str]) -> None:
    """Draw rows: a tick where the calls return, a dot where the work has ended."""
    shown = []
    for row in table:
        note = f"{factor(row.seconds.median / row.naive.median)}\u00d7"
        color = page.LIBRARIES.get(row.library, page.GREY)
        shown.append(page.Row(name(row), row.seconds, color, note, row.naive.median))
    page.dots(axes, shown, "s", log=True)


def factor(ratio: float) -> str:
    """Return a ratio in two digits: "2.6", "1,600"."""
    return f"{float(f'{ratio:.2g}'):,g}"


def roofline(axes: Axes, table: Sequence[Row], model: str = "") -> None:
    """Draw GFLOP/s against FLOP per byte, MXNet beside PyTorch.

    The roofs are the device's own copy and product and, solid, those of the data sheet
    of a GPU's `model`.
    """
    fewest = min(row.num_devices for row in table if row.num_devices)
    ours = [row for row in table if row.num_devices == fewest]
    roof = max(row.gflop_per_sec for row in rows_of("product", ours))
    copies = [row.gb_per_sec for row in rows_of("copy", ours)]  # read and written
    within = [2 * row.gb_per_sec for row in rows_of("device to device", ours)]
    bandwidth, left = max(copies + within), 0.06
    last = 4 * rows_of("product", ours)[0].intensity
    _roof(axes, (left, last), bandwidth, roof, page.LIMIT)
    words = f"copy {number(bandwidth)} GB/s\nproduct {number(roof)} GFLOP/s"
    place = {"transform": axes.transAxes, "size": 9, "color": page.PALE}
    axes.text(0.98, 0.12, words, ha="right", **place)
    if model in DATA_SHEETS:
        _roof(axes, (left, last), *DATA_SHEETS[model], {"color": "0.35", "lw": 1.2})
    here = [r for r in table if r.num_devices in (0, fewest) and r.where != "CPU"]
    peers = [row for row in here if row.library == "PyTorch"]
    for k, (operation, words) in enumerate(SHORT.items()):
        forms = [r for r in rows_of(operation, ours) if r.library == "MXNet"]
        if not forms:
            continue
        written = next((r for r in forms if r.form in ("as written", "dot")), forms[0])
        x, best = written.intensity, fastest(forms).gflop_per_sec
        style = {"color": page.OURS, "ms": 7}
        axes.plot(x, best, "o", **style)
        if best > 1.2 * written.gflop_per_sec:
            axes.plot(x, written.gflop_per_sec, "o", mfc="white", **style)
            arrow = {"arrowstyle": "->", "color": page.OURS, "shrinkA": 5, "shrinkB": 5}
            ends = (x, best), (x, written.gflop_per_sec)
            axes.annotate("", *ends, arrowprops=arrow)
        if theirs := rows_of(operation, peers):
            rate = fastest(theirs).gflop_per_sec
            axes.plot(1.3 * x, rate, "P", color=page.LIBRARIES["PyTorch"], ms=7)
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "size": 9}
        axes.text(x, 0.02 + 0.05 * (k == 1), words, **place)
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.set(xlabel="floating-point operations per byte", ylabel="GFLOP/s")
    axes.margins(y=0.15)


def _roof(axes: Axes, ends: tuple, bandwidth: float, roof: float, style: dict) -> None:
    """What a memory and a processor allow, from one intensity to another."""
    left, right = ends
    xs = [x for x in (left, roof / bandwidth) if x <= roof / bandwidth]
    axes.plot([*xs, right], [*(x * bandwidth for x in xs), roof], **style)
