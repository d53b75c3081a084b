"""Trainings on several device counts: test accuracy, and seconds per epoch.

Runs of several chapters, such as from scratch and in Gluon, share both pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run, Sample, group, timed_epochs

CHAPTERS = {
    "multiple_gpus": "from scratch",
    "multiple_gpus_concise": "in Gluon",
    "multiple_machines": "several machines",
    "gan": "GAN",
}


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
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
    place = lambda run: (run.header.chapter, run.header.num_devices)  # noqa: E731
    for (_, count), same in group(runs, place).items():
        if len(same) > 1:
            raise RecordError(
                f"{wording.where(same[0])} and {wording.where(same[1])}: both are of "
                f"{wording.plural(count, 'device')}; draw one of them, or compare them"
            )
    for run in runs[1:]:
        if run.header.dataset_sha256 != runs[0].header.dataset_sha256:
            raise RecordError(
                f"{wording.where(runs[0])} and {wording.where(run)}: were trained on "
                "different data; compare them instead"
            )
    return sorted(runs, key=place)


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
    words = f"{net} on {wording.data_name(header)}{batch}"
    return wording.subtitle(words, runs)


def times(runs: Sequence[Run]) -> dict[str, Figure]:
    """The picture "seconds": a bar per run, with the speedup over the fewest devices.

    Runs are in the order of :func:`by_device_count`.
    """
    rows, gains = [], []
    for chapter, same in of_chapters(runs).items():
        points = comparison.scaling(same)
        several = len(of_chapters(runs)) > 1
        for k, (run, point) in enumerate(zip(same, points)):
            name = _where(run)
            if several:
                name = f"{CHAPTERS.get(chapter, chapter)}, {name}"
            note = f"{point.speedup:.2f}\u00d7" if k else ""
            rows.append(second_bar(run, name, page.count_color(k), note))
        gains += [(chapter, point) for point in points[-1:] if len(points) > 1]
    picture = page.new(
        _times_title(runs, gains),
        workload(runs),
        f"{wording.reading_bars(runs)} {wording.stamp([run.header for run in runs])}",
        size=(page.WIDE, page.bars_height(rows)),
    )
    page.bars(picture.axes[0], rows, "s")
    picture.axes[0].set_xlabel("seconds per epoch")
    return {"seconds": picture.figure}


def _times_title(runs: Sequence[Run], gains: Sequence) -> str:
    noun = wording.noun(runs[0].header)
    if not gains:
        run = runs[0]
        seconds = wording.number(comparison.seconds_per_epoch(run).median)
        return f"An epoch takes {seconds} s on {_count(run)}"
    said = []
    for chapter, point in gains:
        where = f" {CHAPTERS.get(chapter, chapter)}" if len(gains) > 1 else ""
        said.append(f"{wording.times(point.speedup)}{where}")
    point = gains[0][1]
    few = round(point.num_devices / point.ideal)
    many = f"{wording.plural(point.num_devices, noun)} train"
    return f"{many} {' and '.join(said)} as {few}"


def second_bar(run: Run, name: str, color: str, note: str = "") -> page.Bar:
    """The seconds per epoch of a run as a bar."""
    seconds = [epoch.seconds for epoch in timed_epochs(run)]
    return page.Bar(name, seconds, color, note)


def _count(run: Run) -> str:
    return wording.plural(run.header.num_devices, wording.noun(run.header))


def _where(run: Run) -> str:
    """On how many devices, and with how many threads: "2 contexts, 1 thread each"."""
    return ", ".join(filter(None, (_count(run), wording.threads(run.header))))


def _accuracy(runs: Sequence[Run]) -> Figure:
    chapters = of_chapters(runs)
    watched = any(run.of(Sample) for run in runs) and len(chapters) == 1
    picture = page.new(
        _accuracy_title(runs),
        workload(runs),
        f"{wording.reading_curves(runs)} {wording.reading_seams(runs)}"
        f"{'Below: how busy the devices were. ' * watched}"
        f"{wording.stamp([run.header for run in runs])}",
        panels=len(chapters),
        rows=1 + watched,
        sharey="row",
        sharex="col",
        size=(max(page.WIDE, 4.4 * len(chapters)), page.TALL + 1.2 * watched),
        **({"height_ratios": [3.4, 1]} if watched else {}),
    )
    for axes, (chapter, same) in zip(picture.axes, chapters.items()):
        accuracy_curves(axes, same)
        if len(chapters) > 1:
            axes.set_title(CHAPTERS.get(chapter, chapter))
    for axes in picture.axes[1 : len(chapters)]:
        axes.set_ylabel("")
    if watched:
        _busy(picture.axes[1], runs)
        picture.axes[0].set(xlabel="")
    return picture.figure


def _accuracy_title(runs: Sequence[Run]) -> str:
    epochs = max(epoch.epoch for run in runs for epoch in run.epochs)
    after = f"after {wording.plural(epochs, 'epoch')}"
    by_chapter = [list(map(comparison.final_accuracy, s)) for s in _ends(runs)]
    if max(map(len, by_chapter)) == 1:
        best = max(max(values) for values in by_chapter)
        return f"Test accuracy reaches {best:.3f} {after}"
    gap = max(max(values) - min(values) for values in by_chapter)
    counts = sorted({run.header.num_devices for run in runs})
    noun = wording.noun(runs[0].header)
    many = f"{' and '.join(map(str, counts))} {noun}s"
    if gap < 0.0005:
        return f"{many} end at the same test accuracy {after}"
    return f"{many} end within {gap:.3f} of each other in test accuracy, {after}"


def _ends(runs: Sequence[Run]) -> list[list[Run]]:
    return list(of_chapters(runs).values())


def accuracy_curves(axes: Axes, runs: Sequence[Run], names: Sequence[str] = ()) -> None:
    """Test accuracy against epoch: the median of the repeats in the band of all.

    Labelled at their ends by `names`, or else by the runs' device counts.
    """
    last, ends = 1, []
    for k, run in enumerate(runs):
        by_epoch = comparison.accuracy_by_epoch(run)
        epochs, repeats = list(by_epoch), list(by_epoch.values())
        last = max(last, *epochs)
        # Data-parallel training is to give the *same* curve on every device count, so
        # later ones are thinner, broken and marked smaller: the first shows through.
        sizes = {"lw": max(1.3, 3.4 - 1.2 * k), "ms": max(3.5, 8 - 2.5 * k)}
        style = page.look(k, zorder=3 + k, **sizes)
        style["color"] = page.count_color(k)
        style["mfc"] = "white" if k else style["color"]
        style["markevery"] = max(1, len(epochs) // 20)
        axes.plot(epochs, list(map(median, repeats)), clip_on=False, **style)
        if any(len(values) > 1 for values in repeats):
            low, high = list(map(min, repeats)), list(map(max, repeats))
            axes.fill_between(epochs, low, high, color=style["color"], alpha=0.18, lw=0)
        name = names[k] if names else _count(run)
        ends.append((epochs[-1], median(repeats[-1]), f"{name}: {final(run)}"))
    pad = max(0.3, 0.03 * last)
    axes.set_xlim(1 - min(pad, 0.9), last + pad)  # there is no epoch 0
    page.epochs_along(axes, wording.seams(runs))
    axes.set_ylabel("test accuracy")
    axes.margins(y=0.06)
    page.beside(axes, ends)


def final(run: Run) -> str:
    """What a label says of the end of a training: its accuracy, a GAN's distance."""
    if comparison.is_gan(run):
        return f"{comparison.final_quality(run):.3f}"
    return f"{comparison.final_accuracy(run):.3f}"


def _busy(axes: Axes, runs: Sequence[Run]) -> None:
    """How busy the devices were during each epoch."""
    for k, run in enumerate(runs):
        by_epoch = group(run.of(Sample), lambda s: (s.repeat, s.epoch))
        points = [
            (epoch - 1 + (i + 0.5) / len(same), percent)
            for (_, epoch), same in by_epoch.items()
            for i, sample in enumerate(same)
            if (percent := comparison.busy_percent(sample, run)) is not None
        ]
        style = page.look(k, ls="", ms=2.5, alpha=0.6, color=page.count_color(k))
        axes.plot(*zip(*points), **style)
    # An epoch's samples lie before its end.
    axes.set(ylim=(0, 105), yticks=(0, 50, 100), xlim=(0, None))
    axes.set(xlabel="epoch", ylabel="busy (%)")
