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
from typing import TYPE_CHECKING

from d2lpar.figures.page import (
    COLORS,
    HATCHES,
    LINES,
    bytes_along,
    log_numbers_up,
    look,
    new_page,
    plain_style,
    quartiles,
    save,
)
from d2lpar.records import wording
from d2lpar.records.kinds import PARTS, AllReduceRecord, Run, StepRecord
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
from d2lpar.records.summary import summarize
from d2lpar.records.timing_table import each
from d2lpar.records.wording import number, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH = "global batch size (samples per step, all devices together)"
NAMES = {
    "scratch": "from scratch",
    "ddp": "PyTorch's DistributedDataParallel",
    "d2l": "the book's loop in PyTorch",
}  # of implementations; others are called what the record calls them


@plain_style()
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
    return save({f"{stem}-{name}": figure for name, figure in drawn.items()}, folder)


def _map(study: Study) -> Figure:
    """Speedup over one device by global batch (across) and devices (up)."""
    counts, batches = [*study.counts[1:], *study.predicted], study.batches
    page = new_page(
        wording.title(f"When does a second device pay? {_name(study)}", study.runs),
        "Numbers: median seconds of a step on 1 device over those on N, same global "
        "batch (strong scaling); blue: faster than 1 device, orange: slower. "
        f"{_predicted(study)}{_samples(study)} {wording.provenance(study.runs)}",
        keys=["break-even: as fast as 1 device; left of it more devices are slower"],
        ticks=[f"{batch:,}" for batch in batches],
    )
    (axes,) = page.axes
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
            x = _place(batches, at)
            points += [(x, row - 0.5), (x, row + 0.5)]
    line = axes.plot(*zip(*points), color="black", lw=2.2) if points else []
    axes.set_xlim(-0.55, len(batches) - 0.45)
    axes.set_ylim(-0.5, len(counts) - 0.5)
    names = [f"{n}*" if n in study.predicted else str(n) for n in counts]
    axes.set_yticks(range(len(counts)), names)
    axes.grid(False)
    axes.set_xlabel(BATCH)
    axes.set_ylabel("devices" + " (*: predicted)" * bool(study.predicted))
    page.legend(line)
    return page.figure


def _cell(
    axes: Axes, at: tuple[int, int], speedup: float, top: int, is_predicted: bool
) -> None:
    """A square of the map: orange below 1, white at 1, blue above."""
    from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm

    ends = [COLORS[1], "#f7f7f7", COLORS[0]]  # told apart by colour-blind eyes
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


def _place(batches: Sequence[int], at: float) -> float:
    """Where a batch stands among the columns, between two of them as a rule."""
    logs = [math.log(b) for b in batches]
    for k, (low, high) in enumerate(zip(logs, logs[1:])):
        if low <= math.log(max(at, 1e-9)) < high:
            return k + (math.log(at) - low) / (high - low)
    return -0.5 if at <= batches[0] else len(batches) - 0.5


def _steps(study: Study) -> Figure:
    """Milliseconds per step against batch: measured points and the model's lines."""
    counts, model = [*study.counts, *study.predicted], study.model
    page = new_page(
        wording.title(f"A step: model and measurement, {_name(study)}", study.runs),
        f"Points: medians; whiskers: quartiles. {_formula(study)}{_predicted(study)}"
        f"{_samples(study)} {wording.provenance(study.runs)}",
        keys=[
            plural(n, "device") + ", predicted" * (n in study.predicted) for n in counts
        ],
    )
    (axes,) = page.axes
    lines = []
    for k, n in enumerate(counts):
        style, measured = look(k, lw=1.3), _milliseconds(study, n)
        batches = list(measured) or [b for b in study.batches if b >= n]
        if measured:
            medians = [s.median for s in measured.values()]
            spread = quartiles(list(measured.values()))
            axes.errorbar(batches, medians, spread, capsize=2, **{**style, "ls": ""})
        else:
            style["marker"] = ""
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
    log_numbers_up(axes, "milliseconds per step", minor=few)
    page.legend(lines)
    return page.figure


def _milliseconds(study: Study, n: int) -> dict:
    """By global batch, the summary of the milliseconds per step on n devices."""
    by_batch: dict[int, list[float]] = {}
    for run in study.runs:
        for record in run.of(StepRecord) if run.header.num_devices == n else ():
            samples = by_batch.setdefault(record.global_batch_size, [])
            samples += [1e3 * seconds for seconds in record.seconds]
    return {batch: summarize(by_batch[batch]) for batch in sorted(by_batch)}


def _parts(found: Sequence[Study], runs: Sequence[Run]) -> Figure:
    """A stacked bar for each implementation, batch and device count, per sample."""
    bars = [
        (study, key, values) for study in found for key, values in parts(study).items()
    ]
    page = new_page(
        wording.title("Where a step's time goes", runs),
        "By leaving out: a step that ends after a part, less one that ends before it; "
        "medians, microseconds divided by the global batch. "
        f"{wording.provenance(runs)}",
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
    (axes,) = page.axes
    for place, (_, (_, batch), (by_name, no_python, no_overlap)) in enumerate(bars):
        bottom, lines = 0.0, []
        for k, name in enumerate(PARTS):
            height = 1e6 * by_name[name] / batch
            ink = {"color": COLORS[k], "hatch": HATCHES[k], "edgecolor": "white"}
            lines += axes.bar(place, height, 0.6, bottom, lw=0.5, **ink)
            bottom += height
        ends = [place - 0.4, place + 0.4]
        for seconds, color, ls in ((no_python, "k", "-"), (no_overlap, "0.4", ":")):
            height = [1e6 * seconds / batch] * 2
            lines += axes.plot(ends, height, color=color, lw=2, ls=ls)
    axes.grid(False, axis="x")
    axes.set_ylabel("microseconds per sample of the global batch")
    page.legend(lines)
    return page.figure


def _all_reduce(runs: Sequence[Run]) -> Figure:
    """Milliseconds against bytes of one array, by variant; LeNet's gradients apart."""
    found = all_reduces(runs)
    counts = sorted({n for n, _, _ in found})
    names = dict.fromkeys(name for row in found.values() for name in row)
    shown = [name for name in names if any(row.get(name) for row in found.values())]
    absent = {
        record.variant: record.why_not
        for run in runs
        for record in run.of(AllReduceRecord)
        if record.why_not
    }
    said = "".join(f" {name}: {why}." for name, why in absent.items())
    page = new_page(
        wording.title("All-reduce: the same sum in several ways", runs),
        "Medians, results checked. Left: one array. Right: the gradients of LeNet, as "
        "the 8 arrays that they are and as one. Trained with: book (from scratch), "
        f"{ALL_REDUCE['concise']} (concise).{said} {wording.provenance(runs)}",
        panels=2,
        keys=[f"{name}, {plural(n, 'device')}" for n in counts for name in shown],
        ticks=[f"{what}\n{n} dev." for n in counts for what in ("8 arrays", "1 array")],
    )
    left, right = page.axes
    lines = []
    for c, n in enumerate(counts):
        # LeNet's gradients: all arrays of them, and one array with as many bytes.
        lenet = [key for key in found if key[0] == n and key[1] > 1]
        lenet += [key for key in found if (n, key[2]) in {(m, b) for m, _, b in lenet}
                  and key[:2] == (n, 1)]  # fmt: skip
        sizes = sorted(key for key in found if key[0] == n and key not in lenet)
        for k, name in enumerate(shown):
            style = look(k, ls=LINES[c % len(LINES)])
            points = [
                (key[2], 1e3 * median(found[key][name]))
                for key in sizes
                if found[key].get(name)
            ]
            lines += left.plot(*(zip(*points) if points else ([], [])), **style)
            for key in lenet:
                if found[key].get(name):
                    x = 2 * c + (key[1] == 1) + 0.09 * (k - len(shown) / 2)
                    right.plot(x, 1e3 * median(found[key][name]), **style)
    bytes_along(left, "size of the array on each device")
    for axes in page.axes:
        log_numbers_up(axes, "milliseconds")
    right.set_xlim(-0.6, 2 * len(counts) - 0.4)
    page.legend(lines)
    return page.figure


def _accuracy(study: Study) -> Figure:
    """Test accuracy against epoch and against seconds, weak scaling."""
    found = trainings(study)
    page = new_page(
        wording.title(f"Weak scaling: accuracy, {_name(study)}", study.runs),
        "The same batch on every device; the learning rate grows with the global "
        "batch, and is warmed up (Goyal et al. 2017). "
        f"{wording.provenance(study.runs)}",
        panels=2,
        keys=[
            f"{plural(n, 'device')} x {batch // n:,} = global batch {batch:,}, lr "
            f"{epochs[-1].lr:.3g}: {_end(epochs)}"
            for (n, batch), epochs in found.items()
        ],
    )
    left, right = page.axes
    lines = []
    for k, epochs in enumerate(found.values()):
        done = [epoch for epoch in epochs if epoch.test_acc is not None]
        accuracies = [epoch.test_acc for epoch in done]
        seconds = list(itertools.accumulate(epoch.seconds for epoch in done))
        lines += left.plot([epoch.epoch for epoch in done], accuracies, **look(k))
        right.plot(seconds, accuracies, **look(k))
    for axes, name in zip(page.axes, ("epoch", "seconds of training")):
        axes.set(ylim=(0, 1), xlabel=name, ylabel="test accuracy")
        axes.set_xlim(left=0)
    page.legend(lines)
    return page.figure


def _end(epochs: Sequence) -> str:
    if epochs[-1].why_not:
        return f"diverged in epoch {epochs[-1].epoch}"
    return f"accuracy {epochs[-1].test_acc:.3f}"


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


def _predicted(study: Study) -> str:
    if not study.predicted:
        return ""
    return "Predicted rows and lines: by the model, N cores or GPUs not present here. "


def _samples(study: Study) -> str:
    records = [record for run in study.runs for record in run.of(StepRecord)]
    samples = each(len(record.seconds) for record in records)
    steps = each(record.steps for record in records)
    return (
        f"Each median of {samples} samples of {steps} steps in a row, after a warm-up."
    )
