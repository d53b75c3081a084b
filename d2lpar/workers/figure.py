"""Workers that share gradients in different ways: bytes sent, seconds, accuracy.

Plain sums, 2-bit gradients, servers that do not wait: a row per way.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.comparison import final_accuracy
from d2lpar.records.kinds import Run, group, timed_epochs
from d2lpar.text import plural

WAYS = {"": "sums (dist_sync)", "2bit": "2 bits per gradient", "async": "dist_async"}


@page.plain_style()
def draw(runs: Sequence[Run], folder: Path, stem: str) -> list[Path]:
    """``<stem>-sharing`` of runs of several workers that differ in how they share.

    Runs that differ in their seed alone count as one way. Raises
    :class:`~d2lpar.errors.RecordError` for a run without epochs.
    """
    for run in runs:
        if not run.epochs:
            raise RecordError(f"{labels.where(run)}: holds no epochs")
    return page.save(
        {"sharing": picture(runs, "Ways to share gradients")}, folder, stem
    )


def picture(runs: Sequence[Run], title: str) -> page.Picture:
    """Bytes that all workers' interface sent, seconds, and accuracy, a row per way."""
    ways = by_way(runs)
    batch = runs[0].header.settings.get("global_batch_size")
    seeds = plural(min(map(len, ways.values())), "seed")
    words = (
        f"LeNet on {labels.data_name(runs[0].header)}, global batch {batch:,}, {seeds}"
    )
    picture = page.new(
        title,
        labels.subtitle(words, runs),
        runs,
        (10.5, page.height(len(ways)) + 0.3),
        columns=3,
        sharey=True,
    )
    columns: dict[str, list[page.Row]] = {"MB": [], "s": [], "accuracy": []}
    for k, (name, same) in enumerate(ways.items()):
        timed = [epoch for run in same for epoch in timed_epochs(run)]
        sent = [e.wire_bytes / 1e6 for e in timed if e.wire_bytes is not None]
        values = (sent, [e.seconds for e in timed], list(map(final_accuracy, same)))
        color = page.OTHERS[k % len(page.OTHERS)]
        for rows, found in zip(columns.values(), values):
            rows.append(page.Row(name, found, color, "" if found else "no counter"))
    units = (("MB", "MB sent per epoch"), ("s", "seconds per epoch"))
    for axes, (unit, label) in zip(picture.axes, (*units, ("", "last test accuracy"))):
        page.dots(axes, columns[unit or "accuracy"], unit, log=False)
        axes.set_xlabel(label)
        axes.margins(x=0.1)
    picture.axes[2].set_xlim(auto=True)
    picture.axes[2].autoscale(axis="x")
    return picture


def by_way(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs by their way to share gradients, and by the number of workers."""
    runs = sorted(runs, key=lambda run: (run.header.workers, run.header.variant))
    several = len({run.header.workers for run in runs}) > 1

    def name(run: Run) -> str:
        way = WAYS.get(run.header.variant, run.header.variant)
        return f"{plural(run.header.workers, 'worker')}, {way}" if several else way

    return group(runs, name)
