"""Precision rows to a picture, accuracy against speed, and to a table as text.

Computes nothing anew, like :mod:`d2lpar.figures.drawing`. Never imports MXNet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from d2lpar.errors import RecordError
from d2lpar.figures.page import COLORS, LINES, MARKERS, new_page, plain_style, save
from d2lpar.records import precision_table, wording
from d2lpar.records.atomic import replacing
from d2lpar.records.files import run_name
from d2lpar.records.kinds import INT8, PRECISIONS, PrecisionRecord, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def draw(
    runs: Sequence[Run],
    out: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Draw runs whose `precisions` are rows; return the files written.

    ``<run>-precision`` of each run, as PNG and SVG, and ``<stem>-results.txt`` with the
    tables of all. Raises :class:`RecordError` for a run without rows, or without one
    that could be measured.
    """
    for run in runs:
        if not any(row.supported for row in run.of(PrecisionRecord)):
            raise RecordError(f"{wording.where(run)}: holds no measured precision")
    with plain_style():
        pictures = {f"{run_name(run.header)}-precision": _picture(run) for run in runs}
        paths = save(pictures, Path(out))
    path = Path(out) / f"{stem}-results.txt"
    with replacing(path) as tmp:
        tmp.write_text(results(runs), encoding="utf-8")
    return [*paths, path]


def results(runs: Sequence[Run]) -> str:
    """The table of every run, each under the line that says what it ran on."""
    return "\n".join(
        f"{wording.devices(run.header)}\n{wording.provenance([run])}\n\n"
        f"{precision_table.table(run.of(PrecisionRecord))}"
        for run in runs
    )


def _picture(run: Run) -> Figure:
    rows = precision_table.merged(run.of(PrecisionRecord))
    trained = [row for row in rows if row.weights == "trained" and row.supported]
    mended = [row for row in rows if row.weights != "trained" and row.supported]
    shown = [p for p in INT8 if any(row.precision == p for row in mended)]
    page = new_page(
        wording.title("Accuracy against speed", [run]),
        _caption(run, rows, bool(shown)),
        panels=2 if shown else 1,
        keys=[_key(row) for row in trained] + [_mended_key(p, mended) for p in shown],
    )
    lines = _trained(page.axes[0], trained, precision_table.baseline(rows), run)
    if shown:
        lines += _mended(page.axes[1], shown, mended, precision_table.baseline(rows))
    page.legend(lines)
    return page.figure


def _trained(
    axes: Axes,
    rows: Sequence[PrecisionRecord],
    float32: PrecisionRecord | None,
    run: Run,
) -> list[Line2D]:
    """A marker a precision; the band is float32's accuracy give or take chance."""
    if float32 is not None:
        p, error = float32.test_acc, _standard_error(float32, run)
        axes.axhspan(p - error, p + error, color="0.9", zorder=0)
        axes.axhline(p, color="0.35", lw=0.8, ls=LINES[1])
    lines = []
    for row in rows:
        lines += axes.plot(
            row.images_per_sec, row.test_acc, ls="", ms=7, **_style(row.precision)
        )
        axes.plot(
            [row.images_per_sec_q1, row.images_per_sec_q3],
            [row.test_acc] * 2,
            color=_style(row.precision)["color"],
            lw=1,
        )
    _name_axes(axes, "weights as trained", rows)
    return lines


def _mended(
    axes: Axes,
    shown: Sequence[str],
    rows: Sequence[PrecisionRecord],
    float32: PrecisionRecord | None,
) -> list[Line2D]:
    """An arrow from the stretched weights' accuracy to the equalised ones'."""
    if float32 is not None:
        axes.axhline(float32.test_acc, color="0.35", lw=0.8, ls=LINES[1])
    lines = []
    for precision in shown:
        style = _style(precision)
        points = {
            row.weights: (row.images_per_sec, row.test_acc)
            for row in rows
            if row.precision == precision
        }
        if len(points) == 2:
            arrow = {"arrowstyle": "->", "color": style["color"], "lw": 1.2}
            places = {"xytext": points["stretched"], "xy": points["equalised"]}
            axes.annotate("", arrowprops=arrow, **places)
        hollow = {"equalised": {"markerfacecolor": "white"}}
        drawn = [
            axes.plot(*point, ls="", ms=7, **style, **hollow.get(weights, {}))[0]
            for weights, point in points.items()
        ]
        lines.append(drawn[0])
    _name_axes(axes, "stretched to equalised (hollow)", rows)
    return lines


def _name_axes(axes: Axes, what: str, rows: Sequence[PrecisionRecord]) -> None:
    axes.set_xlim(0, 1.1 * max(row.images_per_sec for row in rows))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}")
    axes.set_xlabel(f"thousand images/s, {what}")
    axes.set_ylabel("test accuracy")


def _style(precision: str) -> dict:
    k = PRECISIONS.index(precision)
    return {"color": COLORS[k % len(COLORS)], "marker": (*MARKERS, "<")[k]}


def _standard_error(float32: PrecisionRecord, run: Run) -> float:
    p, n = float32.test_acc, run.header.settings["n_test"]
    return math.sqrt(p * (1 - p) / n)


def _caption(run: Run, rows: Sequence[PrecisionRecord], mended: bool) -> str:
    refused = [row for row in rows if not row.supported]
    measured = next(row for row in rows if row.supported)
    sentences = [
        f"Speed: median of {measured.n} passes over the test images, "
        f"{measured.per_device_batch_size} at a time on a device; bars: quartiles. "
        "Agreement: share of test images that get float32's class. Dashes: float32's "
        "accuracy; band: its standard error.",
        "Stretched: one channel's outlier, the same function in float32; equalised: "
        "evened out again." * mended,
        *(f"Not supported: {row.precision} ({row.why_not})." for row in refused),
        wording.provenance([run]),
    ]
    return " ".join(filter(None, sentences))


def _key(row: PrecisionRecord) -> str:
    return (
        f"{row.precision}: accuracy {row.test_acc:.4f}, agreement {row.agreement:.4f}, "
        f"{row.images_per_sec:,.0f} images/s, {row.weight_bytes / 1000:,.0f} kB"
    )


def _mended_key(precision: str, rows: Sequence[PrecisionRecord]) -> str:
    own = [row for row in rows if row.precision == precision]
    accuracies = [f"{row.weights} {row.test_acc:.4f}" for row in own]
    return f"{precision}: accuracy {', '.join(accuracies)}"
