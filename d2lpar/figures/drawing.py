"""Draws the runs of a sweep with the module that draws their kind of lines.

Matplotlib is loaded with the first picture only, so that importing this is quick.
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
