"""Workers that share gradients in different ways: accuracy, seconds, bytes sent.

Plain sums, 2-bit gradients, servers that do not wait: one panel per question.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.kinds import Run, group, timed_epochs
from d2lpar.text import number, plural

WAYS = {"": "sums (dist_sync)", "2bit": "2 bits per gradient", "async": "dist_async"}


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """``<stem>-sharing`` of runs of several workers that differ in how they share.

    Runs that differ in their seed alone count as one. Raises
    :class:`~d2lpar.errors.RecordError` for a run without epochs.
    """
    for run in runs:
        if not run.epochs:
            raise RecordError(f"{labels.where(run)}: holds no epochs")
    ways = by_way(runs)
    seeds = min(map(len, ways.values()))
    header = runs[0].header
    batch = header.settings.get("global_batch_size")
    picture = page.new(
        "Ways to share gradients",
        labels.subtitle(
            f"LeNet on {labels.data_name(header)}, global batch {batch:,}", runs
        ),
        f"Left: medians and ranges of {plural(seeds, 'seed')}. Right: MB are all that "
        f"the workers' interface sent. {labels.stamp([run.header for run in runs])}",
        panels=2,
        size=(11.0, page.TALL),
        width_ratios=[1.1, 1],
    )
    curves, bars = picture.axes
    ends, rows = [], []
    for k, (name, same) in enumerate(ways.items()):
        epochs = sorted((e.epoch, e.test_acc) for run in same for e in run.epochs)
        by_epoch = group(epochs, lambda pair: pair[0], lambda pair: pair[1])
        medians = [median(values) for values in by_epoch.values()]
        curves.plot(list(by_epoch), medians, **page.look(k))
        if len(same) > 1:  # the band of all seeds
            lowest = [min(values) for values in by_epoch.values()]
            highest = [max(values) for values in by_epoch.values()]
            color = page.look(k)["color"]
            curves.fill_between(
                list(by_epoch), lowest, highest, color=color, alpha=0.15, lw=0
            )
        ends.append((max(by_epoch), medians[-1], f"{name}: {medians[-1]:.3f}"))
        timed = [epoch for run in same for epoch in timed_epochs(run)]
        sent = [e.wire_bytes / 1e6 for e in timed if e.wire_bytes is not None]
        note = f"{number(median(sent))} MB sent" if sent else ""
        seconds = [e.seconds for e in timed]
        rows.append(page.Bar(name, seconds, page.COLORS[k % len(page.COLORS)], note))
    page.epochs_along(curves)
    curves.set_ylabel("test accuracy")
    page.beside(curves, ends)
    page.bars(bars, rows, "s", 5.2)
    bars.set_xlim(right=1.25 * bars.get_xlim()[1])
    bars.set_xlabel("seconds per epoch")
    return page.save({"sharing": picture.figure}, folder, stem)


def by_way(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs by their way to share gradients, and by the number of workers."""
    runs = sorted(runs, key=lambda run: (run.header.workers, run.header.variant))
    several = len({run.header.workers for run in runs}) > 1

    def name(run: Run) -> str:
        way = WAYS.get(run.header.variant, run.header.variant)
        return f"{plural(run.header.workers, 'worker')}, {way}" if several else way

    return group(runs, name)
