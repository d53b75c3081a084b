"""What runs found, as data: a table, a note on its columns, and the answer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from d2lpar.text import plain_table


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
        """The table, the note and the answer as plain text, in lines of 80 columns."""
        about = [str(self.table)] if self.table.rows else []
        about += [textwrap.fill(f"({self.note})", 80)] if self.note else []
        answer = "\n".join(textwrap.fill(text, 80) for text in self.sentences)
        return "\n\n".join(filter(None, ("\n".join(about), answer)))

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
