"""Trainings on several device counts: test accuracy, and seconds per epoch.

Runs of several chapters, such as from scratch and in Gluon, share both pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records import comparison
from d2lpar.records.kinds import Run, group, timed_epochs
from d2lpar.text import number, plural

CHAPTERS = {
    "multiple_gpus": "from scratch",
    "multiple_gpus_concise": "in Gluon",
    "multiple_machines": "several machines",
    "gan": "GAN",
}


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """``<stem>-accuracy`` and ``<stem>-seconds``."""
    runs = by_device_count(runs)
    return page.save({"accuracy": _accuracy(runs), **times(runs)}, folder, stem)


def by_device_count(runs: Sequence[Run]) -> list[Run]:
    """The runs, chapter by chapter, by ascending device count.

    Raises :class:`RecordError` for runs that do not belong in one picture: without
    epochs, of one chapter on the same number of devices, or on different data.
    """
    for run in runs:
        comparison.check(run)
    by_place = group(runs, lambda run: (run.header.chapter, run.header.num_devices))
    for (_, count), same in by_place.items():
        if len(same) > 1:
            raise RecordError(
                f"{labels.where(same[0])} and {labels.where(same[1])}: both are of "
                f"{plural(count, 'device')}; draw one of them, or compare them"
            )
    for run in runs[1:]:
        if run.header.dataset_sha256 != runs[0].header.dataset_sha256:
            raise RecordError(
                f"{labels.where(runs[0])} and {labels.where(run)}: were trained on "
                "different data; compare them instead"
            )
    return [same[0] for _, same in sorted(by_place.items())]


def of_chapters(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs by chapter, by ascending device count."""
    return group(runs, lambda run: run.header.chapter)


def workload(runs: Sequence[Run]) -> str:
    """What was trained, for a subtitle."""
    header = runs[0].header
    sizes = {run.header.settings.get("global_batch_size") for run in runs}
    one = sizes.pop() if len(sizes) == 1 else None
    batch = "" if one is None else f", global batch {one:,}"
    net = "GAN" if comparison.is_gan(runs[0]) else "LeNet"
    return labels.subtitle(f"{net} on {labels.data_name(header)}{batch}", runs)


def times(runs: Sequence[Run]) -> dict[str, Figure]:
    """The picture "seconds": a bar per run, with the speedup over the fewest devices.

    Runs are in the order of :func:`by_device_count`.
    """
    rows = []
    for chapter, same in of_chapters(runs).items():
        for k, (run, point) in enumerate(zip(same, comparison.scaling(same))):
            name = _where(run)
            if len(of_chapters(runs)) > 1:
                name = f"{CHAPTERS.get(chapter, chapter)}, {name}"
            note = f"{point.speedup:.2f}\u00d7" if k else ""
            rows.append(second_bar(run, name, page.count_color(k), note))
    picture = page.new(
        "Seconds per epoch",
        workload(runs),
        "Bars: median; whiskers: quartiles; dots: single epochs without warm-up. "
        f"{labels.stamp([run.header for run in runs])}",
        size=(page.WIDE, page.bars_height(rows)),
    )
    page.bars(picture.axes[0], rows, "s")
    return {"seconds": picture.figure}


def second_bar(run: Run, name: str, color: str, note: str = "") -> page.Bar:
    """The seconds per epoch of a run as a bar."""
    seconds = [epoch.seconds for epoch in timed_epochs(run)]
    return page.Bar(name, seconds, color, note)


def _where(run: Run) -> str:
    """On how many devices, and with how many threads: "2 contexts, 1 thread each"."""
    count = plural(run.header.num_devices, labels.device_word(run.header))
    return ", ".join(filter(None, (count, labels.threads(run.header))))


def _accuracy(runs: Sequence[Run]) -> Figure:
    chapters = of_chapters(runs)
    epochs = max(epoch.epoch for run in runs for epoch in run.epochs)
    final = [comparison.final_accuracy(run) for run in runs]
    picture = page.new(
        f"Test accuracy after {plural(epochs, 'epoch')}: "
        f"{' and '.join(f'{value:.3f}' for value in final)}",
        workload(runs),
        labels.stamp([run.header for run in runs]),
        panels=len(chapters),
        sharey="row",
        size=(max(page.WIDE, 4.4 * len(chapters)), page.TALL),
    )
    for axes, (chapter, same) in zip(picture.axes, chapters.items()):
        accuracy_curves(axes, same)
        if len(chapters) > 1:
            axes.set_title(CHAPTERS.get(chapter, chapter))
    for axes in picture.axes[1:]:
        axes.set_ylabel("")
    return picture.figure


def accuracy_curves(axes: Axes, runs: Sequence[Run], names: Sequence[str] = ()) -> None:
    """Test accuracy against epoch: the median of the repeats in the band of all.

    Labelled at their ends by `names`, or else by the runs' device counts.
    """
    curves(axes, runs, comparison.accuracy_by_epoch, "test accuracy", names)


def curves(
    axes: Axes,
    runs: Sequence[Run],
    values_of: Callable[[Run], dict[int, list[float]]],
    label: str,
    names: Sequence[str] = (),
) -> None:
    """The same for any values by epoch, one per repeat."""
    last, ends = 1, []
    for k, run in enumerate(runs):
        by_epoch = values_of(run)
        epochs, repeats = list(by_epoch), list(by_epoch.values())
        last = max(last, *epochs)
        color = page.count_color(k)
        # Data-parallel training gives the *same* curve on every device count, so later
        # ones are thinner, broken and marked smaller: the first shows through.
        style = page.look(
            k,
            zorder=3 + k,
            color=color,
            lw=max(1.3, 3.4 - 1.2 * k),
            ms=max(3.5, 8 - 2.5 * k),
            mfc="white" if k else color,
            markevery=max(1, len(epochs) // 20),
        )
        axes.plot(epochs, list(map(median, repeats)), clip_on=False, **style)
        if any(len(values) > 1 for values in repeats):
            low, high = list(map(min, repeats)), list(map(max, repeats))
            axes.fill_between(epochs, low, high, color=color, alpha=0.18, lw=0)
        name = names[k] if names else _where(run).partition(",")[0]
        end = median(repeats[-1])
        ends.append((epochs[-1], end, f"{name}: {number(end)}"))
    pad = max(0.3, 0.03 * last)
    axes.set_xlim(1 - min(pad, 0.9), last + pad)  # there is no epoch 0
    page.epochs_along(axes, labels.resume_epochs(runs))
    axes.set_ylabel(label)
    axes.margins(y=0.06)
    page.beside(axes, ends)
