"""The result of runs as data: a table, a note on its columns, and the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from d2lpar.text import WIDTH, filled, plain_table


@dataclass(frozen=True)
class Table:
    """Hold rows of cells; the first `names` cells of a row are names, not numbers."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    names: int = 1
    title: str = ""

    def __str__(self) -> str:
        text = plain_table(self.columns, self.rows, names=self.names)
        return f"{self.title}\n\n{text}" if self.title else text

    def in_lines(self, width: int) -> str:
        """Return the table in lines of `width`; further columns stand below."""
        text, numbers = str(self), range(self.names, len(self.columns))
        for size in range(len(numbers) - 1, 0, -1):
            if max(map(len, text.splitlines())) <= width:
                break
            parts = [numbers[k : k + size] for k in range(0, len(numbers), size)]
            text = "\n\n".join(str(self._part(part)) for part in parts)
        return text

    def _part(self, numbers: Sequence[int]) -> Table:
        shown = [*range(self.names), *numbers]
        columns, *rows = ([row[k] for k in shown] for row in (self.columns, *self.rows))
        return Table(columns, rows, self.names)


@dataclass(frozen=True)
class Result:
    """Hold the result of runs; `answers` has sentences by the name of a picture.

    `short` is what was learnt, in one clause.
    """

    table: Table = Table()
    note: str = ""
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    further: Sequence[Table | str] = ()
    short: str = ""

    @property
    def sentences(self) -> list[str]:
        """Return the answer, sentence by sentence."""
        found = [text for texts in self.answers.values() for text in texts]
        return found or ["Nothing to compare."]

    @property
    def in_short(self) -> str:
        """Return what was learnt in one clause, or the first sentence."""
        return self.short or self.sentences[0]

    def text(self, width: int = 0) -> str:
        """Return table, note and answer in lines of `width`; 0: 80, the table wide."""
        about = [self.table.in_lines(width or 9_999)] if self.table.rows else []
        about += [filled(f"({self.note})", width=width or WIDTH)] if self.note else []
        answer = [filled(text, width=width or WIDTH) for text in self.sentences]
        return "\n\n".join("\n".join(lines) for lines in (about, answer) if lines)

    __str__ = text

    def full_text(self, source: str) -> str:
        """Return table, note, answer and further tables as one text, then `source`."""
        return "\n\n".join(map(str, [self, *self.further, source])) + "\n"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def listed(names: Iterable[str]) -> str:
    """Join names by commas, and by "and" before the last.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
