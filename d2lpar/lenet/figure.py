"""Trainings on several device counts, and two runs side by side: accuracy and seconds.

Runs of several chapters, such as from scratch and in Gluon, share both pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from statistics import median

from matplotlib.axes import Axes

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records import comparison
from d2lpar.records.comparison import Comparison
from d2lpar.records.kinds import Run, group, timed_epochs
from d2lpar.text import number, plural


def pictures(
    runs: Sequence[Run], answers: Mapping[str, Sequence[str]] | None = None
) -> dict[str, page.Picture]:
    """``accuracy`` and ``seconds`` of runs that differ in chapter and device count.

    Accuracy stands by epoch and by seconds of training.

    `answers` holds the sentences that title them.
    """
    answers = answers or {}
    runs = by_device_count(runs)
    chapters = group(runs, lambda run: run.header.chapter)
    size = (10.4, 1 + 3.4 * len(chapters))
    title = page.answer(answers.get("accuracy", ()), "Test accuracy", size[0])
    grid = {"rows": len(chapters), "columns": 2, "sharey": True}
    accuracy = page.new(title, workload(runs), runs, size, **grid)
    for k, (chapter, same) in enumerate(chapters.items()):
        for axes, by_seconds in zip(accuracy.axes[2 * k :], (False, True)):
            curves(axes, same, by_seconds=by_seconds)
            if len(chapters) > 1:
                axes.set_title(labels.CHAPTERS.get(chapter, chapter))
    return {"accuracy": accuracy, "seconds": times(runs, answers.get("seconds", ()))}


def seconds(
    runs: Sequence[Run], answers: Mapping[str, Sequence[str]] | None = None
) -> dict[str, page.Picture]:
    """``seconds`` alone, for a chapter that trains what another one has shown."""
    found = (answers or {}).get("seconds", ())
    return {"seconds": times(by_device_count(runs), found)}


def compared(a: Run, b: Run, found: Comparison) -> page.Picture:
    """Two runs side by side: accuracy or quality on the left, seconds on the right."""
    runs, (low, high) = (a, b), found.spread
    title = f"Samples per second of b over a: {number(found.speedup)} "
    title += f"({low:.2f} to {high:.2f} by the quartiles)"
    note = f"Different in a and b: {'; '.join(found.differences) or 'nothing else'}."
    drawn = page.new(title, note, runs, (10.5, 4.2), columns=2)
    left, right = drawn.axes
    if comparison.is_gan(a):
        values_of, label = comparison.quality_by_epoch, "Fréchet distance"
        curves(left, runs, values_of, label, names=("a", "b"))
        page.log_along(left, "y")
    else:
        curves(left, runs, names=("a", "b"))
    rows = []
    sides = zip("ab", runs, (found.a, found.b), colors(runs))
    for name, run, side, color in sides:
        seconds = [epoch.seconds for epoch in timed_epochs(run)]
        rows.append(page.Row(f"{name}: {side.label}", seconds, color))
    page.dots(right, rows, "s")
    return drawn


def by_device_count(runs: Sequence[Run]) -> list[Run]:
    """The runs, chapter by chapter, by ascending device count.

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
    """What was trained and where, for the line below a picture."""
    header = runs[0].header
    sizes = {run.header.settings.get("global_batch_size") for run in runs}
    one = sizes.pop() if len(sizes) == 1 else None
    batch = "" if one is None else f", global batch {one:,}"
    net = "GAN" if comparison.is_gan(runs[0]) else "LeNet"
    return labels.subtitle(f"{net} on {labels.data_name(header)}{batch}", runs)


def times(runs: Sequence[Run], sentences: Sequence[str] = ()) -> page.Picture:
    """A row of timed epochs per run, with the speedup over its chapter's first."""
    rows = []
    for chapter, same in group(runs, lambda run: run.header.chapter).items():
        seconds = {
            labels.configuration(run.header): [e.seconds for e in timed_epochs(run)]
            for run in same
        }
        name = labels.CHAPTERS.get(chapter, chapter)
        rows += [
            row._replace(name=f"{name}, {row.name}") for row in page.by_count(seconds)
        ]
    size = (7.6, page.height(len(rows)))
    title = page.answer(sentences, "Seconds per epoch", size[0])
    picture = page.new(title, workload(runs), runs, size)
    (axes,) = picture.axes
    page.dots(axes, rows, "s")
    axes.set_xlabel(f"{axes.get_xlabel()} per epoch")
    return picture


def colors(runs: Sequence[Run]) -> list[str]:
    """A color per run: by its device count where they differ, or else by the order."""
    counts = [run.header.num_devices for run in runs]
    ranks = sorted(set(counts))
    several = len(ranks) > 1
    return [
        page.count_color(ranks.index(count) if several else k)
        for k, count in enumerate(counts)
    ]


def curves(
    axes: Axes,
    runs: Sequence[Run],
    values_of: Callable[[Run], dict[int, list[float]]] = comparison.accuracy_by_epoch,
    label: str = "test accuracy",
    names: Sequence[str] = (),
    by_seconds: bool = False,
) -> None:
    """Values against epochs, or seconds of training: medians in the band of repeats.

    Named by `names`, or else by the runs' device counts.
    """
    for k, (run, color) in enumerate(zip(runs, colors(runs))):
        by_epoch = values_of(run)
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
            label=names[k] if names else labels.count(run.header),
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
