"""Workers that share gradients in different ways: accuracy, seconds, bytes sent.

Plain sums, 2-bit gradients, servers that do not wait: one panel per question.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from d2lpar.figures import page
from d2lpar.figures.training import second_bars
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run, timed_epochs


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """``<stem>-sharing`` of runs of several workers that differ in how they share.

    Raises :class:`~d2lpar.errors.RecordError` for a run without epochs.
    """
    for run in runs:
        comparison.check(run)
    runs = sorted(runs, key=lambda run: (run.header.workers, run.header.variant))
    sent = [_megabytes(run) for run in runs]
    picture = page.new(
        runs,
        "Ways to share",
        f"{wording.reading_curves(runs)} {wording.reading_bars(runs)} On the wire: "
        "all that the workers' network interface sent in an epoch.",
        panels=3,
        keys=[_key(run, megabytes) for run, megabytes in zip(runs, sent)],
    )
    accuracy, seconds, wire = picture.axes
    lines = []
    for k, (run, megabytes) in enumerate(zip(runs, sent)):
        points = [(e.epoch, e.test_acc) for e in run.epochs if e.repeat == 0]
        lines += accuracy.plot(*zip(*points), **page.look(k))
        if megabytes:
            page.median_bar(wire, k, megabytes, "MB")
    page.epochs_along(accuracy)
    accuracy.set_ylabel("test accuracy")
    second_bars(seconds, runs)
    wire.set_xlim(seconds.get_xlim())
    wire.set_ylabel("MB on the wire per epoch")
    for axes in (seconds, wire):
        names = [run.header.variant or "sync" for run in runs]
        axes.set_xticks(range(len(runs)), names)
    picture.legend(lines)
    return page.save({"sharing": picture.figure}, folder, stem)


def _megabytes(run: Run) -> list[float]:
    """Sent in each epoch that counts, where it was recorded."""
    sent = (epoch.extra.get("wire_bytes") for epoch in timed_epochs(run))
    return [num_bytes / 1e6 for num_bytes in sent if num_bytes is not None]


def _key(run: Run, megabytes: list[float]) -> str:
    """How the run shared, and its results: "2 workers, async: accuracy 0.801, ..."."""
    name = wording.plural(run.header.workers, "worker")
    if run.header.variant:
        name += f", {run.header.variant}"
    seconds = wording.number(median(epoch.seconds for epoch in timed_epochs(run)))
    words = f"{name}: accuracy {run.epochs[-1].test_acc:.3f}, {seconds} s per epoch"
    if megabytes:
        words += f", {wording.number(median(megabytes))} MB on the wire"
    return words
