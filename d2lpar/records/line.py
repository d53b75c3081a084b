"""What every kind of line in a record file declares: name, picture, words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class Line:
    """One line of a record file. Every kind is a frozen dataclass that derives from it.

    `kind` is its name in the file. `drawn_by` is the module of :mod:`d2lpar.figures`
    whose ``draw(runs, folder, stem, *, data_dir=None, mp4=False)`` draws a record that
    holds such lines; it is empty for lines that only accompany others.
    `counts_as_progress` says whether the progress bar advances by one for each line.
    Every kind has a field `extra`, a dict, for the values that it does not know.
    """

    kind: ClassVar[str]
    drawn_by: ClassVar[str]
    counts_as_progress: ClassVar[bool]

    def __init_subclass__(
        cls, *, kind: str, drawn_by: str = "", counts_as_progress: bool = False
    ) -> None:
        cls.kind, cls.drawn_by = kind, drawn_by
        cls.counts_as_progress = counts_as_progress

    def progress(self) -> dict[str, str]:
        """What the progress bar shows of this line, by label."""
        return {}

    @classmethod
    def summary(cls, lines: Mapping[type, list]) -> str:
        """The result of a record with these lines, by their kind, in one clause."""
        return ""
