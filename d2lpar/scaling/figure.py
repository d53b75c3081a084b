"""Scaling studies: where more devices pay, a step's time and parts, the all-reduce."""

from __future__ import annotations

import bisect
import itertools
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from d2lpar.figures import labels, page
from d2lpar.records.kinds import PARTS, AllReduceRecord, Run
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.text import number, plain_table, plural

BATCH = "global batch size (samples per step, all devices together)"
# Slower than one device, as fast, faster; for colour-blind eyes.
PAYS = LinearSegmentedColormap.from_list("pays", [page.D2L, "#f7f7f7", page.OURS])
BARS = {  # of the parts of a step
    "split and copy": {"color": "0.8"},
    "forward": {"color": page.OURS},
    "backward": {"color": "#003A5C"},
    "all-reduce": {"color": "#E69F00", "hatch": "////"},
    "update": {"color": "0.45"},
}


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """All pictures and ``<stem>-results.txt``; return the files."""
    return page.save({**pictures(runs), "results": results(runs)}, folder, stem)


def pictures(runs: Sequence[Run]) -> dict[str, Figure]:
    """By name what the runs hold: a map, steps, accuracies, parts, all-reduces.

    ``map-<implementation>`` needs steps on one device and on more.
    """
    drawn = {}
    for study in studies(runs):
        if any(map(study.speedups_of, study.counts[1:])):
            drawn[f"map-{study.variant}"] = _map(study)
        if study.records:
            drawn[f"steps-{study.variant}"] = _steps(study)
        if study.trainings:
            drawn[f"accuracy-{study.variant}"] = _accuracy(study)
    if any(study.parts for study in studies(runs)):
        drawn["parts"] = _parts(runs)
    if all_reduces(runs):
        drawn["all-reduce"] = _all_reduce(runs)
    return drawn


def _subtitle(study: Study, words: str) -> str:
    return labels.subtitle(f"LeNet, {study.name}: {words}", study.runs)


def _stamp(runs: Sequence[Run]) -> str:
    return labels.stamp([run.header for run in runs])


def _device_word(runs: Sequence[Run]) -> str:
    return labels.device_word(runs[0].header)


def _map(study: Study) -> Figure:
    """Speedup over one device by global batch (across) and devices (up)."""
    counts, batches = study.counts[1:], study.batches
    fewest = next(n for n in counts if study.speedups_of(n))
    at = study.break_even(fewest)
    pays = f"more than {batches[-1]:,}" if at is None else f"{at:,.0f}"
    picture = page.new(
        f"{plural(fewest, _device_word(study.runs))} pay from a global batch of {pays}",
        _subtitle(study, "step time of 1 over that of N at the same global batch"),
        f"Black lines: break-even. {_stamp(study.runs)}",
        size=(max(page.WIDE, 0.72 * len(batches) + 1.2), 0.55 * len(counts) + 1.1),
    )
    (axes,) = picture.axes
    table = numpy.full((len(counts), len(batches)), numpy.nan)
    shade = TwoSlopeNorm(1, 0, max(2, counts[-1]))
    for y, n in enumerate(counts):
        for batch, speedup in study.speedups_of(n).items():
            x = batches.index(batch)
            table[y, x] = min(speedup, counts[-1])
            ink = "white" if abs(shade(speedup) - 0.5) > 0.37 else "black"
            place = {"ha": "center", "va": "center", "color": ink}
            axes.text(x, y, f"{speedup:.2f}", **place)
        at = study.break_even(n)
        if at is not None:  # between the cells slower than one device and those faster
            x = bisect.bisect_left(batches, at) - 0.5
            axes.plot([x, x], [y - 0.5, y + 0.5], color="black", lw=3)
    edges = numpy.arange(len(batches) + 1) - 0.5, numpy.arange(len(counts) + 1) - 0.5
    table = numpy.ma.masked_invalid(table)
    axes.pcolormesh(*edges, table, cmap=PAYS, norm=shade, edgecolors="white")
    axes.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
    axes.set_yticks(range(len(counts)), map(str, counts))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(False)
    axes.set(xlabel=BATCH, ylabel="devices N")
    return picture.figure


def _steps(study: Study) -> Figure:
    """Milliseconds per step against batch: measured points and the model's lines.

    The line of one device is fitted, those of more are predictions, dashed; below them
    stands by how much they miss.
    """
    if study.model is None:
        return _steps_measured(study)
    noun, one, more = _device_word(study.runs), study.counts[0], study.counts[1:]
    title = f"Time of a step on {plural(one, noun)}, and the model fitted to it"
    if more:
        title = (
            f"Fitted to {plural(one, noun)}, the model misses "
            f"{' and '.join(map(str, more))} by {missed(study, more)}"
        )
    subtitle = _subtitle(study, "medians and quartiles; dashed: predicted")
    picture = page.new(
        title,
        subtitle,
        f"Model: {formula(study)}. {_stamp(study.runs)}",
        rows=2,
        size=(page.WIDE, 1.35 * page.TALL),
        sharex=True,
        height_ratios=[3, 1],
    )
    above, below = picture.axes
    _draw_steps(study, above)
    for k, n in enumerate(study.counts):
        style = page.look(k, color=page.count_color(k), lw=1.2)
        style["ls"] = page.LINES[bool(k)]
        errors = study.errors_of(n)
        below.plot(list(errors), [100 * error for error in errors.values()], **style)
    below.axhline(0, color=page.PALE, lw=0.8)
    below.set_ylabel("model's error,\n% of measured")
    below.set_xlabel(BATCH)
    return picture.figure


def _steps_measured(study: Study) -> Figure:
    picture = page.new(
        f"Time of a step, by global batch and number of {_device_word(study.runs)}s",
        _subtitle(study, "medians and quartiles"),
        _stamp(study.runs),
    )
    (axes,) = picture.axes
    _draw_steps(study, axes)
    axes.set_xlabel(BATCH)
    return picture.figure


def _draw_steps(study: Study, axes: Axes) -> None:
    """Medians with quartiles as points, by device count; lines of the model, if any."""
    names = []
    for k, n in enumerate(study.counts):
        style = page.look(k, color=page.count_color(k), lw=1.5)
        batches = [batch for batch in study.batches if (n, batch) in study.records]
        summaries = [study.milliseconds(n, batch) for batch in batches]
        medians, spread = [s.median for s in summaries], page.quartiles(summaries)
        axes.errorbar(batches, medians, spread, capsize=2, **{**style, "ls": ""})
        if study.model is None:
            axes.plot(batches, medians, **{**style, "marker": ""})
        else:
            along = numpy.geomspace(batches[0], batches[-1], 200)
            curve = [1e3 * study.model.seconds(n, batch) for batch in along]
            style.update(ls=page.LINES[bool(k)], marker="")
            axes.plot(along, curve, **style)
        names.append((batches[-1], medians[-1], plural(n, _device_word(study.runs))))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    few = max(study.steps.values()) < 20 * min(study.steps.values())  # of its decades
    page.log_numbers_up(axes, "milliseconds per step", minor=few)
    page.beside(axes, names)


def missed(study: Study, counts: Sequence[int]) -> str:
    """By how much the model misses the steps on these device counts, in words."""
    errors = [100 * abs(e) for n in counts for e in study.errors_of(n).values()]
    return f"{median(errors):.0f} % (median), {max(errors):.0f} % at most"


def formula(study: Study) -> str:
    """The model of a study with its numbers, for N devices and B samples."""
    model = study.model
    assert model is not None
    device = (
        f"{number(1e3 * model.fixed)} ms + {number(1e6 * model.per_sample)} us x B / N"
    )
    if study.counts != [1]:
        device += f" + (N - 1) x {number(1e3 * model.exchange)} ms"
    issue = f"{number(1e3 * model.issue)} ms"
    if math.isinf(model.cores):
        return f"the longer of N x {issue} (Python) and {device} (a device)"
    return (
        f"the longest of N x {issue} (Python), d = {device} (a device) and N x "
        f"({issue} + d) / {model.cores:g} (the cores)"
    )


def _parts(runs: Sequence[Run]) -> Figure:
    """Where a step's milliseconds go: a stacked bar per implementation and count."""
    panels: dict[int, dict[str, dict[str, float]]] = {}
    for study in studies(runs):
        for (n, batch), parts in study.parts.items():
            name = f"{study.name}, {plural(n, _device_word(runs))}"
            panels.setdefault(batch, {})[name] = parts
    most = max(map(len, panels.values()))
    picture = page.new(
        "Where the time of a step goes",
        labels.subtitle("LeNet, each part by omission", runs),
        _stamp(runs),
        panels=len(panels),
        size=(max(page.WIDE, 4.0 * len(panels)), 1.3 + 0.5 * most),
        sharey=True,
    )
    place = {"textcoords": "offset points", "va": "center"}
    for axes, (batch, bars) in zip(picture.axes, sorted(panels.items())):
        left = numpy.zeros(len(bars))
        for part in PARTS:
            widths = [1e3 * parts[part] for parts in bars.values()]
            look = {"edgecolor": "white", "lw": 0.6, **BARS[part]}
            axes.barh(range(len(bars)), widths, 0.6, left, label=part, **look)
            left += widths
        for k, whole in enumerate(left):
            axes.annotate(number(whole), (whole, k), (6, 0), **place)
        axes.set_yticks(range(len(bars)), bars)
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.grid(False)
        axes.set(xlim=(0, 1.3 * max(left)), xlabel=f"ms, global batch {batch:,}")
    page.key(picture)
    return picture.figure


def _all_reduce(runs: Sequence[Run]) -> Figure:
    """Milliseconds against bytes of one array, by variant; LeNet's gradients apart."""
    seconds = all_reduces(runs)
    count = max(n for n, _, _ in seconds)
    rows = {key[1:]: row for key, row in seconds.items() if key[0] == count}
    variants = list(dict.fromkeys(k for row in rows.values() for k in row if row[k]))
    # LeNet's gradients: all arrays of them, and one array with as many bytes.
    gradients = {num_bytes for arrays, num_bytes in rows if arrays > 1}
    bars, lines = [], {}
    for (arrays, num_bytes), row in sorted(rows.items()):
        for k, name in enumerate(variants):
            ms = [1e3 * s for s in row.get(name, ())]
            if ms and num_bytes in gradients:
                named = f"{name}, {plural(arrays, 'array')}"
                bars.append(page.Bar(named, ms, page.look(k)["color"]))
            elif ms:
                lines.setdefault(name, []).append((num_bytes, median(ms)))
    bars.sort(key=lambda bar: median(bar.values))
    absent = {r.variant for run in runs for r in run.of(AllReduceRecord) if r.why_not}
    missing = f"Not in this build: {', '.join(sorted(absent))}. " if absent else ""
    where = plural(count, _device_word(runs))
    picture = page.new(
        f"The same all-reduce over {where} in {len(variants)} ways",
        labels.subtitle("medians, results checked", runs),
        f"{missing}{_stamp(runs)}",
        panels=2,
        size=(11.5, max(page.TALL, page.bars_height(bars))),
    )
    left, right = picture.axes
    for name, points in lines.items():
        left.plot(*zip(*points), **page.look(variants.index(name)))
    left.set_title("one array")
    page.bytes_along(left, "size of the array on each device")
    page.log_numbers_up(left, "milliseconds")
    page.beside(left, [(*points[-1], name) for name, points in lines.items()])
    right.set_title("LeNet's gradients")
    page.bars(right, bars, "ms", 5.4)
    return picture.figure


def _accuracy(study: Study) -> Figure:
    """Test accuracy against epoch and against seconds, weak scaling."""
    picture = page.new(
        "Test accuracy under weak scaling",
        _subtitle(study, "learning rate scaled with the global batch and warmed up"),
        f"Labels: devices \u00d7 batch per device. {_stamp(study.runs)}",
        panels=2,
        size=(10.6, page.TALL),
        sharey=True,
    )
    left, right = picture.axes
    by_epoch, by_second = [], []
    for k, ((n, batch), epochs) in enumerate(study.trainings.items()):
        done = [epoch for epoch in epochs if epoch.test_acc is not None]
        accuracies = [epoch.test_acc for epoch in done]
        seconds = list(itertools.accumulate(epoch.seconds for epoch in done))
        left.plot([epoch.epoch for epoch in done], accuracies, **page.look(k))
        right.plot(seconds, accuracies, **page.look(k))
        if done:
            last, name = epochs[-1], f"{n} \u00d7 {batch // n:,}"
            end = f"{accuracies[-1]:.3f}"
            if last.why_not:
                end = f"diverged in epoch {last.epoch}"
            by_epoch.append((done[-1].epoch, accuracies[-1], f"{name}: {end}"))
            by_second.append((seconds[-1], accuracies[-1], name))
    left.set(xlim=(0, None), xlabel="epoch", ylabel="test accuracy")
    right.set(xlim=(0, None), xlabel="seconds of training")
    page.beside(left, by_epoch)
    page.beside(right, by_second)
    return picture.figure


def results(runs: Sequence[Run]) -> str:
    """Everything that was measured as one table, and the models of a step."""
    rows, models = [], []
    for study in studies(runs):
        for n, batch in sorted(study.records, key=lambda key: key[::-1]):
            ms = study.milliseconds(n, batch)
            speedup = study.speedups_of(n).get(batch)
            spread = f"{number(ms.q1)}-{number(ms.q3)}, n={ms.n}"
            notes = f"speedup {speedup:.2f}" if n > 1 and speedup else ""
            if batch in (errors := study.errors_of(n)):
                ours = study.model.seconds(n, batch)
                model = f"model {number(1e3 * ours)} ({100 * errors[batch]:+.0f} %)"
                notes = f"{notes}, {model}" if notes else model
            what = f"{study.name}: step, batch {batch:,}"
            rows.append([what, str(n), number(ms.median), spread, notes])
            for name, seconds in study.parts.get((n, batch), {}).items():
                rows.append([f"  {name}", str(n), number(1e3 * seconds), "", ""])
        for (n, batch), epochs in study.trainings.items():
            for e in epochs:
                what = f"{study.name}: epoch {e.epoch}, batch {batch:,}, lr {e.lr:.3g}"
                end = e.why_not or f"test accuracy {e.test_acc:.4f}"
                rows.append([what, str(n), number(1e3 * e.seconds), "", end])
        if study.model:
            text = f"{study.name}: a step on N devices takes {formula(study)}."
            for n in study.counts:
                how = "predicted" if n > 1 else "fitted"
                where = f"{plural(n, _device_word(runs))} ({how})"
                text += f" It misses {where} by {missed(study, [n])}."
            models.append(textwrap.fill(text, 88))
    for (n, arrays, num_bytes), by_variant in all_reduces(runs).items():
        for variant, seconds in by_variant.items():
            what = f"all-reduce: {variant}, {plural(arrays, 'array')}, {num_bytes:,} B"
            ms = number(1e3 * median(seconds)) if seconds else "-"
            rows.append([what, str(n), ms, "", "" if seconds else "not in this build"])
    table = plain_table(["", "devices", "ms", "quartiles", ""], rows, names=1)
    headers = [run.header for run in runs]
    machine = f"{labels.hardware(headers)}. {labels.stamp(headers)}"
    return "\n\n".join([table, *models, machine]) + "\n"
