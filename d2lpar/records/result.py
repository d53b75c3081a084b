"""What runs found, as data: a table, a note on its columns, and the answer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from d2lpar.text import plain_table

WIDTH = 80  # of a line of text


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first `names` of which are names and not numbers."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    names: int = 1
    title: str = ""

    def __str__(self) -> str:
        text = plain_table(self.columns, self.rows, names=self.names)
        return f"{self.title}\n\n{text}" if self.title else text

    def in_lines(self) -> str:
        """Return it as text of 80 columns; the rest of a wider one stands below."""
        text = plain_table(self.columns, self.rows, names=self.names)
        columns = range(self.names, len(self.columns))
        for count in range(2, len(columns) + 1):
            if max(map(len, text.splitlines())) <= WIDTH:
                break
            size = -(-len(columns) // count)
            parts = [columns[k : k + size] for k in range(0, len(columns), size)]
            text = "\n\n".join(map(self._part, parts))
        return text

    def _part(self, columns: range) -> str:
        """The names and some columns; a row whose numbers are in others is left out."""
        shown = [*range(self.names), *columns]
        rows = [
            [row[k] for k in shown]
            for row in self.rows
            if set(row[self.names :]) == {"-"} or any(row[k] != "-" for k in columns)
        ]
        return plain_table([self.columns[k] for k in shown], rows, names=self.names)


@dataclass(frozen=True)
class Result:
    """What runs found; `answers` has sentences by the picture that shows it."""

    table: Table = Table()
    note: str = ""
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    further: Sequence[Table | str] = ()

    @property
    def sentences(self) -> list[str]:
        """The answer, sentence by sentence."""
        found = [text for texts in self.answers.values() for text in texts]
        return found or ["Nothing to compare."]

    def __str__(self) -> str:
        """The table, the note and the answer as plain text; wide tables stay wide."""
        return "\n\n".join(filter(None, (self._about(str(self.table)), self.answer)))

    @property
    def about(self) -> str:
        """The table and the note as plain text, in lines of 80 columns."""
        return self._about(self.table.in_lines())

    def _about(self, table: str) -> str:
        about = [table] if self.table.rows else []
        about += [textwrap.fill(f"({self.note})", WIDTH)] if self.note else []
        return "\n".join(about)

    @property
    def answer(self) -> str:
        """The sentences as plain text, each in lines of its own."""
        return "\n".join(textwrap.fill(text, WIDTH) for text in self.sentences)

    def full_text(self, source: str) -> str:
        """All of it for ``<run>-results.txt``, which ends with its source."""
        return "\n\n".join(map(str, [self, *self.further, source])) + "\n"


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def listed(names: Iterable[str]) -> str:
    """The names with commas, and "and" before the last.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
