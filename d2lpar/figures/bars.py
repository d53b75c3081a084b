"""A benchmark's picture: one bar per arm, the fastest first, and every sample."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import BenchmarkHeader, Run, group
from d2lpar.records.wording import each, gpu_words, hardware, number, stamp, where


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
    works = {
        work: sorted(arms, key=_fastest_first)
        for work, arms in group(arm_times(run), lambda arm: arm.work).items()
    }
    columns = min(len(works), 2)
    pairs = [list(works)[k : k + columns] for k in range(0, len(works), columns)]
    heights = [
        max(page.bars_height(list(map(_bar, works[work]))) for work in pair)
        for pair in pairs
    ]
    width = (page.WIDE + 0.6, 6.2)[columns > 1]
    picture = page.new(
        _title(run.header.benchmark, works),
        _subtitle(run.header),
        _caption(run.header, works),
        panels=columns,
        rows=len(pairs),
        size=(columns * width, sum(heights) + 0.25 * len(pairs) * (columns > 1)),
        height_ratios=heights,
    )
    most = [max(len(works[work]) for work in pair) for pair in pairs]
    for k, (work, axes) in enumerate(itertools.zip_longest(works, picture.axes)):
        if work is None:
            axes.set_axis_off()
            continue
        axes.set_title(work, weight="bold")
        rows = list(map(_bar, works[work]))
        page.bars(axes, rows, "s", width, most=most[k // columns])
    return page.save({stem: picture.figure}, folder)


def _fastest_first(arm: ArmTimes) -> float:
    return median(arm.seconds) if arm.seconds else float("inf")


def _bar(arm: ArmTimes) -> page.Bar:
    color = page.color_of(arm.name, arm.is_peer)
    return page.Bar(arm.name, arm.seconds, color, arm.why_not)


def _title(benchmark: str, works: dict[str, list[ArmTimes]]) -> str:
    """What was found: the arms that this benchmark is about, or else the fastest."""
    timed = {work: [a for a in arms if a.seconds] for work, arms in works.items()}
    timed = {work: arms for work, arms in timed.items() if arms}
    if not timed:
        return "Nothing could be measured"
    about = {"kernels": _kernels, "growth": _growth, "workers": _workers}
    if benchmark in about and (said := about[benchmark](timed)):
        return said
    if len(timed) == 1:
        return _of_one_work(*next(iter(timed.values())))
    both = {w: arms for w, arms in timed.items() if len({a.is_peer for a in arms}) == 2}
    if not both:
        slowest = max(timed, key=lambda work: _fastest_first(timed[work][0]))
        return f"{slowest}: {_of_one_work(*timed[slowest])}"
    won = sum(not arms[0].is_peer for arms in both.values())
    work, (first, *others) = next(iter(both.items()))
    rival = next(arm for arm in others if arm.is_peer != first.is_peer)
    return (
        f"Ours are the fastest in {won} of {len(both)}; at {work} {first.name} is "
        f"{_fastest_first(rival) / _fastest_first(first):.3g} times as fast as "
        f"{rival.name}"
    )


def _kernels(works: dict[str, list[ArmTimes]]) -> str:
    """The kernel beside the same loop in C, wherever both were measured."""
    shares = []
    for arms in works.values():
        times = {arm.name: median(arm.seconds) for arm in arms}
        for name, seconds in times.items():
            loop = times.get(name.replace("kernel", "loop in C"))
            if name.startswith("kernel") and loop:
                shares.append(seconds / loop)
    if not shares:
        return ""
    low, high = min(shares), max(shares)
    return f"A kernel takes {low:.2f} to {high:.2f} of the time of a loop in C"


def _growth(works: dict[str, list[ArmTimes]]) -> str:
    """How far the costs of one training are apart, over all sizes of the data."""
    arms = next(iter(works.values()))
    kinds = group(arms, lambda arm: arm.name.partition(",")[0], _fastest_first)
    said = [f"{max(t) / min(t) - 1:.0%} {kind}" for kind, t in kinds.items()]
    return f"A sample costs the same in data of all sizes, within {', '.join(said)}"


def _workers(works: dict[str, list[ArmTimes]]) -> str:
    """The throughput of workers, as a share of that of contexts of one process."""
    shares = []
    for arms in works.values():
        times = {arm.name: median(arm.seconds) for arm in arms}
        contexts = [s for n, s in times.items() if n.startswith("1 process, ")]
        workers = [s for n, s in times.items() if n.endswith(" workers")]
        shares += [a / b for a, b in zip(contexts, workers)]
    if not shares:
        return ""
    said = " and ".join(f"{share:.0%}" for share in shares)
    return f"Workers reach {said} of the throughput of contexts of one process"


def _of_one_work(first: ArmTimes, *others: ArmTimes) -> str:
    """The fastest arm, and the fastest of the other side or the slowest of all."""
    name, seconds = first.name, median(first.seconds)
    if not name.startswith("d2l"):  # which are written so
        name = name[0].upper() + name[1:]
    said = f"{name}: {number(seconds)} s, the fastest"
    if not others:
        return said.removesuffix(", the fastest")
    rival = next((a for a in others if a.is_peer != first.is_peer), others[-1])
    which = "" if rival.is_peer != first.is_peer else "the slowest, "
    ratio = median(rival.seconds) / seconds
    return f"{said}; {which}{rival.name}, takes {ratio:.2f} times as long"


def _subtitle(header: BenchmarkHeader) -> str:
    machine = hardware([header])
    if header.on_gpus:
        machine = ", ".join([*dict.fromkeys(header.on_gpus), *gpu_words(header)])
    return f"Seconds for {header.work} \u00b7 {machine}"


def _caption(header: BenchmarkHeader, works: dict[str, list[ArmTimes]]) -> str:
    counts = sorted(
        {len(a.samples) for arms in works.values() for a in arms if a.seconds}
    )
    n = f"{counts[0]} to {counts[-1]}" if len(counts) > 2 else each(counts or [0])
    peers = {a.name for arms in works.values() for a in arms if a.is_peer}
    ours = "Blue: ours. " if peers else ""
    return (
        f"{ours}Bars: medians of n = {n}; whiskers: quartiles; dots: samples. "
        f"{stamp([header])}"
    )
