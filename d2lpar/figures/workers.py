"""Several workers that share in different ways: seconds, accuracy, bytes on the wire.

Plain sums, 2-bit gradients, servers that do not wait: one panel for each question.
Never imports MXNet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from d2lpar.figures.page import (
    COLORS,
    HATCHES,
    LINES,
    MARKERS,
    new_page,
    plain_style,
    save,
)
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run, timed_epochs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEGABYTE = 1e6


def draw(
    runs: Sequence[Run],
    out: Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Draw runs of several workers that differ in how they share; the files written.

    ``<stem>-sharing`` as PNG and SVG. Raises :class:`~d2lpar.errors.RecordError` for a
    run without epochs.
    """
    for run in runs:
        comparison.check(run)
    runs = sorted(runs, key=lambda run: (run.header.workers, run.header.variant))
    with plain_style():
        return save({f"{stem}-sharing": _picture(runs)}, Path(out))


def name(run: Run) -> str:
    """How the run shared: "2 workers", "2 workers, async-2bit"."""
    workers = wording.plural(run.header.workers, "worker")
    return ", ".join(filter(None, (workers, run.header.variant)))


def wire_bytes(run: Run) -> list[int]:
    """Bytes on the wire of each epoch that counts, where they were recorded."""
    return [
        epoch.extra["wire_bytes"]
        for epoch in timed_epochs(run)
        if "wire_bytes" in epoch.extra
    ]


def _picture(runs: Sequence[Run]) -> Figure:
    page = new_page(
        wording.title("Ways to share", runs),
        f"{wording.reading_curves(runs)} {wording.reading_bars(runs)} On the wire: "
        "all that the workers' network interface sent in an epoch. "
        f"{wording.provenance(runs)}",
        panels=3,
        keys=[f"{name(run)}: {_summary(run)}" for run in runs],
        ticks=[run.header.variant or "sync" for run in runs],
    )
    lines = []
    for k, run in enumerate(runs):
        epochs = [epoch for epoch in run.epochs if epoch.repeat == 0]
        lines += page.axes[0].plot(
            [epoch.epoch for epoch in epochs],
            [epoch.test_acc for epoch in epochs],
            color=COLORS[k % len(COLORS)],
            ls=LINES[k % len(LINES)],
            marker=MARKERS[k % len(MARKERS)],
            ms=4,
        )
    page.axes[0].set_xlabel("epoch")
    page.axes[0].set_ylabel("test accuracy")
    _bars(page.axes[1], runs, lambda run: [e.seconds for e in timed_epochs(run)])
    page.axes[1].set_ylabel("seconds per epoch")
    _bars(page.axes[2], runs, lambda run: [n / MEGABYTE for n in wire_bytes(run)])
    page.axes[2].set_ylabel("MB on the wire per epoch")
    page.legend(lines)
    return page.figure


def _bars(
    axes: Axes, runs: Sequence[Run], values: Callable[[Run], list[float]]
) -> None:
    for k, run in enumerate(runs):
        found = values(run)
        if not found:
            continue
        axes.bar(
            k, median(found), 0.6, color=COLORS[k % len(COLORS)], edgecolor="white",
            hatch=HATCHES[k % len(HATCHES)],
        )  # fmt: skip
        axes.plot([k] * len(found), found, "k.", ms=3)
    axes.set_xticks(range(len(runs)), [run.header.variant or "sync" for run in runs])
    axes.set_ylim(bottom=0)


def _summary(run: Run) -> str:
    seconds = median(epoch.seconds for epoch in timed_epochs(run))
    words = [
        f"accuracy {run.epochs[-1].test_acc:.3f}",
        f"{wording.number(seconds)} s an epoch",
    ]
    sent = wire_bytes(run)
    if sent:
        words.append(f"{wording.number(median(sent) / MEGABYTE)} MB on the wire")
    return ", ".join(words)
