"""A benchmark's picture: one bar per arm, its quartiles, and every sample as a dot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import BenchmarkHeader, Run, group
from d2lpar.records.summary import summarize
from d2lpar.records.wording import commit, gpu_words, plural, where


@page.plain_style()
def draw(
    runs: Sequence[Run], folder: Path, stem: str, *, data_dir=None, mp4: bool = False
) -> list[Path]:
    """One benchmark as ``<stem>.png`` and ``.svg``, one panel per work.

    Raises :class:`RecordError` for several records of one benchmark.
    """
    if len(runs) > 1:
        raise RecordError(
            f"{' and '.join(map(where, runs))}: records of one benchmark, {stem}; "
            "name one of them"
        )
    (run,) = runs
    arms = arm_times(run)
    works = group(arms, lambda arm: arm.work)
    columns = min(len(works), 2)
    pairs = [list(works)[k : k + columns] for k in range(0, len(works), columns)]
    rows = [max(len(works[work]) for work in pair) for pair in pairs]

    peers = any(arm.is_peer for arm in arms)
    title = f"Seconds for {run.header.work}" + ": ours and the peers" * peers
    width, height = (8.8, 7.2)[columns == 1], 0.47 * sum(rows) + 0.6 * len(rows) + 1.3
    figure = Figure(figsize=(width, height), layout="constrained")
    page.label(figure, title, _caption(run.header, peers))
    panels = figure.subplots(len(rows), columns, squeeze=False, height_ratios=rows)
    for pair, row, row_panels in zip(pairs, rows, panels):
        for work, axes in itertools.zip_longest(pair, row_panels):
            if work is None:
                axes.set_axis_off()
                continue
            axes.set_title(work, loc="left", size=page.NORMAL)
            _bars(axes, works[work], width / columns)
            axes.set_ylim(row - 0.4, -0.6)
    return page.save({stem: figure}, folder)


def _bars(axes: Axes, arms: Sequence[ArmTimes], width: float) -> None:
    longest = max((s for arm in arms for s in arm.seconds), default=1e-9)
    for row, arm in enumerate(arms):
        place, size = row, page.SMALL
        text = page.wrap(f"{arm.name}: {arm.why_not}", width - 0.6, size)
        if arm.seconds:
            s = summarize(arm.seconds)
            color = "0.7" if arm.is_peer else page.COLORS[6]
            bar = {"xerr": page.quartiles([s]), "color": color, "capsize": 3}
            axes.barh(row + 0.2, s.median, 0.36, **bar)
            axes.plot(arm.seconds, [row + 0.2] * s.n, "k.", ms=3)
            text = f"{arm.name}: {s.median:.3g} s (n={s.n})"
            place, size = row - 0.2, page.NORMAL
        axes.text(0.005 * longest, place, text, va="center", size=size)
    axes.set_xlim(0, 1.05 * longest)
    axes.set_yticks([])
    axes.set_xlabel("seconds")


def _caption(header: BenchmarkHeader, beside_peers: bool) -> str:
    machine = f"{header.cpu_model}, {plural(header.cores, 'core')}"
    if header.on_gpus:
        machine = f"{', '.join(header.on_gpus)}; host: {machine}"
    libraries = ", ".join(
        f"{name} {version}"
        for name, version in header.versions.items()
        if name not in ("python", "d2lpar")
    )
    libraries += "".join(f"; {word}" for word in gpu_words(header))
    sentences = [
        f"Bars: medians{' (blue: ours, grey: peers)' * beside_peers}; whiskers: "
        "quartiles; dots: every sample that counts.",
        header.note,
        f"Hardware: {machine}. Versions: {libraries}. {header.date[:10]}, "
        f"{commit(header)}.",
    ]
    return " ".join(filter(None, sentences))
