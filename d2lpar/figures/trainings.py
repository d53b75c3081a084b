"""Pictures of any training on several device counts: its curves and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes

from d2lpar.figures import page
from d2lpar.records import labels, measurements
from d2lpar.records.kinds import Run
from d2lpar.records.rule import NOT_TIMED, compare


def seconds(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``seconds``: a row per run, with the speedup over the first."""
    rows = []
    base = measurements.seconds_per_epoch(runs[0])
    for k, run in enumerate(runs):
        summary = measurements.seconds_per_epoch(run)
        note = "" if summary.n else NOT_TIMED
        if k and base.n and summary.n:
            note = page.times_as_fast(compare(base, summary))
        chapter = labels.CHAPTERS.get(run.header.chapter, run.header.chapter)
        name = f"{chapter}, {labels.configuration(run.header)}"
        rows.append(page.Row(name, summary.samples, page.count_color(k), note))
    title = page.answer(answers, "seconds", "Seconds per epoch")
    picture = page.new(title, workload(runs), runs, (7.6, page.height(len(rows))))
    (axes,) = picture.axes
    page.dots(axes, rows, "s")
    axes.set_xlabel(f"{axes.get_xlabel()} per epoch")
    return {"seconds": picture}


def workload(runs: Sequence[Run]) -> str:
    """Return the line below a picture: network, data, batch and hardware."""
    header = runs[0].header
    sizes = {run.header.settings.get("global_batch_size") for run in runs}
    one = sizes.pop() if len(sizes) == 1 else None
    batch = "" if one is None else f", global batch {one:,}"
    net = "GAN" if measurements.is_gan(runs[0]) else "LeNet"
    return labels.subtitle(f"{net} on {labels.data_name(header)}{batch}", runs)


def curves(
    axes: Axes,
    runs: Sequence[Run],
    measure: str = "test_acc",
    label: str = "test accuracy",
) -> None:
    """Draw a measure by epoch: medians in the band of repeats."""
    for k, run in enumerate(runs):
        by_epoch = measurements.by_epoch(run, measure)
        color = page.count_color(k)
        repeats = list(by_epoch.values())
        # Data-parallel training gives the *same* curve on every device count, so later
        # ones are thinner, broken and marked smaller: the first shows through.
        style = page.look(
            k, color=color, lw=max(1.3, 3.0 - k), ms=max(3.5, 8 - 2.5 * k)
        )
        axes.plot(
            list(by_epoch),
            list(map(median, repeats)),
            label=labels.count(run.header),
            mfc="white" if k else color,
            markevery=max(1, len(by_epoch) // 20),
            zorder=3 + k,
            **style,
        )
        low, high = list(map(min, repeats)), list(map(max, repeats))
        axes.fill_between(list(by_epoch), low, high, color=color, alpha=0.18, lw=0)
    page.epochs_along(axes, runs)
    axes.set_ylabel(label)
    axes.legend()
