"""Scaling studies: where more devices pay, the step's time and parts, all-reduce.

The map shows the speedup by global batch and device count, the break-even line drawn
in, predicted rows apart from measured ones.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from d2lpar.figures import page
from d2lpar.records import wording
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
    "concise": "Gluon",
    "ddp": "PyTorch DistributedDataParallel",
    "d2l": "d2l's PyTorch loop",
}  # of implementations; others are called what the record calls them
APART = 0.45  # of a row, between measured and predicted ones
MOST_PREDICTED = 3  # lines: with the measured ones five at most
INKS = ("0.8", page.OURS, "#003A5C", "#E69F00", "0.45")  # of PARTS


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """All pictures and ``<stem>-results.txt``; return the files.

    ``<stem>-map-<implementation>`` needs runs on one device and on more.
    """
    drawn, found = {}, studies(runs)
    for study in found:
        if any(map(study.speedups_of, study.counts[1:])):
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
    measured, predicted, batches = study.counts[1:], study.predicted, study.batches
    rows = [(k, n, False) for k, n in enumerate(measured)]
    rows += [(k + len(measured) + APART, n, True) for k, n in enumerate(predicted)]
    picture = page.new(
        _map_title(study),
        _subtitle(study, "step time of 1 over that of N at the same global batch"),
        f"{_predicted_rows(study)}{_pairs(study)} {_stamp(study)}",
        size=(max(page.WIDE, 0.72 * len(batches) + 1.2), 0.55 * len(rows) + 1.1),
    )
    (axes,) = picture.axes
    top = max(*study.counts, *predicted)
    for y, n, is_predicted in rows:
        if is_predicted:
            speedups = {b: study.model.speedup(n, b) for b in batches if b >= n}
        else:
            speedups = study.speedups_of(n)
        for batch, speedup in speedups.items():
            _cell(axes, (batches.index(batch), y), speedup, top, is_predicted)
        _break_even(axes, y, _pays_from(study, n), batches)
    axes.set_xticks(range(len(batches)), [f"{batch:,}" for batch in batches])
    names = [
        f"{n} predicted" if is_predicted else f"{n}" for _, n, is_predicted in rows
    ]
    axes.set_yticks([y for y, _, _ in rows], names)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlim=(-0.55, len(batches) - 0.45), ylim=(-0.55, rows[-1][0] + 0.55))
    axes.grid(False)
    axes.set(xlabel=BATCH, ylabel="devices N")
    return picture.figure


def _pays_from(study: Study, n: int) -> float | None:
    """The batch from which `n` devices are faster than one; None for no measured."""
    if n in study.predicted:
        return study.model.break_even(n)
    speedups = study.speedups_of(n)
    return break_even(speedups) if speedups else None


def _break_even(axes: Axes, y: float, at: float | None, batches: Sequence[int]) -> None:
    """A line between the cells that are slower than one device and those faster."""
    if at is not None:
        x = bisect.bisect_left(batches, at) - 0.5
        axes.plot([x, x], [y - 0.5, y + 0.5], color="black", lw=3, zorder=5)


def _map_title(study: Study) -> str:
    noun = wording.noun(study.runs[0].header)
    n = next(n for n in study.counts[1:] if study.speedups_of(n))
    speedups, at = study.speedups_of(n), _pays_from(study, n)
    largest = max(speedups)
    shown = 256 if 256 in speedups else largest
    said = f"at {shown:,} a step is {wording.times(speedups[shown])} as on one"
    many = plural(n, noun)
    if at is None:
        return f"{many} pay at no batch up to {largest:,}; {said}"
    less = " or less" * (at == study.batches[0])
    return f"{many} pay from a global batch of {at:,.0f}{less} on; {said}"


def _cell(
    axes: Axes, at: tuple[float, float], speedup: float, top: int, is_predicted: bool
) -> None:
    """A square of the map: orange below 1, white at 1, blue above."""
    ends = [page.D2L, "#f7f7f7", page.OURS]  # for colour-blind eyes
    share = TwoSlopeNorm(1, 0, max(2, top))(min(speedup, top))
    face = LinearSegmentedColormap.from_list("pays", ends)(share)
    hatch = "////" if is_predicted else None
    axes.bar(at[0], 1, 1, at[1] - 0.5, color=face, edgecolor="white", hatch=hatch, lw=1)
    luminance = 0.3 * face[0] + 0.59 * face[1] + 0.11 * face[2]
    axes.text(
        *at, f"{speedup:.2f}", ha="center", va="center", size=page.NORMAL,
        color="white" if luminance < 0.55 else "black",
        style="italic" if is_predicted else "normal",
        bbox={"facecolor": face, "edgecolor": "none", "pad": 2.5},
    )  # fmt: skip


def _steps(study: Study) -> Figure:
    """Milliseconds per step against batch: measured points and the model's lines."""
    predicted, model = study.predicted[-MOST_PREDICTED:], study.model
    picture = page.new(
        _steps_title(study),
        _subtitle(study, "a step against its global batch"),
        f"Whiskers: quartiles; lines: the model. {_formula(study)}"
        f"{_measured(study)} {_stamp(study)}",
    )
    (axes,) = picture.axes
    labels = []
    for k, n in enumerate([*study.counts, *predicted]):
        color = page.count_color(k) if n in study.counts else "0.55"
        style = page.look(k, color=color, lw=1.5)
        batches = [b for b in study.batches if (n, b) in study.records]
        if batches:
            summaries = [study.milliseconds(n, batch) for batch in batches]
            medians, spread = [s.median for s in summaries], page.quartiles(summaries)
            axes.errorbar(batches, medians, spread, capsize=2, **{**style, "ls": ""})
            end = medians[-1]
        batches = batches or [b for b in study.batches if b >= n]
        if model is not None:
            times = [1e3 * model.seconds(n, batch) for batch in batches]
            axes.plot(batches, times, **{**style, "marker": ""})
            end = times[-1] if n in predicted else end
        name = plural(n, wording.noun(study.runs[0].header))
        labels.append((batches[-1], end, name + ", predicted" * (n in predicted)))
    few = max(study.steps.values()) < 20 * min(study.steps.values())  # of its decades
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.set_xlabel(BATCH)
    page.log_numbers_up(axes, "milliseconds per step", minor=few)
    page.beside(axes, labels)
    return picture.figure


def _steps_title(study: Study) -> str:
    """How well fewer devices predict most of them; or what a step takes."""
    noun, n = wording.noun(study.runs[0].header), study.counts[-1]
    if study.held_out is not None:
        fewer = " and ".join(map(str, study.counts[:-1]))
        fitted = f"Fitted to {fewer} {noun}{'s' * (fewer != '1')}, the model"
        if not study.predicted:
            return f"{fitted} misses the steps of {n} by {study.missed_by:.0%} (median)"
        return (
            f"{fitted} predicts the steps of {n} within {study.missed_by:.1%} (median)"
        )
    m = study.counts[0]
    measured = [batch for batch in study.batches if (m, batch) in study.records]
    first, last = measured[0], measured[-1]
    small, large = (number(study.milliseconds(m, b).median) for b in (first, last))
    return (
        f"On {plural(m, noun)} a step of {first:,} takes {small} ms, and one of "
        f"{last:,} {large} ms"
    )


def _parts(found: Sequence[Study], runs: Sequence[Run]) -> Figure:
    """Where a step's milliseconds go: a stacked bar per implementation and count."""
    bars = {
        (study.name, batch, n): values
        for study in found
        for (n, batch), values in parts(study).items()
    }
    batches = sorted({batch for _, batch, _ in bars})
    most = max(sum(batch == b for _, batch, _ in bars) for b in batches)
    header = runs[0].header
    picture = page.new(
        _parts_title(bars),
        wording.subtitle("LeNet, where a step's milliseconds go", runs),
        "Each part by omission: a step that ends after it, less one that ends before; "
        "they add up to the whole step, the number at the right. "
        f"{wording.stamp([run.header for run in runs])}",
        panels=len(batches),
        size=(max(page.WIDE, 4.0 * len(batches)), 1.3 + 0.5 * most),
        sharey=True,
    )
    for axes, batch in zip(picture.axes, batches):
        rows = {key: v for key, v in bars.items() if key[1] == batch}
        names = []
        for k, ((name, _, n), step) in enumerate(rows.items()):
            _stack(axes, k, step)
            count = plural(n, wording.noun(header))
            names.append(f"{NAMES.get(name, name)}, {count}")
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(False)
        longest = max(sum(step.by_name.values()) for step in rows.values())
        axes.set(xlim=(0, 1.3e3 * longest), xlabel=f"ms, global batch {batch:,}")
    page.key(picture)
    return picture.figure


def _stack(axes: Axes, k: int, step) -> None:
    left = 0.0
    for name, ink, hatch in zip(PARTS, INKS, ("", "", "", "////", "")):
        width = 1e3 * step.by_name[name]
        axes.barh(
            k, width, 0.6, left, color=ink, hatch=hatch, edgecolor="white", lw=0.6,
            label=name if k == 0 else None,
        )  # fmt: skip
        left += width
    place = {"textcoords": "offset points", "va": "center"}
    axes.annotate(number(left), (left, k), (6, 0), **place)


def _parts_title(bars: dict) -> str:
    """The share of the largest part, at the batch in the middle."""
    batches = sorted({batch for _, batch, _ in bars})
    middle = batches[len(batches) // 2]
    steps = {key: step for key, step in bars.items() if key[1] == middle}
    (name, _, n), step = max(steps.items(), key=lambda item: item[0][2])
    whole = sum(step.by_name.values()) or 1.0
    largest = max(step.by_name, key=step.by_name.get)
    share = step.by_name[largest] / whole
    reduce = step.by_name["all-reduce"] / whole
    also = f", the all-reduce {reduce:.0%}" if n > 1 else ""
    what = f"{largest} pass" if largest in ("forward", "backward") else largest
    return (
        f"The {what} takes {share:.0%} of a step of {middle:,}{also} "
        f"({NAMES.get(name, name)})"
    )


def _all_reduce(runs: Sequence[Run]) -> Figure:
    """Milliseconds against bytes of one array, by variant; LeNet's gradients apart."""
    found = all_reduces(runs)
    count = max(n for n, _, _ in found)
    names = dict.fromkeys(name for row in found.values() for name in row)
    shown = [name for name in names if any(row.get(name) for row in found.values())]
    records = [record for run in runs for record in run.of(AllReduceRecord)]
    absent = {record.variant: record.why_not for record in records if record.why_not}
    said = "".join(f" Not here: {', '.join(absent)}." if absent else "")
    # LeNet's gradients: all arrays of them, and one array with as many bytes.
    lenet = {size for n, arrays, size in found if n == count and arrays > 1}
    rows = _lenet_rows(found, count, lenet, shown)
    picture = page.new(
        _all_reduce_title(found, count, lenet, shown),
        wording.subtitle(f"the same sum over {count} devices in several ways", runs),
        "Medians, results checked. Trained with: book on one array (from scratch), "
        f"{ALL_REDUCE['concise', runs[0].header.device_kind]} (Gluon).{said} "
        f"{wording.stamp([run.header for run in runs])}",
        panels=2,
        size=(11.5, max(page.TALL, page.bars_height(rows))),
    )
    left, right = picture.axes
    labels = []
    for k, name in enumerate(shown):
        keys = sorted(k for k in found if k[0] == count and k[2] not in lenet)
        points = [
            (key[2], 1e3 * median(found[key][name]))
            for key in keys
            if found[key].get(name)
        ]
        if points:
            left.plot(*zip(*points), **page.look(k))
            labels.append((*points[-1], name))
    left.set_title("one array")
    page.bytes_along(left, "size of the array on each device")
    page.log_numbers_up(left, "milliseconds")
    page.beside(left, labels)
    right.set_title("LeNet's gradients")
    page.bars(right, rows, "ms", 5.4)
    return picture.figure


def _lenet_rows(found: dict, count: int, lenet: set, shown: list) -> list[page.Bar]:
    rows = []
    for (n, arrays, size), row in found.items():
        if n == count and size in lenet:
            for name in shown:
                if row.get(name):
                    color = page.COLORS[shown.index(name) % len(page.COLORS)]
                    ms = [1e3 * s for s in row[name]]
                    bar = page.Bar(f"{name}, {plural(arrays, 'array')}", ms, color)
                    rows.append(bar)
    return sorted(rows, key=lambda bar: median(bar.values))


def _all_reduce_title(found: dict, count: int, lenet: set, shown: list) -> str:
    """The fastest way, for LeNet's gradients and for the largest array."""
    sizes = [key for key in found if key[0] == count and key[2] not in lenet]
    largest = max(sizes, default=None)
    sums = [key for key in found if key[0] == count and key[2] in lenet]
    said = []
    for key in (max(sums, default=None), largest):
        if key is None:
            continue
        gradients = f"LeNet's {plural(key[1], 'gradient')}"
        what = wording.byte_size(key[2]) if key == largest else gradients
        row = {name: median(found[key][name]) for name in shown if found[key].get(name)}
        if row:
            best = min(row, key=row.get)
            said.append((best, f"{what} ({number(1e3 * row[best])} ms)"))
    if len(said) < 2:
        return "".join(f"The fastest all-reduce for {x} is {best}" for best, x in said)
    (best, small), (other, large) = said
    if best == other:
        return f"The fastest all-reduce is {best}, for {small} as for {large}"
    return f"The fastest all-reduce for {small} is {best}, for {large} {other}"


def _accuracy(study: Study) -> Figure:
    """Test accuracy against epoch and against seconds, weak scaling."""
    found = trainings(study)
    picture = page.new(
        _accuracy_title(found),
        _subtitle(study, "weak scaling: the same batch on every device"),
        "The learning rate grows with the global batch and is warmed up (Goyal et al., "
        f"2017). Labels: devices \u00d7 batch per device. One training each. "
        f"{_stamp(study)}",
        panels=2,
        size=(10.6, page.TALL),
        sharey=True,
    )
    left, right = picture.axes
    labels: list[list] = [[], []]
    for k, ((n, batch), epochs) in enumerate(found.items()):
        done = [epoch for epoch in epochs if epoch.test_acc is not None]
        accuracies = [epoch.test_acc for epoch in done]
        seconds = list(itertools.accumulate(epoch.seconds for epoch in done))
        style = page.look(k)
        left.plot([epoch.epoch for epoch in done], accuracies, **style)
        right.plot(seconds, accuracies, **style)
        if done:
            name = f"{n} \u00d7 {batch // n:,}: {_end(epochs[-1])}"
            labels[0].append((done[-1].epoch, accuracies[-1], name))
            labels[1].append(
                (seconds[-1], accuracies[-1], f"{n} \u00d7 {batch // n:,}")
            )
    for axes, name, ends in zip(picture.axes, ("epoch", "seconds of training"), labels):
        axes.set(xlim=(0, None), xlabel=name)
        page.beside(axes, ends)
    left.set_ylabel("test accuracy")
    return picture.figure


def _accuracy_title(found: dict) -> str:
    """What the largest global batch costs, against the smallest."""
    by_batch = sorted(found, key=lambda key: key[1])
    last = {key: found[key][-1] for key in by_batch}
    low, high = by_batch[0], by_batch[-1]
    if last[high].why_not:
        return f"Training with a global batch of {high[1]:,} diverges"
    if low[1] == high[1] or last[low].why_not:
        return f"Test accuracy with a global batch of {high[1]:,}: {_end(last[high])}"
    return (
        f"{high[1] // low[1]} times the global batch ends at {_end(last[high])} "
        f"instead of {_end(last[low])} after {plural(last[high].epoch, 'epoch')}"
    )


def _end(epoch: ScaledEpoch) -> str:
    return (
        f"diverged in epoch {epoch.epoch}" if epoch.why_not else f"{epoch.test_acc:.3f}"
    )


def _subtitle(study: Study, what: str) -> str:
    name = NAMES.get(study.name, study.name)
    threads = wording.threads(study.runs[0].header)
    words = f"LeNet, {name}{', ' * bool(threads)}{threads}: {what}"
    return wording.subtitle(words, study.runs)


def _stamp(study: Study) -> str:
    return wording.stamp([run.header for run in study.runs])


def _formula(study: Study) -> str:
    if study.model is None:
        return ""
    model = study.model
    times_n = "N \u00d7 " if model.one_python else ""
    words = (
        f"{times_n}{number(1e3 * model.fixed)} ms + "
        f"{number(1e6 * model.per_sample)} \u00b5s \u00d7 batch / N"
    )
    if model.all_reduce is not None:
        reduce = number(1e3 * model.all_reduce_seconds(2))
        words += f" + (N - 1) \u00d7 {reduce} ms"
    return f"{words}. "


def _predicted_rows(study: Study) -> str:
    if not study.predicted:
        return "Black line: break-even. "
    return (
        "Black lines: break-even. Hatched, in italics: predicted by the model of a "
        "step, not measured. "
    )


def _pairs(study: Study) -> str:
    """What the map's caption says of the samples."""
    if not any(r.num_devices for same in study.records.values() for r in same):
        return _measured(study)
    return f"Medians over {_samples(study)} pairs of neighbouring samples."


def _measured(study: Study) -> str:
    """What a caption says of the samples."""
    steps = each(record.steps for same in study.records.values() for record in same)
    return f"Medians of {_samples(study)} samples of {steps} steps."


def _samples(study: Study) -> str:
    """How many each step has, those of all repeats together."""
    return each(sum(len(r.seconds) for r in same) for same in study.records.values())
