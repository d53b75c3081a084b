"""Records to pictures: accuracy, seconds per epoch, speedup; each as PNG and as SVG.

Only draws: numbers come from :mod:`d2lpar.records.comparison`, words from :mod:`d2lpar.records.wording`.
Never imports MXNet, needs no display, and loads Matplotlib with the first picture only,
so that a command line that imports this module starts quickly.

Every picture is readable in grey (line styles, markers, hatches) and carries a caption
that says what was measured on what.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from d2lpar.figures import animation, gan, precision, scaling, solvers, timings, workers
from d2lpar.figures.page import (
    plain_style,
    save,
)
from d2lpar.figures.training import (
    _accuracy,
    _one_a_count,
    _seconds,
    _speedup,
    _two_runs,
)
from d2lpar.records import comparison
from d2lpar.records.kinds import (
    PointRecord,
    PrecisionRecord,
    Run,
    StepRecord,
    TimingRecord,
)


def draw(
    runs: Sequence[Run],
    out: str | Path,
    stem: str,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Draw runs that differ in their device count; return the files written.

    ``<stem>-accuracy``, ``<stem>-seconds`` and, of several runs, ``<stem>-speedup``:
    each as .png and .svg in the folder `out`. Nothing is renamed into place before all
    are drawn: after an :class:`OSError` the earlier pictures are as they were. Raises
    :class:`RecordError` for no runs, a run without epochs, two runs of one device
    count, and runs on different data.

    Records of a solver go to :mod:`d2lpar.figures.solvers`, those of low precision to
    :mod:`d2lpar.figures.precision`, those of workers that share in several ways to
    :mod:`d2lpar.figures.workers`; those of a GAN have pictures
    of :mod:`d2lpar.figures.gan` in place of the accuracy, for which real faces are
    looked for in `data_dir`, and an animation, with `mp4` also as MP4, which is written
    before the pictures.
    """
    if any(run.of(TimingRecord) for run in runs):
        return timings.draw(runs, out, stem)
    if any(run.of(StepRecord) for run in runs):
        return scaling.draw(runs, out, stem)
    if any(run.of(PointRecord) for run in runs):
        return solvers.draw(runs, out, stem)
    if any(run.of(PrecisionRecord) for run in runs):
        return precision.draw(runs, out, stem)
    if len({run.header.variant for run in runs if run.header.workers > 1}) > 1:
        return workers.draw(runs, out, stem)
    runs = _one_a_count(runs)
    animations = []
    with plain_style():
        if comparison.is_gan(runs[0]):
            pictures = gan.pictures(runs, data_dir)
            animations = animation.animate(runs[-1], Path(out), stem, mp4)
        else:
            pictures = {"accuracy": _accuracy(runs)}
        pictures["seconds"] = _seconds(runs)
        if len(runs) > 1:
            pictures["speedup"] = _speedup(runs)
        named = {f"{stem}-{name}": picture for name, picture in pictures.items()}
        return [*save(named, Path(out)), *animations]


def draw_compare(a: Run, b: Run, out: str | Path, stem: str) -> list[Path]:
    """Draw two runs side by side, ``<stem>.png`` and ``<stem>.svg``; return both paths.

    Accuracy on the left, seconds per epoch on the right, labelled by what differs. Any
    two runs can be compared that hold epochs; errors are otherwise those of `draw`.
    """
    compared = comparison.compare(a, b)
    with plain_style():
        return save({stem: _two_runs(a, b, compared)}, Path(out))
