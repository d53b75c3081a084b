"""From the kinds of lines that records hold to the module of this room that draws them.

Records know the name of their module (`drawn_by`); numbers come from
:mod:`d2lpar.records`. Never imports MXNet, needs no display, and loads Matplotlib with
the first picture only, so that a command line that imports this module starts quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from d2lpar.errors import RecordError
from d2lpar.records import wording
from d2lpar.records.kinds import KINDS, EpochRecord, Run


def draw(
    runs: Sequence[Run],
    folder: str | Path,
    stem: str,
    *,
    data_dir: str | Path | None = None,
    mp4: bool = False,
) -> list[Path]:
    """Draw the runs of one sweep as ``<folder>/<stem>-*``; return the files written.

    Each picture is written as PNG and as SVG, and none is renamed into place before all
    are drawn: after an :class:`OSError` the earlier ones are as they were. A GAN's real
    faces are looked for in `data_dir`; `mp4` also writes its animation as MP4. Raises
    :class:`RecordError` for no runs, and for runs that do not belong in one picture.
    """
    if not runs:
        raise RecordError("there are no runs to draw; name one record file or more")
    module = import_module(f"d2lpar.figures.{_module(runs)}")
    return module.draw(runs, Path(folder), stem, data_dir=data_dir, mp4=mp4)


def _module(runs: Sequence[Run]) -> str:
    """The module that draws these runs, all of which must have lines of its kind."""
    present = {run.main_kind for run in runs}
    kind = next((kind for kind in KINDS if kind in present), EpochRecord)
    for run in runs:
        if not run.of(kind):
            raise RecordError(
                f"{wording.where(run)}: holds no {kind.kind}s; run it again"
            )
    if kind is EpochRecord:  # workers that share gradients in several ways
        ways = {run.header.variant for run in runs if run.header.workers > 1}
        if len(ways) > 1:
            return "workers"
    return kind.drawn_by


def draw_compare(a: Run, b: Run, folder: str | Path, stem: str) -> list[Path]:
    """Draw two runs side by side: see :func:`d2lpar.figures.compare.draw`."""
    from d2lpar.figures import compare

    return compare.draw(a, b, Path(folder), stem)
