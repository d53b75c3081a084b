"""A network in lower precisions: accuracy lost against speed, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.low_precision.table import baseline, merged, table
from d2lpar.records.files import run_name
from d2lpar.records.kinds import INT8, PrecisionRecord, Run


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """``<run>-precision`` for each run, and ``<stem>-results.txt`` with all tables.

    Raises :class:`RecordError` for a run in which no precision of the trained network
    could be measured.
    """
    drawn: dict[str, Figure | str] = {
        f"{run_name(run.header)}-precision": _picture(run) for run in runs
    }
    drawn[f"{stem}-results"] = "\n".join(
        f"{labels.devices(run.header)}\n{labels.stamp([run.header])}\n\n"
        f"{table(run.of(PrecisionRecord))}"
        for run in runs
    )
    return page.save(drawn, folder)


def _picture(run: Run) -> Figure:
    """Points of accuracy lost against the speed, both over float32."""
    rows = merged(run.of(PrecisionRecord))
    measured = [row for row in rows if row.supported]
    trained = [row for row in measured if row.weights == "trained"]
    changed = [row for row in measured if row.weights != "trained"]
    if not trained:
        raise RecordError(f"{labels.where(run)}: holds no measured precision")
    base = baseline(rows) or trained[0]
    refused = dict.fromkeys(row.precision for row in rows if not row.supported)
    not_here = f"Not supported here: {', '.join(refused)}. " if refused else ""
    fastest = max(row.images_per_sec for row in trained) / base.images_per_sec
    picture = page.new(
        f"LeNet in low precision: up to {fastest:.2g} times the speed of "
        f"{base.precision}",
        labels.subtitle(
            f"{labels.data_name(run.header)}, {base.images_per_sec:,.0f} images/s in "
            f"{base.precision}",
            [run],
        ),
        f"Medians and quartiles of {base.n} passes over the test images. "
        f"{not_here}{labels.stamp([run.header])}",
        panels=2 if changed else 1,
        size=(10.8 if changed else page.WIDE, page.TALL),
        **({"width_ratios": [1.35, 1]} if changed else {}),
    )
    _speed(picture.axes[0], trained, base)
    if changed:
        _outlier(picture.axes[1], changed, base)
    return picture.figure


def _speed(
    axes: Axes, trained: Sequence[PrecisionRecord], base: PrecisionRecord
) -> None:
    """A line from float32 to each precision, labelled at its end."""
    points = []
    for row in trained:
        speed, lost = row.images_per_sec / base.images_per_sec, _lost(row, base)
        color = page.INK if row is base else page.OURS
        axes.plot([1, speed], [0, lost], color="0.75", lw=1, zorder=1)
        axes.plot(speed, lost, "o", ms=7, color=color)
        quartiles = [row.images_per_sec_q1, row.images_per_sec_q3]
        ends = [speed_of / base.images_per_sec for speed_of in quartiles]
        axes.plot(ends, [lost, lost], color=color, lw=1)
        points.append((speed, lost, f"{row.precision}, {speed:.2f}\u00d7"))
    axes.axhline(0, **page.DASHED)
    axes.set_xlim(0.7, 1.5 * max(speed for speed, _, _ in points))
    axes.set_xlabel(f"speed over {base.precision}")
    axes.set_ylabel("points of accuracy lost (downwards)")
    worst = max(0.1, *(abs(lost) for _, lost, _ in points))
    axes.set_ylim(1.35 * worst, -1.35 * worst)
    axes.set_title("weights as trained")
    page.beside(axes, points)


def _outlier(
    axes: Axes, rows: Sequence[PrecisionRecord], base: PrecisionRecord
) -> None:
    """Points lost with one channel stretched, and with all channels equalised."""
    shown = [p for p in INT8 if any(row.precision == p for row in rows)]
    points = []
    for precision in shown:
        lost = {r.weights: _lost(r, base) for r in rows if r.precision == precision}
        ends = [
            (k, lost[w]) for k, w in enumerate(("stretched", "equalised")) if w in lost
        ]
        axes.plot(*zip(*ends), **page.look(shown.index(precision), ls="-"))
        points.append((*ends[0], f"{precision}: {ends[0][1]:.1f}"))
    axes.axhline(0, **page.DASHED)
    axes.set_xticks((0, 1), ("one channel\nstretched", "channels\nequalised"))
    axes.set(xlim=(-1.1, 1.25), ylabel="points of accuracy lost (downwards)")
    axes.invert_yaxis()  # before the labels are placed
    axes.set_title("an outlier, and its remedy")
    page.beside(axes, points, left=True)


def _lost(row: PrecisionRecord, base: PrecisionRecord) -> float:
    return 100 * (base.test_acc - row.test_acc)
