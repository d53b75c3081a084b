"""Scaling records to pictures: the map of the speedup, steps, parts, all-reduce.

The map shows where a second device pays: speedup by global batch and device count, the
break-even line drawn in, predicted rows hatched. Numbers come from
:mod:`d2lpar.records.scaling_table`. Never imports MXNet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from d2lpar.figures.page import (
    COLORS,
    HATCHES,
    LINES,
    MARKERS,
    new_page,
    plain_style,
    save,
)
from d2lpar.records import summary, wording
from d2lpar.records.atomic import replacing
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
from d2lpar.records.wording import number, plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    runs: Sequence[Run],
    out: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Write every picture as PNG and SVG, and ``<stem>-results.txt``; return the files.

    ``<stem>-map-<implementation>`` needs runs on one device and on more.
    """
    with plain_style():
        named = {f"{stem}-{name}": fig for name, fig in pictures(runs).items()}
        table = Path(out) / f"{stem}-results.txt"
        with replacing(table) as tmp:
            tmp.write_text(results(runs), encoding="utf-8")
            return [*save(named, Path(out)), table]


def pictures(runs: Sequence[Run]) -> dict[str, Figure]:
    """By name: "map-", "steps-" of each implementation, "parts", "all-reduce", ..."""
    drawn = {}
    found = studies(runs)
    for study in found:
        if len(study.counts) > 1 and 1 in study.counts:
            drawn[f"map-{study.name}"] = speedup_map(study)
        drawn[f"steps-{study.name}"] = _steps(study)
    if any(parts(study) for study in found):
        drawn["parts"] = _parts(found, runs)
    if all_reduces(runs):
        drawn["all-reduce"] = _all_reduce(runs)
    for study in found:
        if trainings(study):
            drawn[f"accuracy-{study.name}"] = _accuracy(study)
    return drawn


def speedup_map(study: Study) -> Figure:
    """Speedup over one device by global batch (across) and devices (up)."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.patches import Rectangle

    counts = [*study.counts[1:], *study.predicted]
    batches, model = study.batches, study.model
    page = new_page(
        wording.title(f"When does a second device pay? {_name(study)}", study.runs),
        "Numbers: median seconds of a step on 1 device over those on N, same global "
        "batch (strong scaling); blue: faster than 1 device, orange: slower. "
        f"{_predicted(study)}{_samples(study)} {wording.provenance(study.runs)}",
        keys=["break-even: as fast as 1 device; left of it more devices are slower"],
        ticks=[""] * max(7, len(batches)),  # for its width
    )
    (axes,) = page.axes
    axes.set_xticks([])
    measured = {n: study.speedups_of(n) for n in counts}
    top = max(counts)
    norm, colors = TwoSlopeNorm(1, 0, max(2, top)), _diverging()
    points = []
    for row, n in enumerate(counts):
        is_predicted = n in study.predicted
        shown = (
            {b: model.speedup(n, b) for b in batches if b >= n}
            if is_predicted
            else measured[n]
        )
        for batch, speedup in shown.items():
            face = colors(norm(min(speedup, top)))
            box = Rectangle(
                (batches.index(batch) - 0.5, row - 0.5), 1, 1,
                facecolor=face, edgecolor="white",
                hatch="////" if is_predicted else None, lw=1,
            )  # fmt: skip
            axes.add_patch(box)
            dark = 0.3 * face[0] + 0.59 * face[1] + 0.11 * face[2] < 0.55  # luminance
            axes.text(
                batches.index(batch), row, f"{speedup:.2f}",
                ha="center", va="center", size=7.5,
                color="white" if dark else "black",
                style="italic" if is_predicted else "normal",
                bbox={"facecolor": face, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
        at = model.break_even(n) if is_predicted else break_even(shown)
        if at is not None:
            x = _place(batches, at)
            points += [(x, row - 0.5), (x, row + 0.5)]
    line = axes.plot(*zip(*points), color="black", lw=2.2) if points else []
    axes.set_xlim(-0.55, len(batches) - 0.45)
    axes.set_ylim(-0.5, len(counts) - 0.5)
    axes.set_xticks(range(len(batches)))
    axes.set_xticklabels([f"{b:,}" for b in batches], size=7.5)
    axes.set_yticks(range(len(counts)))
    axes.set_yticklabels([f"{n}*" if n in study.predicted else str(n) for n in counts])
    axes.grid(False)
    axes.set_xlabel("global batch size (samples a step, all devices together)")
    axes.set_ylabel("devices" + " (*: predicted)" * bool(study.predicted))
    page.legend(line)
    return page.figure


def _place(batches: Sequence[int], at: float) -> float:
    """Where a batch stands among the columns, between two of them as a rule."""
    logs = [math.log(b) for b in batches]
    for k, (low, high) in enumerate(zip(logs, logs[1:])):
        if low <= math.log(max(at, 1e-9)) < high:
            return k + (math.log(at) - low) / (high - low)
    return -0.5 if at <= batches[0] else len(batches) - 0.5


def _diverging():
    """Orange below 1, white at 1, blue above: told apart by colour-blind eyes."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("pays", [COLORS[1], "#f7f7f7", COLORS[0]])


def _steps(study: Study) -> Figure:
    """Milliseconds a step against batch: measured points through the model's lines."""
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
        look = {"color": COLORS[k % len(COLORS)], "lw": 1.3}
        look["ls"] = LINES[k % len(LINES)] if model is not None else ""
        marker = {"marker": MARKERS[k % len(MARKERS)], "ms": 4.5}
        of_n = [b for b in study.batches if (n, b) in study.steps]
        xs = of_n or [b for b in study.batches if b >= n]
        if of_n:
            summaries = [_milliseconds(study, n, b) for b in of_n]
            axes.errorbar(
                of_n,
                [s.median for s in summaries],
                [
                    [s.median - s.q1 for s in summaries],
                    [s.q3 - s.median for s in summaries],
                ],
                fmt="none", color=look["color"], capsize=2, lw=1,
            )  # fmt: skip
            points = [s.median for s in summaries]
            axes.plot(of_n, points, ls="", **marker, color=look["color"])
        if model is not None:
            axes.plot(xs, [1e3 * model.seconds(n, b) for b in xs], **look)
        lines += axes.plot([], [], **look, **(marker if of_n else {}))  # for the legend
    few = max(study.steps.values()) < 20 * min(study.steps.values())  # of its decades
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,g}")
    axes.yaxis.set_minor_formatter(lambda y, _: f"{y:,g}" if few else "")
    axes.set_xlabel("global batch size (samples a step, all devices together)")
    axes.set_ylabel("milliseconds a step")
    page.legend(lines)
    return page.figure


def _milliseconds(study: Study, n: int, batch: int) -> summary.Summary:
    return summary.summarize(
        [
            1e3 * seconds
            for run in study.runs
            for record in run.of(StepRecord)
            for seconds in record.seconds
            if (run.header.num_devices, record.global_batch_size) == (n, batch)
        ]
    )


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
    lines = []
    for place, (_, (_, batch), (by_name, no_python, no_overlap)) in enumerate(bars):
        bottom, drawn = 0.0, []
        for k, name in enumerate(PARTS):
            height = 1e6 * by_name[name] / batch
            drawn += axes.bar(
                place, height, bottom=bottom, width=0.6, color=COLORS[k],
                hatch=HATCHES[k], edgecolor="white", lw=0.5,
            )  # fmt: skip
            bottom += height
        ends = ((no_python, "k", LINES[0]), (no_overlap, "0.4", LINES[2]))
        for seconds, color, ls in ends:
            height = [1e6 * seconds / batch] * 2
            drawn += axes.plot(
                [place - 0.4, place + 0.4], height, color=color, lw=2, ls=ls
            )
        lines = drawn
    axes.set_xticks(range(len(bars)))
    axes.set_xticklabels(page.ticks, size=7.5)
    axes.grid(False, axis="x")
    axes.set_ylabel("microseconds a sample of the global batch")
    page.legend(lines)
    return page.figure


def _all_reduce(runs: Sequence[Run]) -> Figure:
    """Milliseconds against bytes of one array, by variant; LeNet's gradients apart."""
    from matplotlib.ticker import LogLocator

    found = all_reduces(runs)
    counts = sorted({n for n, _, _ in found})
    names = list(dict.fromkeys(name for row in found.values() for name in row))
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
    )
    left, right = page.axes
    lines, places = [], []
    for c, n in enumerate(counts):
        sizes = sorted(b for m, arrays, b in found if (m, arrays) == (n, 1))
        lenets = [key for key in found if key[0] == n and key[1] > 1]
        flat = {(n, 1, key[2]) for key in lenets}
        for k, name in enumerate(shown):
            of = [
                b for b in sizes
                if (n, 1, b) not in flat and found[n, 1, b].get(name)
            ]  # fmt: skip
            look = {
                "color": COLORS[k % len(COLORS)],
                "marker": MARKERS[k % len(MARKERS)],
                "ls": LINES[c % len(LINES)],
                "ms": 4.5,
            }
            ys = [1e3 * median(found[n, 1, b][name]) for b in of]
            lines += left.plot(of, ys, **look)
            for key in (*lenets, *flat):
                if found.get(key, {}).get(name):
                    y = 1e3 * median(found[key][name])
                    x = 2 * c + (key[1] == 1)
                    right.plot(x + 0.09 * (k - len(shown) / 2), y, **look)
        places += [f"8 arrays\n{n} dev.", f"1 array\n{n} dev."]
    left.set_xscale("log", base=2)
    left.xaxis.set_major_locator(LogLocator(base=2, numticks=5))
    left.xaxis.set_major_formatter(lambda x, _: _bytes(x))
    for axes in page.axes:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
        axes.set_ylabel("milliseconds")
    left.set_xlabel("size of the array on each device")
    right.set_xlim(-0.6, len(places) - 0.4)
    right.set_xticks(range(len(places)))
    right.set_xticklabels(places, size=7.5)
    page.legend(lines)
    return page.figure


def _bytes(x: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if x < 1024:
            return f"{x:g} {unit}"
        x /= 1024
    return f"{x:g} GiB"


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
    lines = []
    for k, epochs in enumerate(found.values()):
        done = [e for e in epochs if e.test_acc is not None]
        seconds = [sum(e.seconds for e in done[: i + 1]) for i in range(len(done))]
        look = {
            "color": COLORS[k % len(COLORS)],
            "ls": LINES[k % len(LINES)],
            "marker": MARKERS[k % len(MARKERS)],
            "ms": 4,
        }
        ys = [e.test_acc for e in done]
        lines += page.axes[0].plot([e.epoch for e in done], ys, **look)
        page.axes[1].plot(seconds, ys, **look)
    for axes, name in zip(page.axes, ("epoch", "seconds of training")):
        axes.set_ylim(0, 1)
        axes.set_xlim(left=0)
        axes.set_xlabel(name)
        axes.set_ylabel("test accuracy")
    page.legend(lines)
    return page.figure


def _end(epochs: Sequence) -> str:
    if epochs[-1].why_not:
        return f"diverged in epoch {epochs[-1].epoch}"
    return f"accuracy {epochs[-1].test_acc:.3f}"


def _name(study: Study) -> str:
    names = {
        "scratch": "from scratch",
        "ddp": "PyTorch's DistributedDataParallel",
        "d2l": "the book's loop in PyTorch",
    }
    return names.get(study.name, study.name)


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
    samples = _range([len(record.seconds) for record in records])
    steps = _range([record.steps for record in records])
    return (
        f"Each median of {samples} samples of {steps} steps in a row, after a warm-up."
    )


def _range(values: Sequence[int]) -> str:
    return " to ".join(map(str, dict.fromkeys((min(values), max(values)))))
