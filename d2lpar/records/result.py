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

    def __str__(self) -> str:
        """Return table, note and answer as plain text."""
        return "\n\n".join(filter(None, (self.about(WIDTH), self.answer(WIDTH))))

    def about(self, width: int) -> str:
        """Return the table, as wide as it is, and the note in lines of `width`."""
        lines = [str(self.table)] if self.table.rows else []
        lines += [filled(f"({self.note})", width=width)] if self.note else []
        return "\n".join(lines)

    def answer(self, width: int) -> str:
        """Return the sentences as plain text, each on its own lines."""
        return "\n".join(filled(text, width=width) for text in self.sentences)

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
