"""A benchmark's picture: a row per arm in the order they ran, with every sample.

Where its samples are errors after some steps, or the memory of trainings, these are
drawn against the steps or the batch instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from matplotlib.axes import Axes

from d2lpar.errors import RecordError
from d2lpar.figures import labels, page
from d2lpar.records.comparison import ArmTimes, arm_times
from d2lpar.records.kinds import ArmSample, Run, group

LIBRARIES = {"d2l": "d2l", "torch": "PyTorch", "ddp": "PyTorch",
             "numpy": "NumPy", "scipy": "SciPy"}  # fmt: skip


def pictures(runs: Sequence[Run]) -> dict[str, page.Picture]:
    """The picture of one benchmark; :class:`RecordError` for several records of it."""
    if len(runs) > 1:
        names = " and ".join(map(labels.where, runs))
        raise RecordError(f"{names}: records of one benchmark; name one of them")
    (run,) = runs
    samples, curves = run.lines_of(ArmSample), None
    if any(sample.steps and sample.error is not None for sample in samples):
        title, curves = f"Errors by steps: {run.header.work}", errors
    elif any(sample.peak_bytes for sample in samples):
        title, curves = f"Memory of {run.header.work}", memory
    if curves is None:
        return {"": picture(run, f"Seconds for {run.header.work}")}
    drawn = page.new(title, labels.machine(run.header), runs)
    curves(drawn.axes[0], run)
    return {"": drawn}


def picture(run: Run, title: str) -> page.Picture:
    """The benchmark under a title: works below each other."""
    works = group(arm_times(run), lambda arm: arm.work)
    counts = [len(arms) for arms in works.values()]
    n = sorted({len(arm.seconds) for arms in works.values() for arm in arms})
    samples = " to ".join(map(str, n[:: len(n) - 1 or 1]))
    note = f"{run.header.work}; n = {samples}; {labels.machine(run.header)}"
    size = (7.6, 1.1 + sum(0.6 + 0.32 * count for count in counts))
    drawn = page.new(title, note, [run], size, rows=len(works), height_ratios=counts)
    for axes, (work, arms) in zip(drawn.axes, works.items()):
        axes.set_title(page.wrap(work, 80))
        page.dots(axes, list(map(row, arms)), "s")
    return drawn


def row(arm: ArmTimes) -> page.Row:
    """An arm's samples under its name."""
    return page.Row(arm.name, arm.seconds, color_of(arm.name, arm.is_peer), arm.why_not)


def color_of(arm: str, is_peer: bool) -> str:
    """The color of the library that an arm's name mentions: records have no field."""
    words = arm.lower().replace("d2lpar", "")
    for word, library in LIBRARIES.items():
        if word in words:
            return page.LIBRARIES[library]
    return page.GREY if is_peer else page.OURS


def errors(axes: Axes, run: Run) -> None:
    """An arm's errors against the steps after which they were found, and medians."""
    by_arm = group(run.lines_of(ArmSample), lambda sample: sample.arm)
    for k, (arm, samples) in enumerate(by_arm.items()):
        at = group(samples, lambda sample: sample.steps, lambda sample: sample.error)
        style = page.look(k)
        dots = [(sample.steps, sample.error) for sample in samples]
        axes.plot(*zip(*dots), **{**style, "ls": "", "ms": 4, "alpha": 0.6})
        medians = list(map(median, at.values()))
        axes.plot(list(at), medians, color=style["color"], ls=style["ls"])
        axes.plot([], [], label=arm, **style)
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.set(xlabel="steps", ylabel="error")
    axes.legend()


def memory(
    axes: Axes, run: Run, counted: Callable[[ArmSample], int] | None = None
) -> None:
    """MiB of each arm against the batch: filled what was measured, hollow `counted`."""
    by_arm = group(run.lines_of(ArmSample), lambda sample: sample.arm)
    for k, (arm, samples) in enumerate(by_arm.items()):
        ink = {"color": page.count_color(k), "marker": page.MARKERS[k]}
        if counted:
            sizes = {x.batch_size: counted(x) / 2**20 for x in samples}
            axes.plot(*zip(*sizes.items()), **ink, ls=page.LINES[1], mfc="white")
        measured = group(
            samples, lambda x: x.batch_size, lambda x: x.peak_bytes / 2**20
        )
        page.quartiles(axes, list(measured.items()), label=arm, **ink)
    page.log_along(axes, "x", base=2)
    axes.set(xlabel="global batch size", ylabel="MiB", ylim=(0, None))
    axes.legend()
