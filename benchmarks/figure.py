"""Draw records of benchmarks: a row per arm in the order they ran, with every sample.

    python benchmarks/figure.py figures/benchmarks/kernels.jsonl --out runs

Where the samples are errors after some steps, or the memory of trainings, these are
drawn against the steps or the batch instead. Needs no MXNet.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records import files, labels
from d2lpar.records.arms import ArmTimes, arm_times
from d2lpar.records.kinds import ArmSample, BenchmarkHeader, Run, group

LIBRARIES = {"d2l": "d2l", "torch": "PyTorch", "ddp": "PyTorch",
             "numpy": "NumPy", "scipy": "SciPy"}  # fmt: skip


@page.plain_style()
def draw(run: Run, folder: Path | None = None) -> Path:
    """Draw a record beside it, or in a folder; return the picture's file."""
    assert run.path is not None
    (path,) = page.save({run.path.stem: drawn(run)}, folder or run.path.parent)
    return path


def drawn(run: Run) -> page.Picture:
    """Return the picture of a benchmark's record."""
    samples, header = run.lines_of(ArmSample), run.header
    if any(sample.steps and sample.error is not None for sample in samples):
        title, curves = f"Errors by steps: {header.work}", errors
    elif any(sample.peak_bytes for sample in samples):
        title, curves = f"Memory of {header.work}", memory
    else:
        works = group(arm_times(run), lambda arm: arm.work)
        n = sorted({len(arm.seconds) for arms in works.values() for arm in arms})
        counts = " to ".join(map(str, n[:: len(n) - 1 or 1]))
        note = f"{header.work}; n = {counts}; {labels.machine(header)}"
        return rows(f"Seconds for {header.work}", note, [run], works)
    picture = page.new(title, labels.machine(header), [run])
    curves(picture.axes[0], run)
    return picture


def rows(
    title: str, note: str, runs: Sequence[Run], panels: Mapping[str, Sequence[ArmTimes]]
) -> page.Picture:
    """Return the picture of arms' seconds, in panels below each other."""
    counts = list(map(len, panels.values()))
    size = (7.6, 1.1 + sum(0.7 + 0.34 * count for count in counts))
    picture = page.new(title, note, runs, size, rows=len(panels), height_ratios=counts)
    for axes, (heading, arms) in zip(picture.axes, panels.items()):
        axes.set_title(page.wrap(heading, 80))
        page.dots(axes, list(map(row, arms)), "s")
    return picture


def row(arm: ArmTimes) -> page.Row:
    """Return an arm's samples under its name."""
    return page.Row(arm.name, arm.seconds, color_of(arm.name, arm.is_peer), arm.why_not)


def color_of(arm: str, is_peer: bool) -> str:
    """Return the color of the library that an arm's name mentions."""
    words = arm.lower().replace("d2lpar", "")
    for word, library in LIBRARIES.items():
        if word in words:
            return page.LIBRARIES[library]
    return page.GREY if is_peer else page.OURS


def errors(axes: Axes, run: Run) -> None:
    """Draw an arm's errors by the steps after which they were found, and medians."""
    ends = {}
    by_arm = group(run.lines_of(ArmSample), lambda sample: sample.arm)
    for k, (arm, samples) in enumerate(by_arm.items()):
        at = group(samples, lambda sample: sample.steps, lambda sample: sample.error)
        style = page.look(k)
        dots = [(sample.steps, sample.error) for sample in samples]
        axes.plot(*zip(*dots), **{**style, "ls": "", "ms": 4, "alpha": 0.6})
        medians = list(map(median, at.values()))
        axes.plot(list(at), medians, color=style["color"], ls=style["ls"])
        ends[f"{page.SIGNS[style['marker']]} {arm}"] = medians[-1]
    page.log_along(axes, "x")
    page.log_along(axes, "y")
    axes.set(xlabel="steps", ylabel="error")
    page.name_beside(axes, ends)


def memory(axes: Axes, run: Run) -> None:
    """Draw MiB of each arm by the batch."""
    by_arm = group(run.lines_of(ArmSample), lambda sample: sample.arm)
    for k, (arm, samples) in enumerate(by_arm.items()):
        ink = {"color": page.count_color(k), "marker": page.MARKERS[k]}
        measured = group(
            samples, lambda x: x.batch_size, lambda x: x.peak_bytes / 2**20
        )
        page.quartiles(axes, list(measured.items()), label=arm, **ink)
    page.log_along(axes, "x", base=2)
    axes.set(xlabel="global batch size", ylabel="MiB", ylim=(0, None))
    axes.legend()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--out", type=Path, help="folder [default: beside the records]")
    args = parser.parse_args(words)
    for path in args.records:
        try:
            run = files.read(path)
            if not isinstance(run.header, BenchmarkHeader) or not run.lines:
                raise RecordError(f"{path}: of no benchmark; d2lpar plot draws runs")
        except RecordError as error:
            parser.error(str(error))
        print(draw(run, args.out))


if __name__ == "__main__":
    main()
