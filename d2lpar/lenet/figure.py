"""Trainings on several device counts: accuracy and seconds.

Runs of several chapters, such as from scratch and in Gluon, share both pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median

from matplotlib.axes import Axes

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records import comparison
from d2lpar.records.kinds import Run, group, timed_epochs
from d2lpar.text import plural


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``accuracy`` and ``seconds`` of runs that differ in chapter and devices.

    Accuracy stands by epoch and by seconds of training. `answers` title the pictures.
    """
    runs = by_device_count(runs)
    chapters = group(runs, lambda run: run.header.chapter)
    size = (10.4, 1 + 3.4 * len(chapters))
    title = page.answer(answers, "accuracy", "Test accuracy", size[0])
    grid = {"rows": len(chapters), "columns": 2, "sharey": True}
    accuracy = page.new(title, workload(runs), runs, size, **grid)
    for k, (chapter, same) in enumerate(chapters.items()):
        for axes, by_seconds in zip(accuracy.axes[2 * k :], (False, True)):
            curves(axes, same, by_seconds=by_seconds)
            if len(chapters) > 1:
                axes.set_title(labels.CHAPTERS.get(chapter, chapter))
    return {"accuracy": accuracy, **seconds(runs, answers)}


def seconds(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``seconds``: a row per run, with the speedup over its chapter's first."""
    runs, rows = by_device_count(runs), []
    for chapter, same in group(runs, lambda run: run.header.chapter).items():
        name = labels.CHAPTERS.get(chapter, chapter)
        rows += page.by_count(
            {
                f"{name}, {labels.configuration(run.header)}": [
                    epoch.seconds for epoch in timed_epochs(run)
                ]
                for run in same
            }
        )
    title = page.answer(answers, "seconds", "Seconds per epoch")
    size = (7.6, page.height(len(rows)))
    picture = page.new(title, workload(runs), runs, size)
    (axes,) = picture.axes
    page.dots(axes, rows, "s")
    axes.set_xlabel(f"{axes.get_xlabel()} per epoch")
    return {"seconds": picture}


def by_device_count(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, chapter by chapter, by ascending device count.

    Raises :class:`RecordError` for runs that do not belong in one picture: without
    epochs, of one chapter on the same number of devices, or on different data.
    """
    places: dict[tuple[str, int], Run] = {}
    for run in runs:
        comparison.check(run)
        place = run.header.chapter, run.header.num_devices
        if place in places:
            raise RecordError(
                f"{labels.where(places[place])} and {labels.where(run)}: both are of "
                f"{plural(place[1], 'device')}; draw one of them, or compare them"
            )
        places[place] = run
        if run.header.dataset_sha256 != runs[0].header.dataset_sha256:
            raise RecordError(
                f"{labels.where(runs[0])} and {labels.where(run)}: were trained on "
                "different data; compare them instead"
            )
    return [run for _, run in sorted(places.items())]


def workload(runs: Sequence[Run]) -> str:
    """Say what was trained and where, for the line below a picture."""
    header = runs[0].header
    sizes = {run.header.settings.get("global_batch_size") for run in runs}
    one = sizes.pop() if len(sizes) == 1 else None
    batch = "" if one is None else f", global batch {one:,}"
    net = "GAN" if comparison.is_gan(runs[0]) else "LeNet"
    return labels.subtitle(f"{net} on {labels.data_name(header)}{batch}", runs)


def curves(
    axes: Axes,
    runs: Sequence[Run],
    values_of: Callable[[Run], dict[int, list[float]]] = comparison.accuracy_by_epoch,
    label: str = "test accuracy",
    by_seconds: bool = False,
) -> None:
    """Draw values by epoch or seconds of training: medians in the band of repeats.

    The runs are on ascending device counts.
    """
    for k, run in enumerate(runs):
        by_epoch, color = values_of(run), page.count_color(k)
        repeats = list(by_epoch.values())
        along = list(by_epoch)
        if by_seconds:
            epochs = group(run.epochs, lambda e: e.epoch, lambda e: e.seconds)
            passed = dict(zip(epochs, accumulate(map(median, epochs.values()))))
            along = [passed[epoch] for epoch in by_epoch]
        # Data-parallel training gives the *same* curve on every device count, so later
        # ones are thinner, broken and marked smaller: the first shows through.
        axes.plot(
            along,
            list(map(median, repeats)),
            label=labels.count(run.header),
            color=color,
            ls=page.LINES[k % len(page.LINES)],
            lw=max(1.3, 3.0 - k),
            marker=page.MARKERS[k % len(page.MARKERS)],
            ms=max(3.5, 8 - 2.5 * k),
            mfc="white" if k else color,
            markevery=max(1, len(along) // 20),
            zorder=3 + k,
        )
        low, high = list(map(min, repeats)), list(map(max, repeats))
        axes.fill_between(along, low, high, color=color, alpha=0.18, lw=0)
    if by_seconds:
        axes.set_xlabel("seconds of training")
        axes.set_xlim(left=0)
    else:
        page.epochs_along(axes, runs)
    axes.set_ylabel(label)
    axes.legend()
