"""TODO: one idea."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from d2lpar.errors import RecordError
from d2lpar.figures.page import (
    COLORS,
    HATCHES,
    LINES,
    MARKERS,
    mark_seams,
    new_page,
    plain_style,
    save,
)
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run, Sample, group, timed_epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


def draw(
    runs: Sequence[Run],
    folder: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """``<stem>-accuracy``, ``-seconds`` and, of several runs, ``-speedup``."""
    runs = _one_a_count(runs)
    with plain_style():
        pictures = {"accuracy": _accuracy(runs), **times(runs)}
        return save({f"{stem}-{name}": fig for name, fig in pictures.items()}, folder)


def times(runs: Sequence[Run]) -> dict[str, Figure]:
    """The seconds per epoch and, of several runs, the speedup."""
    pictures = {"seconds": _seconds(runs)}
    if len(runs) > 1:
        pictures["speedup"] = _speedup(runs)
    return pictures


def _one_a_count(runs: Sequence[Run]) -> list[Run]:
    """The runs by ascending device count, after the checks that `draw` promises."""
    for run in runs:
        comparison.check(run)
    for count, same in group(runs, lambda run: run.header.num_devices).items():
        if len(same) > 1:
            raise RecordError(
                f"{wording.where(same[0])} and {wording.where(same[1])}: both are of "
                f"{wording.plural(count, 'device')}; draw one of them, or compare them"
            )
    for run in runs[1:]:
        if run.header.dataset_sha256 != runs[0].header.dataset_sha256:
            raise RecordError(
                f"{wording.where(runs[0])} and {wording.where(run)}: were trained on "
                "different data; compare them instead"
            )
    return sorted(runs, key=lambda run: run.header.num_devices)


# Pictures


def _accuracy(runs: Sequence[Run]) -> Figure:
    watched = any(run.of(Sample) for run in runs)
    page = new_page(
        wording.title("Test accuracy", runs),
        f"{wording.reading_curves(runs)} {wording.reading_seams(runs)}"
        f"{BUSY if watched else ''}{wording.provenance(runs)}",
        keys=[f"{wording.devices(run.header)}{_final(run)}" for run in runs],
        strip=watched,
    )
    page.legend(_curves(page.axes[0], runs))
    mark_seams(page.axes[0], wording.seams(runs))
    if watched:
        _busy(page.strip, runs)
        page.axes[0].set_xlabel("")
        page.axes[0].set_xlim(left=0)  # an epoch's samples lie before its end
    return page.figure


def _seconds(runs: Sequence[Run]) -> Figure:
    page = new_page(
        wording.title("Training time of an epoch", runs),
        f"{wording.reading_bars(runs)} {wording.provenance(runs)}",
        ticks=[
            f"{wording.plural(run.header.num_devices, 'device')}\n"
            f"{wording.threads(run.header)}"
            for run in runs
        ],
    )
    _bars(page.axes[0], runs, page.ticks)
    page.axes[0].set_xlabel("devices trained on")
    return page.figure


def _speedup(runs: Sequence[Run]) -> Figure:
    from matplotlib.ticker import PercentFormatter

    points = comparison.scaling(runs)
    counts = [p.num_devices for p in points]
    base = wording.plural(counts[0], "device")
    ratio = f"N/{counts[0]}" if counts[0] > 1 else "N"
    page = new_page(
        wording.title(f"Speedup over {base}", runs),
        f"Speedup: median seconds per epoch on {base} over those on N. Parallel "
        f"efficiency: speedup over {ratio}. Whiskers: what the quartiles of both leave "
        f"room for. {wording.epochs_timed(runs)} {wording.provenance(runs)}",
        panels=2,
        keys=(f"ideal: {ratio} (left), 100% (right)", "measured"),
    )
    left, right = page.axes
    dashed = {"color": "0.35", "ls": LINES[1], "lw": 1.2}
    left.set_ylim(0, 1.1 * max(max(p.ideal, p.spread[1]) for p in points))
    lines = left.plot(counts, [p.ideal for p in points], **dashed)
    values, bounds = [p.speedup for p in points], [p.spread for p in points]
    lines += _ratios(left, counts, values, bounds, "{:.2f}\u00d7")
    left.set_ylabel(f"speedup over {base} (times)")
    right.set_ylim(0, 1.1 * max(1, *(p.efficiency_spread[1] for p in points)))
    right.axhline(1, **dashed)
    values = [p.efficiency for p in points]
    _ratios(right, counts, values, [p.efficiency_spread for p in points], "{:.0%}")
    right.yaxis.set_major_formatter(PercentFormatter(1, symbol=None))
    right.set_ylabel("parallel efficiency (%)")
    span = counts[-1] - counts[0]
    for axes in page.axes:
        axes.set_xticks(counts)
        axes.set_xlim(counts[0] - 0.07 * span, counts[-1] + 0.2 * span)
        axes.set_xlabel("number of devices N")
    page.legend(lines)
    return page.figure


# Their parts


def _curves(axes: Axes, runs: Sequence[Run]) -> list[Line2D]:
    """Test accuracy against epoch: the median of the repeats in the band of all."""
    from matplotlib.ticker import MaxNLocator

    lines, last = [], 1
    for k, run in enumerate(runs):
        by_epoch = comparison.accuracy_by_epoch(run)
        epochs, color = list(by_epoch), COLORS[k % len(COLORS)]
        last = max(last, *epochs)
        # Data-parallel training is to give the *same* curve on every device count, so
        # later ones are thinner, broken and marked smaller: the first shows through.
        lines += axes.plot(
            epochs,
            [median(values) for values in by_epoch.values()],
            color=color,
            ls=LINES[k % len(LINES)],
            lw=max(1.2, 2.6 - 0.5 * k),
            marker=MARKERS[k % len(MARKERS)],
            ms=max(3.5, 9 - 3 * k),
            mfc="white" if k == 0 else color,
            markevery=max(1, len(epochs) // 20),
            clip_on=False,
            zorder=3 + k,
        )
        if any(len(values) > 1 for values in by_epoch.values()):
            low = [min(values) for values in by_epoch.values()]
            high = [max(values) for values in by_epoch.values()]
            axes.fill_between(epochs, low, high, color=color, alpha=0.18, lw=0)
    pad = max(0.3, 0.03 * last)
    axes.set_xlim(1 - min(pad, 0.9), last + pad)  # there is no epoch 0
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylim(0, 1)
    axes.set_xlabel("epoch")
    axes.set_ylabel("test accuracy (share of test images)")
    return lines


BUSY = (
    "Below: how busy all usable cores, or the GPUs of the run, were; dots: samples, "
    "those of an epoch side by side. "
)


def _busy(axes: Axes, runs: Sequence[Run]) -> None:
    """How busy the devices were while each epoch was under way."""
    for k, run in enumerate(runs):
        by_epoch = group(run.of(Sample), lambda s: (s.repeat, s.epoch))
        points = [
            (epoch - 1 + (i + 0.5) / len(same), comparison.busy_percent(sample, run))
            for (_, epoch), same in by_epoch.items()
            for i, sample in enumerate(same)
        ]
        told = [point for point in points if point[1] is not None]
        marks = {"ls": "", "marker": MARKERS[k % len(MARKERS)], "ms": 2.5}
        axes.plot(*zip(*told), color=COLORS[k % len(COLORS)], alpha=0.6, **marks)
    axes.set_ylim(0, 105)
    axes.set_yticks((0, 50, 100))
    axes.set_xlabel("epoch")
    axes.set_ylabel("busy (%)")


def _bars(axes: Axes, runs: Sequence[Run], labels: Sequence[str]) -> None:
    """Seconds per epoch: median bars, quartile whiskers, a dot an epoch, the value."""
    top = max(e.seconds for run in runs for e in timed_epochs(run))
    for k, run in enumerate(runs):
        color, s = COLORS[k % len(COLORS)], comparison.seconds_per_epoch(run)
        samples = [e.seconds for e in timed_epochs(run)]
        ink = {"edgecolor": color, "hatch": HATCHES[k % len(HATCHES)], "lw": 1.2}
        axes.bar(k, s.median, width=0.62, color=_pale(color), **ink)
        # Side by side in the order of time, and clear of the whiskers: nothing hides.
        offsets = [0.44 * (i + 0.5) / s.n - 0.22 for i in range(s.n)]
        clear = 0.06 if s.n > 1 else 0.0
        places = [k + x + (clear if x >= 0 else -clear) for x in offsets]
        dot = {"ms": 3.2 if s.n <= 30 else 2.0, "mfc": "white", "mew": 0.6}
        many = s.n > 400  # an SVG of thousands of circles is megabytes
        axes.plot(places, samples, "o", mec="black", zorder=4, rasterized=many, **dot)
        if s.n > 1:
            _whiskers(axes, k, s.median, s.q1, s.q3, "black")
        axes.annotate(
            f"{wording.number(s.median)} s\nn = {s.n}",
            (k, max(samples)),
            (0, 5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            linespacing=1.15,
        )
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.set_xticks(range(len(runs)))
    axes.set_xticklabels(labels)
    axes.tick_params(axis="x", length=0)
    axes.grid(False, axis="x")
    axes.set_ylim(0, top * 1.22)
    axes.set_ylabel("training time (seconds per epoch)")


def _ratios(
    axes: Axes,
    counts: Sequence[int],
    values: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    text: str,
) -> list[Line2D]:
    """Measured ratios with whiskers and values; the first one is the base."""
    line = axes.plot(counts, values, "-o", color=COLORS[0], lw=1.8, ms=6, zorder=3)
    for n, value, (low, high) in zip(counts, values, bounds):
        if high > low:
            _whiskers(axes, n, value, low, high, COLORS[0])
    room, written = 0.15 * (counts[-1] - counts[0]), float("inf")
    for k in range(len(counts) - 1, 0, -1):
        if written - counts[k] < room:
            continue  # it would run into the next value
        written = counts[k]
        falling = values[k] > values[min(k + 1, len(values) - 1)]
        # Beside the point, on the side that the line does not take and the axis leaves.
        above = falling or values[k] < 0.1 * axes.get_ylim()[1]
        axes.annotate(
            text.format(values[k]),
            (counts[k], values[k]),
            (7, 3 if above else -3),
            textcoords="offset points",
            va="bottom" if above else "top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        )
    return line


def _whiskers(
    axes: Axes, x: float, y: float, low: float, high: float, color: str
) -> None:
    style = {"color": color, "lw": 1.5, "capsize": 4, "fmt": "none", "zorder": 5}
    axes.errorbar(x, y, [[y - low], [high - y]], **style)


def _pale(color: str) -> str:
    """The colour mixed with white, 1 : 2, for an area under a hatch of the colour."""
    parts = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)


def _final(run: Run) -> str:
    if comparison.is_gan(run):
        return f", final distance {comparison.final_quality(run):.3f}"
    return f", final accuracy {comparison.final_accuracy(run):.3f}"
