"""Workers that share gradients in different ways: accuracy, seconds, bytes sent.

Plain sums, 2-bit gradients, servers that do not wait: one panel per question.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes

from d2lpar.figures import page
from d2lpar.figures.training import workload
from d2lpar.records import comparison, wording
from d2lpar.records.kinds import Run, group, timed_epochs

ENOUGH_SEEDS = 3  # before a word is said about accuracy
WAYS = {"": "sums (dist_sync)", "2bit": "2 bits per gradient", "async": "dist_async"}


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """``<stem>-sharing`` of runs of several workers that differ in how they share.

    Runs that differ in their seed alone count as one. Raises
    :class:`~d2lpar.errors.RecordError` for a run without epochs.
    """
    for run in runs:
        comparison.check(run)
    runs = sorted(runs, key=lambda run: (run.header.workers, run.header.variant))
    ways = group(runs, lambda run: (run.header.workers, run.header.variant))
    same = {workers for workers, _ in ways}
    names = [_name(*way, len(same) > 1) for way in ways]
    seeds = min(len(found) for found in ways.values())
    one = f"{wording.plural(min(same), 'worker')}: " if len(same) == 1 else ""
    each = "one training each, which says nothing of accuracy"
    if seeds >= ENOUGH_SEEDS:
        each = f"the accuracies' medians of {seeds} seeds, bands from least to most"
    picture = page.new(
        one + _title(ways),
        workload(runs),
        f"Left: {each}. Right: seconds, and all that the workers' network interface "
        f"sent. {wording.stamp([run.header for run in runs])}",
        panels=2,
        size=(11.0, page.TALL),
        width_ratios=[1.1, 1],
    )
    curves, right = picture.axes
    _accuracies(curves, ways, names)
    rows = []
    for k, (name, found) in enumerate(zip(names, ways.values())):
        seconds = [e.seconds for run in found for e in timed_epochs(run)]
        sent = [m for run in found for m in _megabytes(run)]
        note = f"{wording.number(median(sent))} MB sent" if sent else ""
        rows.append(page.Bar(name, seconds, page.COLORS[k % len(page.COLORS)], note))
    page.bars(right, rows, "s", 5.2)
    right.set_xlim(right.get_xlim()[0], 1.25 * right.get_xlim()[1])
    right.set_xlabel("seconds per epoch")
    return page.save({"sharing": picture.figure}, folder, stem)


def _title(ways: dict) -> str:
    """What the other ways cost or save, against plain sums."""
    base = next((found for (_, way), found in ways.items() if not way), None)
    if base is None:
        return "Ways to share gradients"
    said = []
    for (_, way), found in ways.items():
        if way == "2bit" and (sent := _sent(found)) and (all_ := _sent(base)):
            said.append(f"2-bit gradients send {sent / all_:.0%} of the bytes")
        elif way:
            share = _seconds(found) / _seconds(base)
            said.append(f"{way} takes {share:.0%} of the time")
    return "; ".join(said) or "Ways to share gradients"


def _seconds(runs: Sequence[Run]) -> float:
    return median(e.seconds for run in runs for e in timed_epochs(run))


def _sent(runs: Sequence[Run]) -> float:
    sent = [m for run in runs for m in _megabytes(run)]
    return median(sent) if sent else 0.0


def _accuracies(axes: Axes, ways: dict, names: Sequence[str]) -> None:
    """Medians over all seeds in the band of all, a line per way."""
    ends = []
    for k, (name, found) in enumerate(zip(names, ways.values())):
        pairs = [(e.epoch, e.test_acc) for run in found for e in run.epochs]
        by_epoch = group(sorted(pairs), lambda pair: pair[0], lambda pair: pair[1])
        epochs, values = list(by_epoch), list(by_epoch.values())
        style = page.look(k)
        axes.plot(epochs, list(map(median, values)), **style)
        if any(len(same) > 1 for same in values):
            band = list(map(min, values)), list(map(max, values))
            axes.fill_between(epochs, *band, color=style["color"], alpha=0.15, lw=0)
        last = median(values[-1])
        ends.append((epochs[-1], last, f"{name}: {last:.3f}"))
    page.epochs_along(axes)
    axes.set_ylabel("test accuracy")
    page.beside(axes, ends)


def _megabytes(run: Run) -> list[float]:
    """Sent in each epoch that counts, where it was recorded."""
    sent = (epoch.extra.get("wire_bytes") for epoch in timed_epochs(run))
    return [num_bytes / 1e6 for num_bytes in sent if num_bytes is not None]


def _name(workers: int, way: str, say_workers: bool) -> str:
    name = WAYS.get(way, way)
    return f"{wording.plural(workers, 'worker')}, {name}" if say_workers else name
