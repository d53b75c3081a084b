"""A network in lower precisions: accuracy lost against speed, layers, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import precision_table, wording
from d2lpar.records.files import run_name
from d2lpar.records.kinds import INT8, PrecisionRecord, Run

MOST_KINDS = 4  # of operators that are told apart; the others are one
INKS = (page.OURS, "#E69F00", "#003A5C", "#56B4E9", "0.7")


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """``<run>-precision`` and ``<run>-layers``, ``<stem>-results.txt`` with all tables.

    Raises :class:`RecordError` for a run in which no precision of the trained network
    could be measured.
    """
    for run in runs:
        if not _trained(precision_table.merged(run.of(PrecisionRecord))):
            raise RecordError(f"{wording.where(run)}: holds no measured precision")
    drawn: dict[str, Figure | str] = {}
    for run in runs:
        rows = precision_table.merged(run.of(PrecisionRecord))
        drawn[f"{run_name(run.header)}-precision"] = _picture(run, rows)
        if any(_trained(rows, with_layers=True)):
            drawn[f"{run_name(run.header)}-layers"] = _layers(run, rows)
    drawn[f"{stem}-results"] = "\n".join(
        f"{wording.devices(run.header)}\n{wording.provenance([run])}\n\n"
        f"{precision_table.table(run.of(PrecisionRecord))}"
        for run in runs
    )
    return page.save(drawn, folder)


def _trained(
    rows: Sequence[PrecisionRecord], *, with_layers: bool = False
) -> list[PrecisionRecord]:
    """The measured rows of the weights as they were trained."""
    found = [row for row in rows if row.weights == "trained" and row.supported]
    return [row for row in found if row.operator_ms] if with_layers else found


def _workload(run: Run, what: str) -> str:
    name = wording.data_name(run.header)
    return wording.subtitle(f"LeNet on {name}, {what}", [run])


def _picture(run: Run, rows: Sequence[PrecisionRecord]) -> Figure:
    """Points of accuracy lost against the speed, both over float32."""
    trained = _trained(rows)
    base = precision_table.baseline(rows) or trained[0]
    mended = [row for row in rows if row.weights != "trained" and row.supported]
    refused = [row for row in rows if not row.supported]
    not_here = ", ".join(dict.fromkeys(row.precision for row in refused))
    picture = page.new(
        _title(trained, base),
        _workload(run, f"{base.images_per_sec:,.0f} images/s in {base.precision}"),
        f"Medians of {base.n} passes over the test images"
        f"{', whiskers: quartiles' * (base.n > 1)}. "
        f"{f'Not supported here: {not_here}. ' if not_here else ''}"
        f"{wording.stamp([run.header])}",
        panels=2 if mended else 1,
        size=(10.8 if mended else page.WIDE, page.TALL),
        **({"width_ratios": [1.35, 1]} if mended else {}),
    )
    _slopes(picture.axes[0], trained, base)
    if mended:
        _outlier(picture.axes[1], mended, base)
    return picture.figure


def _title(trained: Sequence[PrecisionRecord], base: PrecisionRecord) -> str:
    fastest = max(trained, key=lambda row: row.images_per_sec)
    if fastest is base:
        return f"{base.precision} is the fastest: accuracy {base.test_acc:.4f}"
    speed = fastest.images_per_sec / base.images_per_sec
    lost = 100 * (base.test_acc - fastest.test_acc)
    change = f"loses {lost:.2f}" if lost >= 0 else f"gains {-lost:.2f}"
    return (
        f"{fastest.precision} is {speed:.2g} times as fast as {base.precision} and "
        f"{change} points of accuracy"
    )


def _slopes(
    axes: Axes, trained: Sequence[PrecisionRecord], base: PrecisionRecord
) -> None:
    """A line from float32 to each precision, labelled at its end."""
    labels = []
    for row in trained:
        speed, lost = row.images_per_sec / base.images_per_sec, _lost(row, base)
        color = page.INK if row is base else page.OURS
        axes.plot([1, speed], [0, lost], color="0.75", lw=1, zorder=1)
        axes.plot(speed, lost, "o", ms=7, color=color)
        ends = (row.images_per_sec_q1, row.images_per_sec_q3)
        # Of a record whose quartiles do not enclose the median nothing is drawn.
        below, above = (max(0, sign * (row.images_per_sec - end)) / base.images_per_sec
                        for sign, end in zip((1, -1), ends))  # fmt: skip
        spread = [[below], [above]]
        axes.errorbar(speed, lost, xerr=spread, color=color, lw=1)
        words = row.precision if row is base else f"{row.precision}, {speed:.2f}\u00d7"
        labels.append((speed, lost, words))
    axes.axhline(0, **page.DASHED)
    axes.set_xlim(0.7, 1.35 * max(x for x, _, _ in labels))
    axes.set_xlabel(f"speed, in that of {base.precision}")
    axes.set_ylabel("points of accuracy lost (downwards)")
    worst = max(0.1, *(abs(y) for _, y, _ in labels))
    axes.set_ylim(1.35 * worst, -1.35 * worst)
    axes.set_title("weights as trained")
    page.beside(axes, labels)


def _outlier(
    axes: Axes, rows: Sequence[PrecisionRecord], base: PrecisionRecord
) -> None:
    """Points lost with one channel stretched, and with all channels equalised."""
    shown = [p for p in INT8 if any(row.precision == p for row in rows)]
    labels = []
    for precision in shown:
        lost = {r.weights: _lost(r, base) for r in rows if r.precision == precision}
        ends = [
            (k, lost[w]) for k, w in enumerate(("stretched", "equalised")) if w in lost
        ]
        axes.plot(*zip(*ends), **page.look(shown.index(precision), ls="-"))
        labels.append((*ends[0], f"{precision}: {ends[0][1]:.1f}"))
    axes.axhline(0, **page.DASHED)
    axes.set_xticks((0, 1), ("one channel\nstretched", "channels\nequalised"))
    axes.set(xlim=(-1.1, 1.25), ylabel="points of accuracy lost (downwards)")
    axes.invert_yaxis()  # before the labels are placed
    axes.set_title("an outlier, and its remedy")
    page.beside(axes, labels, left=True)


def _lost(row: PrecisionRecord, base: PrecisionRecord) -> float:
    return 100 * (base.test_acc - row.test_acc)


def _layers(run: Run, rows: Sequence[PrecisionRecord]) -> Figure:
    """Milliseconds of the operators for one batch, stacked, the fastest first."""
    shown = _trained(rows, with_layers=True)
    shown.sort(key=lambda row: sum(row.operator_ms.values()))
    kinds = _kinds(shown)
    picture = page.new(
        _layers_title(shown),
        _workload(run, f"a batch of {shown[0].per_device_batch_size}"),
        "Milliseconds of each kind of operator, run one by one. "
        f"{wording.stamp([run.header])}",
        size=(page.WIDE, 1.2 + 0.46 * len(shown)),
    )
    (axes,) = picture.axes
    for k, row in enumerate(shown):
        left = 0.0
        for kind, ink in zip(kinds, INKS):
            width = sum(
                ms for name, ms in row.operator_ms.items() if _kind(name) == kind
            )
            if kind == kinds[-1]:
                width = sum(row.operator_ms.values()) - left
            axes.barh(k, width, 0.6, left, color=ink, label=kind if k == 0 else None,
                      edgecolor="white", lw=0.6)  # fmt: skip
            left += width
        place = {"textcoords": "offset points", "va": "center"}
        axes.annotate(f"{wording.number(left)} ms", (left, k), (6, 0), **place)
    axes.set_yticks(range(len(shown)), [row.precision for row in shown])
    axes.grid(False)
    axes.margins(x=0.15)
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel="milliseconds")
    page.key(picture)
    return picture.figure


def _kind(name: str) -> str:
    """What an operator does, by its name in MXNet."""
    for word, kind in (
        ("requantize", "requantize"),
        ("conv", "convolution"),
        ("pooling", "pooling"),
        ("fully", "dense"),
    ):
        if word in name.lower():
            return kind
    return "other"


def _kinds(shown: Sequence[PrecisionRecord]) -> list[str]:
    """The kinds of operators that take longest, and "other"."""
    total: dict[str, float] = {}
    for row in shown:
        for name, ms in row.operator_ms.items():
            total[_kind(name)] = total.get(_kind(name), 0.0) + ms
    total.pop("other", None)
    return [*sorted(total, key=total.get, reverse=True)[:MOST_KINDS], "other"]


def _layers_title(shown: Sequence[PrecisionRecord]) -> str:
    slowest = shown[-1]
    first, *_ = sorted(slowest.operator_ms, key=slowest.operator_ms.get, reverse=True)
    whole = sum(slowest.operator_ms.values()) or 1.0
    share = slowest.operator_ms[first] / whole
    what = _kind(first).capitalize()
    return f"{what} takes {share:.0%} of the time in {slowest.precision}"
