"""Trainings on several device counts: test accuracy, seconds per epoch, speedup."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run, Sample, group, timed_epochs


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """``<stem>-accuracy``, ``-seconds`` and, of several runs, ``-speedup``."""
    runs = by_device_count(runs)
    return page.save({"accuracy": _accuracy(runs), **times(runs)}, folder, stem)


def by_device_count(runs: Sequence[Run]) -> list[Run]:
    """The runs by ascending device count.

    Raises :class:`RecordError` for runs that do not belong in one picture: without
    epochs, on the same number of devices, or on different data.
    """
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


def times(runs: Sequence[Run]) -> dict[str, Figure]:
    """The pictures "seconds" per epoch and, of several runs, "speedup"."""
    picture = page.new(
        runs,
        "Training time of an epoch",
        wording.reading_bars(runs),
        ticks=[
            f"{wording.plural(run.header.num_devices, 'device')}\n"
            f"{wording.threads(run.header)}"
            for run in runs
        ],
    )
    second_bars(picture.axes[0], runs)
    picture.axes[0].set_xlabel("devices trained on")
    pictures = {"seconds": picture.figure}
    if len(runs) > 1:
        pictures["speedup"] = _speedup(runs)
    return pictures


def second_bars(axes: Axes, runs: Sequence[Run]) -> None:
    """A bar per run: the median of its seconds per epoch."""
    for k, run in enumerate(runs):
        page.median_bar(axes, k, [epoch.seconds for epoch in timed_epochs(run)], "s")
    places = (-0.6, len(runs) - 0.4)
    axes.set(xlim=places, ylabel="training time (seconds per epoch)")


def final(run: Run) -> str:
    """What a key says of the end of a training."""
    if comparison.is_gan(run):
        return f", final distance {comparison.final_quality(run):.3f}"
    return f", final accuracy {comparison.final_accuracy(run):.3f}"


def _accuracy(runs: Sequence[Run]) -> Figure:
    watched = any(run.of(Sample) for run in runs)
    busy = (
        "Below: how busy all usable cores, or the GPUs of the run, were; dots: samples,"
        " those of an epoch side by side."
    )
    picture = page.new(
        runs,
        "Test accuracy",
        f"{wording.reading_curves(runs)} {wording.reading_seams(runs)}{busy * watched}",
        keys=[f"{wording.devices(run.header)}{final(run)}" for run in runs],
        strip=watched,
    )
    picture.legend(accuracy_curves(picture.axes[0], runs))
    if watched:
        _busy(picture.axes[1], runs)
        # An epoch's samples lie before its end.
        picture.axes[0].set(xlabel="", xlim=(0, None))
    return picture.figure


def accuracy_curves(axes: Axes, runs: Sequence[Run]) -> list[Line2D]:
    """Test accuracy against epoch: the median of the repeats in the band of all."""
    lines, last = [], 1
    for k, run in enumerate(runs):
        by_epoch = comparison.accuracy_by_epoch(run)
        epochs, repeats = list(by_epoch), list(by_epoch.values())
        last = max(last, *epochs)
        # Data-parallel training is to give the *same* curve on every device count, so
        # later ones are thinner, broken and marked smaller: the first shows through.
        sizes = {"lw": max(1.2, 2.6 - 0.5 * k), "ms": max(3.5, 9 - 3 * k)}
        style = page.look(k, zorder=3 + k, **sizes)
        style["mfc"] = style["color"] if k else "white"
        style["markevery"] = max(1, len(epochs) // 20)
        lines += axes.plot(epochs, list(map(median, repeats)), clip_on=False, **style)
        if any(len(values) > 1 for values in repeats):
            low, high = list(map(min, repeats)), list(map(max, repeats))
            axes.fill_between(epochs, low, high, color=style["color"], alpha=0.18, lw=0)
    pad = max(0.3, 0.03 * last)
    axes.set_xlim(1 - min(pad, 0.9), last + pad)  # there is no epoch 0
    page.epochs_along(axes, wording.seams(runs))
    axes.set(ylim=(0, 1), ylabel="test accuracy (share of test images)")
    return lines


def _busy(axes: Axes, runs: Sequence[Run]) -> None:
    """How busy the devices were during each epoch."""
    for k, run in enumerate(runs):
        by_epoch = group(run.of(Sample), lambda s: (s.repeat, s.epoch))
        points = [
            (epoch - 1 + (i + 0.5) / len(same), percent)
            for (_, epoch), same in by_epoch.items()
            for i, sample in enumerate(same)
            if (percent := comparison.busy_percent(sample, run)) is not None
        ]
        axes.plot(*zip(*points), **page.look(k, ls="", ms=2.5, alpha=0.6))
    axes.set(ylim=(0, 105), yticks=(0, 50, 100), xlabel="epoch", ylabel="busy (%)")


def _speedup(runs: Sequence[Run]) -> Figure:
    points = comparison.scaling(runs)
    counts = [p.num_devices for p in points]
    base = wording.plural(counts[0], "device")
    ratio = f"N/{counts[0]}" if counts[0] > 1 else "N"
    picture = page.new(
        runs,
        f"Speedup over {base}",
        f"Speedup: median seconds per epoch on {base} over those on N. Parallel "
        f"efficiency: speedup over {ratio}. Whiskers: what the quartiles of both leave "
        f"room for. {wording.epochs_timed(runs)}",
        panels=2,
        keys=(f"ideal: {ratio} (left), 100% (right)", "measured"),
    )
    left, right = picture.axes
    lines = left.plot(counts, [p.ideal for p in points], **page.DASHED)
    speedups = [(p.speedup, *p.spread) for p in points]
    lines += _ratios(left, counts, speedups, "{:.2f}\u00d7")
    left.set_ylabel(f"speedup over {base} (times)")
    right.axhline(100, **page.DASHED)
    shares = ((p.efficiency, *p.efficiency_spread) for p in points)
    percent = [tuple(100 * share for share in three) for three in shares]
    _ratios(right, counts, percent, "{:.0f}%")
    right.set_ylabel("parallel efficiency (%)")
    return picture.legend(lines)


def _ratios(
    axes: Axes,
    counts: Sequence[int],
    ratios: Sequence[tuple[float, float, float]],
    text: str,
) -> list[Line2D]:
    """Ratios as (value, low, high), with whiskers and, where there is room, values."""
    values, lows, highs = zip(*ratios)
    line = axes.plot(counts, values, "-o", color=page.COLORS[0], lw=1.8, ms=6, zorder=3)
    errors = np.abs(np.subtract([lows, highs], values))
    axes.errorbar(counts, values, errors, color=page.COLORS[0], fmt="none", capsize=4)
    span, labelled = counts[-1] - counts[0], float("inf")
    for k in range(len(counts) - 1, 0, -1):  # the first is the base
        if labelled - counts[k] >= 0.15 * span:
            labelled, place = counts[k], {"textcoords": "offset points", "ha": "center"}
            box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
            at = (labelled, highs[k])
            axes.annotate(text.format(values[k]), at, (0, 5), bbox=box, **place)
    axes.margins(x=0.12, y=0.12)
    axes.set(xticks=counts, xlabel="number of devices N", ylim=(0, None))
    return line
