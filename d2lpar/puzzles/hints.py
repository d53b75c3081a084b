"""Three hints for each puzzle, one after another: the lines of hints.tsv."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

with Path(__file__).with_name("hints.tsv").open(encoding="utf-8") as file:
    LINES = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
HINTS: dict[str, list[str]] = {line["puzzle"]: [] for line in LINES}
for line in LINES:
    HINTS[line["puzzle"]].append(line["hint"])
_given = dict.fromkeys(HINTS, 0)


def hint(puzzle: str | Callable) -> None:
    """Print the next hint for a puzzle, given by its name or your function."""
    name = puzzle if isinstance(puzzle, str) else getattr(puzzle, "__name__", "")
    if name not in HINTS:
        print(f"{name or puzzle!r} is no puzzle: the puzzles are {', '.join(HINTS)}")
        return
    hints, number = HINTS[name], _given[name]
    if number == len(hints):
        print(f"{name}: these were all the hints; the next one is the first again")
        _given[name] = 0
        return
    _given[name] += 1
    print(f"{name}, hint {number + 1} of {len(hints)}: {hints[number]}")
