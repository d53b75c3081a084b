"""Scaling studies: where more devices pay, the step's time and parts, all-reduce.

The map shows the speedup by global batch and device count, the break-even line drawn
in, predicted rows hatched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records.kinds import PARTS, AllReduceRecord, Run, ScaledEpoch
from d2lpar.records.scaling_table import (
    ALL_REDUCE,
    Study,
    all_reduces,
    parts,
    results,
    studies,
    trainings,
)
from d2lpar.records.step_model import break_even
from d2lpar.records.timing_table import each
from d2lpar.records.wording import number, plural

BATCH = "global batch size (samples per step, all devices together)"
NAMES = {
    "scratch": "from scratch",
    "ddp": "PyTorch's DistributedDataParallel",
    "d2l": "the book's loop in PyTorch",
}  # of implementations; others are called what the record calls them


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """All pictures and ``<stem>-results.txt``; return the files.

    ``<stem>-map-<implementation>`` needs runs on one device and on more.
    """
    drawn, found = {}, studies(runs)
    for study in found:
        if len(study.counts) > 1 and 1 in study.counts:
            drawn[f"map-{study.name}"] = _map(study)
        drawn[f"steps-{study.name}"] = _steps(study)
        if trainings(study):
            drawn[f"accuracy-{study.name}"] = _accuracy(study)
    if any(parts(study) for study in found):
        drawn["parts"] = _parts(found, runs)
    if all_reduces(runs):
        drawn["all-reduce"] = _all_reduce(runs)
    drawn["results"] = results(runs)
    return page.save(drawn, folder, stem)


def _map(study: Study) -> Figure:
    """Speedup over one device by global batch (across) and devices (up)."""
    counts, batches = [*study.counts[1:], *study.predicted], study.batches
    picture = page.new(
        study.runs,
        f"When does a second device pay? {_name(study)}",
        "Numbers: median seconds of a step on 1 device over those on N, same global "
        "batch (strong scaling); blue: faster than 1 device, orange: slower. "
        f"{_measured(study)}",
        keys=["break-even: as fast as 1 device; left of it more devices are slower"],
        ticks=[f"{batch:,}" for batch in batches],
    )
    (axes,) = picture.axes
    points = []
    for row, n in enumerate(counts):
        is_predicted = n in study.predicted
        if is_predicted:
            speedups = {b: study.model.speedup(n, b) for b in batches if b >= n}
            at = study.model.break_even(n)
        else:
            speedups = study.speedups_of(n)
            at = break_even(speedups)
        for batch, speedup in speedups.items():
            _cell(axes, (batches.index(batch), row), speedup, max(counts), is_predicted)
        if at is not None:
            logs, beside = np.log(batches), {"left": -0.5, "right": len(batches) - 0.5}
            x = np.interp(math.log(max(at, 1e-9)), logs, range(len(batches)), **beside)
            points += [(x, row - 0.5), (x, row + 0.5)]
    line = axes.plot(*zip(*points), color="black", lw=2.2) if points else []
    axes.set(xlim=(-0.55, len(batches) - 0.45), ylim=(-0.5, len(counts) - 0.5))
    names = [f"{n}*" if n in study.predicted else str(n) for n in counts]
    axes.set_yticks(range(len(counts)), names)
    axes.grid(False)
    devices = "devices (*: predicted)" if study.predicted else "devices"
    axes.set(xlabel=BATCH, ylabel=devices)
    return picture.legend(line)


def _cell(
    axes: Axes, at: tuple[int, int], speedup: float, top: int, is_predicted: bool
) -> None:
    """A square of the map: orange below 1, white at 1, blue above."""
    ends = [page.COLORS[1], "#f7f7f7", page.COLORS[0]]  # for colour-blind eyes
    share = TwoSlopeNorm(1, 0, max(2, top))(min(speedup, top))
    face = LinearSegmentedColormap.from_list("pays", ends)(share)
    hatch = "////" if is_predicted else None
    axes.bar(at[0], 1, 1, at[1] - 0.5, color=face, edgecolor="white", hatch=hatch, lw=1)
    luminance = 0.3 * face[0] + 0.59 * face[1] + 0.11 * face[2]
    axes.text(
        *at, f"{speedup:.2f}", ha="center", va="center", size=7.5,
        color="white" if luminance < 0.55 else "black",
        style="italic" if is_predicted else "normal",
        bbox={"facecolor": face, "edgecolor": "none", "pad": 0.6},
    )  # fmt: skip


def _steps(study: Study) -> Figure:
    """Milliseconds per step against batch: measured points and the model's lines."""
    counts, model = [*study.counts, *study.predicted], study.model
    picture = page.new(
        study.runs,
        f"A step: model and measurement, {_name(study)}",
        f"Points: medians; whiskers: quartiles. {_formula(study)}{_measured(study)}",
        keys=[
            plural(n, "device") + ", predicted" * (n in study.predicted) for n in counts
        ],
    )
    (axes,) = picture.axes
    lines = []
    for k, n in enumerate(counts):
        style = page.look(k, lw=1.3)
        batches = [b for b in study.batches if (n, b) in study.records]
        if batches:
            summaries = [study.milliseconds(n, batch) for batch in batches]
            medians, spread = [s.median for s in summaries], page.quartiles(summaries)
            axes.errorbar(batches, medians, spread, capsize=2, **{**style, "ls": ""})
        else:
            style["marker"], batches = "", [b for b in study.batches if b >= n]
        if model is None:
            style["ls"] = ""
        else:
            times = [1e3 * model.seconds(n, batch) for batch in batches]
            axes.plot(batches, times, **{**style, "marker": ""})
        lines += axes.plot([], [], **style)  # for the legend: points on a line
    few = max(study.steps.values()) < 20 * min(study.steps.values())  # of its decades
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.set_xlabel(BATCH)
    page.log_numbers_up(axes, "milliseconds per step", minor=few)
    return picture.legend(lines)


def _parts(found: Sequence[Study], runs: Sequence[Run]) -> Figure:
    """A stacked bar for each implementation, batch and device count, per sample."""
    bars = [
        (study, key, values) for study in found for key, values in parts(study).items()
    ]
    picture = page.new(
        runs,
        "Where a step's time goes",
        "By leaving out: a step that ends after a part, less one that ends before it; "
        "medians, microseconds divided by the global batch.",
        keys=[
            *PARTS,
            "the whole step, had the devices never to wait for Python",
            "the whole step, if the all-reduce waits for the backward pass to end",
        ],
        ticks=[
            f"{study.name}\nbatch {batch:,}\n{plural(n, 'device')}"
            for study, (n, batch), _ in bars
        ],
    )
    (axes,) = picture.axes
    for place, (_, (_, batch), (by_name, no_python, no_overlap)) in enumerate(bars):
        bottom, lines = 0.0, []
        for k, name in enumerate(PARTS):
            height = 1e6 * by_name[name] / batch
            ink = {"color": page.COLORS[k], "hatch": page.HATCHES[k], "lw": 0.5}
            lines += axes.bar(place, height, 0.6, bottom, edgecolor="white", **ink)
            bottom += height
        ends = [place - 0.4, place + 0.4]
        for seconds, color, ls in ((no_python, "k", "-"), (no_overlap, "0.4", ":")):
            height = [1e6 * seconds / batch] * 2
            lines += axes.plot(ends, height, color=color, lw=2, ls=ls)
    axes.grid(False, axis="x")
    axes.set_ylabel("microseconds per sample of the global batch")
    return picture.legend(lines)


def _all_reduce(runs: Sequence[Run]) -> Figure:
    """Milliseconds against bytes of one array, by variant; LeNet's gradients apart."""
    found = all_reduces(runs)
    counts = sorted({n for n, _, _ in found})
    names = dict.fromkeys(name for row in found.values() for name in row)
    shown = [name for name in names if any(row.get(name) for row in found.values())]
    records = [record for run in runs for record in run.of(AllReduceRecord)]
    absent = {record.variant: record.why_not for record in records if record.why_not}
    said = "".join(f" {name}: {why}." for name, why in absent.items())
    picture = page.new(
        runs,
        "All-reduce: the same sum in several ways",
        "Medians, results checked. Left: one array. Right: the gradients of LeNet, as "
        "the 8 arrays that they are and as one. Trained with: book (from scratch), "
        f"{ALL_REDUCE['concise']} (concise).{said}",
        panels=2,
        keys=[f"{name}, {plural(n, 'device')}" for n in counts for name in shown],
        ticks=[f"{what}\n{n} dev." for n in counts for what in ("8 arrays", "1 array")],
    )
    left, right = picture.axes
    lines = []
    for c, n in enumerate(counts):
        # LeNet's gradients: all arrays of them, and one array with as many bytes.
        lenet = {size for m, arrays, size in found if m == n and arrays > 1}
        keys = sorted(key for key in found if key[0] == n)
        for k, name in enumerate(shown):
            style = page.look(k, ls=page.LINES[c % len(page.LINES)])
            points = [
                (key[2], 1e3 * median(found[key][name]))
                for key in keys
                if key[2] not in lenet and found[key].get(name)
            ]
            lines += left.plot(*np.reshape(points, (-1, 2)).T, **style)
            for key in keys:
                if key[2] in lenet and found[key].get(name):
                    x = 2 * c + (key[1] == 1) + 0.09 * (k - len(shown) / 2)
                    right.plot(x, 1e3 * median(found[key][name]), **style)
    if _has_points(left):
        page.bytes_along(left, "size of the array on each device")
    for axes in filter(_has_points, picture.axes):
        page.log_numbers_up(axes, "milliseconds")
    right.set_xlim(-0.6, 2 * len(counts) - 0.4)
    return picture.legend(lines)


def _has_points(axes: Axes) -> bool:  # a logarithmic axis without one cannot be drawn
    return any(len(line.get_xdata()) for line in axes.lines)


def _accuracy(study: Study) -> Figure:
    """Test accuracy against epoch and against seconds, weak scaling."""
    found = trainings(study)
    picture = page.new(
        study.runs,
        f"Weak scaling: accuracy, {_name(study)}",
        "The same batch on every device; the learning rate grows with the global "
        "batch, and is warmed up (Goyal et al. 2017).",
        panels=2,
        keys=[
            f"{plural(n, 'device')} x {batch // n:,} = global batch {batch:,}, lr "
            f"{epochs[-1].lr:.3g}: {_end(epochs[-1])}"
            for (n, batch), epochs in found.items()
        ],
    )
    left, right = picture.axes
    lines = []
    for k, epochs in enumerate(found.values()):
        done = [epoch for epoch in epochs if epoch.test_acc is not None]
        accuracies = [epoch.test_acc for epoch in done]
        seconds = list(itertools.accumulate(epoch.seconds for epoch in done))
        lines += left.plot([epoch.epoch for epoch in done], accuracies, **page.look(k))
        right.plot(seconds, accuracies, **page.look(k))
    for axes, name in zip(picture.axes, ("epoch", "seconds of training")):
        axes.set(xlim=(0, None), ylim=(0, 1), xlabel=name, ylabel="test accuracy")
    return picture.legend(lines)


def _end(epoch: ScaledEpoch) -> str:
    if epoch.why_not:
        return f"diverged in epoch {epoch.epoch}"
    return f"accuracy {epoch.test_acc:.3f}"


def _name(study: Study) -> str:
    return NAMES.get(study.name, study.name)


def _formula(study: Study) -> str:
    if study.model is None:
        return ""
    model = study.model
    words = (
        f"{'N x ' if model.one_python else ''}{number(1e3 * model.fixed)} ms + "
        f"{number(1e6 * model.per_sample)} \u00b5s x batch / N"
    )
    if model.all_reduce is not None:
        words += f" + (N - 1) x {number(1e3 * model.all_reduce_seconds(2))} ms"
    return f"Lines: {words}, fitted. "


def _measured(study: Study) -> str:
    """What a caption says of the samples, and of what is only predicted."""
    records = [record for same in study.records.values() for record in same]
    samples = each(len(record.seconds) for record in records)
    steps = each(record.steps for record in records)
    predicted = "Predicted rows and lines: by the model, N cores or GPUs not present. "
    return (
        f"{predicted * bool(study.predicted)}Each median of {samples} samples of "
        f"{steps} steps in a row, after a warm-up."
    )
