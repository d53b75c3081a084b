"""Scaling studies: where more devices pay, a step's time and parts, the all-reduce."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy
from matplotlib.axes import Axes

from d2lpar.figures import labels, page
from d2lpar.records.kinds import Run
from d2lpar.scaling.model import Study, all_reduces, studies
from d2lpar.text import number, plain_table, plural

BATCH = "global batch size (samples per step, all devices together)"
PARTS = {  # of a step; an update and its all-reduce are measured as one difference
    "split and copy": (("split and copy",), {"color": "0.8"}),
    "forward": (("forward",), {"color": page.OTHERS[0]}),
    "backward": (("backward",), {"color": page.OTHERS[1]}),
    "all-reduce and update": (("all-reduce", "update"), {"color": page.OTHERS[4]}),
}


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """All pictures and ``<stem>-results.txt``; return the files."""
    return page.save({**pictures(runs), "results": results(runs)}, folder, stem)


def pictures(runs: Sequence[Run]) -> dict[str, page.Picture]:
    """By name what the runs hold: speedups, steps, accuracies, parts, all-reduces.

    ``speedup`` needs steps on one device and on more.
    """
    drawn, found = {}, studies(runs)
    if any(pairs_of(study, n) for study in found for n in study.counts[1:]):
        note = labels.subtitle("LeNet; dots: pairs of neighbouring samples", runs)
        drawn["speedup"] = page.new("Speedup of a step over one device", note, runs)
        speedup(drawn["speedup"].axes[0], found)
    for study in found:
        if study.records:
            drawn[f"steps-{study.variant}"] = steps(study)
        if study.trainings:
            note = "devices \u00d7 batch per device; learning rate scaled, warmed up"
            drawn[f"accuracy-{study.variant}"] = page.new(
                "Test accuracy under weak scaling", _note(study, note), study.runs
            )
            accuracies(drawn[f"accuracy-{study.variant}"].axes[0], study)
    batches = sorted({batch for study in found for _, batch in study.parts})
    if batches:
        drawn["parts"] = page.new(
            "Where the time of a step goes",
            labels.subtitle("LeNet, each part by omission", runs),
            runs,
            (max(7.6, 4 * len(batches)), 4.2),
            columns=len(batches),
            sharey=True,
        )
        parts(drawn["parts"].axes, found)
        inks = drawn["parts"].axes[0].get_legend_handles_labels()
        drawn["parts"].legend(*inks, loc="outside lower right", ncols=4)
    if all_reduces(runs):
        drawn["all-reduce"] = page.new(
            "The same all-reduce in several ways",
            labels.subtitle("results checked; of one array unless said", runs),
            runs,
        )
        all_reduce(drawn["all-reduce"].axes[0], runs)
    return drawn


def _note(study: Study, words: str) -> str:
    return labels.subtitle(f"LeNet, {study.name}: {words}", study.runs)


def pairs_of(study: Study, n: int) -> dict[int, list[float]]:
    """Speedups of n devices over one by global batch, one per pair of samples.

    Of samples that were measured in turn, or of one run each in the same order.
    """
    return {
        batch: [
            one / many
            for a, b in zip(study.records[1, batch], study.records[n, batch])
            for one, many in zip(a.seconds, b.seconds)
        ]
        for batch in study.batches
        if (1, batch) in study.records and (n, batch) in study.records
    }


def speedup(axes: Axes, found: Sequence[Study]) -> None:
    """Speedup over one device against the global batch: all pairs, and medians."""
    for s, study in enumerate(found):
        noun = labels.device_word(study.runs[0].header)
        for k, n in enumerate(study.counts[1:], 1):
            pairs = pairs_of(study, n)
            style = {"marker": page.MARKERS[s], "color": page.count_color(k)}
            for batch, values in pairs.items():
                at = [batch] * len(values)
                axes.plot(at, values, **style, ls="", ms=3, alpha=0.5, mew=0)
            style.update(ls=page.LINES[s], mfc="white" if s else None)
            name = f"{study.name}, {plural(n, noun)}"
            axes.plot(
                list(pairs), list(map(median, pairs.values())), label=name, **style
            )
    axes.axhline(1, color=page.INK, lw=1)
    page.log_along(axes, "x", base=2)
    page.log_along(axes, "y", base=2)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}\u00d7")
    axes.set(xlabel=BATCH, ylabel="speedup over 1 device")
    axes.legend()


def steps(study: Study, title: str = "") -> page.Picture:
    """Milliseconds per step against batch, and below them the model's errors.

    The model's line of one device is fitted, those of more are predicted: thin.
    """
    noun = labels.device_word(study.runs[0].header)
    model = study.model
    picture = page.new(
        title or f"Time of a step, by global batch and number of {noun}s",
        _note(study, "medians and quartiles" + "; thin: the model" * bool(model)),
        study.runs,
        (7.6, 5.4 if model else 4.2),
        rows=2 if model else 1,
        sharex=True,
        **({"height_ratios": [3, 1]} if model else {}),
    )
    above, *below = picture.axes
    for k, n in enumerate(study.counts):
        ink = {"color": page.count_color(k), "marker": page.MARKERS[k]}
        ms = [
            (batch, [1e3 * s for r in study.records[n, batch] for s in r.seconds])
            for batch in study.batches
            if (n, batch) in study.records
        ]
        if model is None:
            page.quartiles(above, ms, label=plural(n, noun), **ink)
            continue
        how = "fitted" if n == 1 else "predicted"
        name = f"{plural(n, noun)}, model {how}"
        page.quartiles(above, ms, ls="", label=name, **ink)
        along = numpy.geomspace(ms[0][0], ms[-1][0], 200)
        curve = [1e3 * model.seconds(n, batch) for batch in along]
        line = {"lw": 1, "ls": page.LINES[n > 1]}
        above.plot(along, curve, color=ink["color"], **line)
        errors = study.errors_of(n)
        percent = [100 * error for error in errors.values()]
        below[0].plot(list(errors), percent, **ink, **line)
    page.log_along(above, "x", base=2)
    page.log_along(above, "y")
    above.set_ylabel("milliseconds per step")
    above.legend()
    if below:
        below[0].axhline(0, color=page.PALE, lw=0.8)
        below[0].set_ylabel("error, %")
    picture.axes[-1].set_xlabel(BATCH)
    return picture


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


def parts(panels: Sequence[Axes], found: Sequence[Study]) -> None:
    """Where a step's milliseconds go: a panel per batch, a stacked row per study."""
    batches = sorted({batch for study in found for _, batch in study.parts})
    for axes, batch in zip(panels, batches):
        noun = labels.device_word(found[0].runs[0].header)
        rows = {
            f"{study.name}, {plural(n, noun)}": study.parts[n, batch]
            for study in found
            for n in study.counts
            if (n, batch) in study.parts
        }
        left = numpy.zeros(len(rows))
        for part, (names, ink) in PARTS.items():
            ms = [1e3 * sum(row[name] for name in names) for row in rows.values()]
            axes.barh(list(rows), ms, 0.6, left, label=part, ec="white", **ink)
            left += ms
        for k, whole in enumerate(left):
            axes.annotate(
                number(whole), (whole, k), (5, 0), va="center",
                textcoords="offset points",
            )  # fmt: skip
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.2 * max(left)))
        axes.set_xlabel(f"ms, global batch {batch:,}")
        axes.grid(False, axis="y")


def all_reduce(axes: Axes, runs: Sequence[Run]) -> None:
    """GB/s of the bus by bytes and variant, on the most devices.

    As NCCL counts it: an all-reduce of B bytes over n devices moves 2 (n - 1) / n B
    through each. LeNet's gradients are of many arrays, hollow, and again one array.
    """
    seconds = all_reduces(runs)
    count = max(n for n, _, _ in seconds)
    rows = {key[1:]: row for key, row in seconds.items() if key[0] == count}
    variants = list(dict.fromkeys(v for row in rows.values() for v in row if row[v]))
    for k, variant in enumerate(variants):
        one = []
        for (arrays, size), row in sorted(rows.items()):
            rates = [
                2 * (count - 1) / count * size / s / 1e9 for s in row.get(variant, ())
            ]
            if arrays == 1 and rates:
                one.append((size, rates))
            elif rates:
                style = {**page.look(k), "ls": "", "mfc": "white", "ms": 9}
                page.quartiles(axes, [(size, rates)], **style)
        page.quartiles(axes, one, **page.look(k, label=variant))
    page.bytes_along(axes, "bytes on each device; hollow: of several arrays")
    page.log_along(axes, "y")
    axes.set_ylabel("GB/s of the bus")
    axes.legend()


def accuracies(axes: Axes, study: Study) -> None:
    """Test accuracy against epoch, a curve per training."""
    for k, ((n, batch), epochs) in enumerate(study.trainings.items()):
        done = [(e.epoch, e.test_acc) for e in epochs if e.test_acc is not None]
        end = f"{done[-1][1]:.3f}" if done else ""
        if epochs[-1].why_not:
            end = f"diverged in epoch {epochs[-1].epoch}"
        name = f"{n} \u00d7 {batch // n:,}: {end}"
        axes.plot(
            [e for e, _ in done], [a for _, a in done], **page.look(k, label=name)
        )
    page.epochs_along(axes)
    axes.set_ylabel("test accuracy")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


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
                where = f"{plural(n, labels.device_word(runs[0].header))} ({how})"
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
