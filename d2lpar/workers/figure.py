"""Pictures of ways to share gradients: bytes sent, seconds and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from d2lpar.figures import page
from d2lpar.records import labels
from d2lpar.records.comparison import check, final_accuracy
from d2lpar.records.kinds import Run, group, timed_epochs
from d2lpar.records.rule import NOT_TIMED
from d2lpar.text import plural

WAYS = {"": "sums (dist_sync)", "2bit": "2 bits per gradient", "async": "dist_async"}


def pictures(
    runs: Sequence[Run], answers: page.Answers = None
) -> dict[str, page.Picture]:
    """Draw ``sharing``; seeds of one way are one row. RecordError without epochs."""
    for run in runs:
        check(run)
    title = page.answer(answers, "sharing", "Ways to share gradients", inches=10.5)
    return {"sharing": picture(runs, title)}


def picture(runs: Sequence[Run], title: str) -> page.Picture:
    """Draw bytes that all workers sent, seconds, and accuracy, a row per way."""
    ways = by_way(runs)
    batch = runs[0].header.settings.get("global_batch_size")
    seeds = plural(min(map(len, ways.values())), "seed")
    data = labels.data_name(runs[0].header)
    words = f"LeNet on {data}, global batch {batch:,}, {seeds}"
    size = (10.5, page.height(len(ways)) + 0.3)
    note = labels.subtitle(words, runs)
    drawn = page.new(title, note, runs, size, columns=3, sharey=True)
    sent, seconds, accuracies = [], [], []
    for name, same in ways.items():
        timed = [epoch for run in same for epoch in timed_epochs(run)]
        epochs = timed or [epoch for run in same for epoch in run.epochs]
        mb = [e.wire_bytes / 1e6 for e in epochs if e.wire_bytes is not None]
        sent.append(page.Row(name, mb, page.INK, "" if mb else "no counter"))
        why_not = "" if timed else NOT_TIMED
        seconds.append(page.Row(name, [e.seconds for e in timed], page.INK, why_not))
        accuracies.append(page.Row(name, list(map(final_accuracy, same)), page.INK))
    panels = (
        (sent, "MB", "MB sent per epoch"),
        (seconds, "s", "seconds per epoch"),
        (accuracies, "", "last test accuracy"),
    )
    for axes, (rows, unit, label) in zip(drawn.axes, panels):
        page.dots(axes, rows, unit, log=False)
        axes.set_xlabel(label)
        axes.margins(x=0.1)
    drawn.axes[2].autoscale(axis="x")
    return drawn


def by_way(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs by their way to share gradients, and by the number of workers."""
    runs = sorted(runs, key=lambda run: (run.header.workers, run.header.variant))
    several = len({run.header.workers for run in runs}) > 1

    def name(run: Run) -> str:
        way = WAYS.get(run.header.variant, run.header.variant)
        return f"{plural(run.header.workers, 'worker')}, {way}" if several else way

    return group(runs, name)
