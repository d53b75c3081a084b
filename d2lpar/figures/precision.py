"""A network in lower precisions: accuracy against speed, and a table as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import precision_table, wording
from d2lpar.records.files import run_name
from d2lpar.records.kinds import INT8, PRECISIONS, PrecisionRecord, Run


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """``<run>-precision`` of each run, and ``<stem>-results.txt`` with all tables.

    Raises :class:`RecordError` for a run in which no precision of the trained network
    could be measured.
    """
    for run in runs:
        rows = precision_table.merged(run.of(PrecisionRecord))
        if not any(row.supported and row.weights == "trained" for row in rows):
            raise RecordError(f"{wording.where(run)}: holds no measured precision")
    drawn = {f"{run_name(run.header)}-precision": _picture(run) for run in runs}
    drawn[f"{stem}-results"] = "\n".join(
        f"{wording.devices(run.header)}\n{wording.provenance([run])}\n\n"
        f"{precision_table.table(run.of(PrecisionRecord))}"
        for run in runs
    )
    return page.save(drawn, folder)


def _picture(run: Run) -> Figure:
    rows = precision_table.merged(run.of(PrecisionRecord))
    trained = [row for row in rows if row.weights == "trained" and row.supported]
    mended = [row for row in rows if row.weights != "trained" and row.supported]
    shown = [p for p in INT8 if any(row.precision == p for row in mended)]
    keys = [
        f"{row.precision}: accuracy {row.test_acc:.4f}, agreement {row.agreement:.4f}, "
        f"{row.images_per_sec:,.0f} images/s, {row.weight_bytes / 1000:,.0f} kB"
        for row in trained
    ]
    for p in shown:
        own = [row for row in mended if row.precision == p]
        accuracies = [f"{row.weights} {row.test_acc:.4f}" for row in own]
        keys.append(f"{p}: accuracy {', '.join(accuracies)}")
    picture = page.new(
        [run],
        "Accuracy against speed",
        _caption(rows, bool(shown)),
        panels=2 if shown else 1,
        keys=keys,
    )
    lines = _trained(picture.axes[0], trained)
    if shown:
        lines += _mended(picture.axes[1], shown, mended)
    float32 = precision_table.baseline(rows)
    if float32 is not None:
        p, n_test = float32.test_acc, run.header.settings.get("n_test")
        if n_test:
            error = math.sqrt(p * (1 - p) / n_test)
            picture.axes[0].axhspan(p - error, p + error, color="0.9", zorder=0)
        for axes in picture.axes:
            axes.axhline(p, **page.DASHED)
    return picture.legend(lines)


def _trained(axes: Axes, rows: Sequence[PrecisionRecord]) -> list[Line2D]:
    """A marker per precision, with the quartiles of its speed."""
    lines = []
    for row in rows:
        speed, style = row.images_per_sec, _style(row.precision)
        lines += axes.plot(speed, row.test_acc, **style)
        whiskers = [[speed - row.images_per_sec_q1], [row.images_per_sec_q3 - speed]]
        axes.errorbar(speed, row.test_acc, xerr=whiskers, color=style["color"], lw=1)
    _name_axes(axes, "weights as trained", rows)
    return lines


def _mended(
    axes: Axes, shown: Sequence[str], rows: Sequence[PrecisionRecord]
) -> list[Line2D]:
    """An arrow from the stretched weights' accuracy to the equalised ones'."""
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
        for weights, point in points.items():
            face = {"mfc": "white"} if weights == "equalised" else {}
            drawn = axes.plot(*point, **style, **face)
            lines += drawn if weights == next(iter(points)) else []
    _name_axes(axes, "stretched to equalised (hollow)", rows)
    return lines


def _name_axes(axes: Axes, what: str, rows: Sequence[PrecisionRecord]) -> None:
    axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}")
    axes.set_xlim(0, 1.1 * max(row.images_per_sec for row in rows))
    axes.set(xlabel=f"thousand images/s, {what}", ylabel="test accuracy")


def _style(precision: str) -> dict:
    k = PRECISIONS.index(precision)
    return page.look(k, marker=(*page.MARKERS, "<")[k], ls="", ms=7)


def _caption(rows: Sequence[PrecisionRecord], mended: bool) -> str:
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
    ]
    return " ".join(filter(None, sentences))
