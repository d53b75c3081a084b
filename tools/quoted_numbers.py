"""Refuse measured numbers in prose that no record bears out.

    python tools/quoted_numbers.py README.md chapters/scaling.py ...

A measured number in prose is a link to one cell of one record:

    [0.393 ms](../figures/h200/timing/x.jsonl "ARM")   median of "ARM", "WORK | ARM"
    [24.7 s](figures/multiple_gpus/x.jsonl "seconds per epoch")   also "accuracy"
    [0.29 s](../figures/least_squares/x-results.txt "ROW | COLUMN")   of its tables

It is compared with that cell, rounded as the prose rounds it. A record of random seed 0
stands for the other seeds beside it, too. Every other number with a unit of time, of a
rate or of a ratio is refused, unless it is published (its paragraph links a page of the
web, or cites [1]), part of a question (a prediction, an exercise on paper), or
arithmetic in a code span or formula.
So are numbers with decimals in the cells of a table without such a link. Outputs of
cells are no evidence: on another machine they differ.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records import comparison, files
from d2lpar.records.comparison import arm_times, summarize
from d2lpar.records.kinds import ArmSample, timed_epochs

ROOT = Path(__file__).parents[1]
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNITS = (
    "us|ms|s|sec|seconds?|min|minutes?|hours?|%|per cent|times|points|"
    r"[KMGT]i?B/s|[GTP]?FLOPS|[GTP]?FLOP/s|images/s"
)
SECONDS = {"us": 1e6, "ms": 1e3, "s": 1, "min": 1 / 60, "minutes": 1 / 60}
# "0.39 and 1.24 ms", "5 to 10 %"
QUOTED = re.compile(
    rf"(?<![\w.,/^-])({NUMBER}(?:(?:, | and | or | to | against |, and |-){NUMBER})*)"
    rf"(?: |\n)?({UNITS})(?![\w/])"
)
CITED = re.compile(r'!?\[([^]]*)\]\(([^\s)]+)(?:\s+"([^"]*)")?\)')
VALUE = re.compile(rf"({NUMBER})(?: ?({UNITS}))?")
# What is no statement, or shows where its numbers come from.
NO_PROSE = re.compile(
    r"```.*?```|^(?: {4,}|\t)(?![-*\d]).*?$|`[^`]*`|\$[^$]*\$", re.DOTALL | re.MULTILINE
)
NO_STATEMENT = ("*Predict before you run*", "*On paper.*")  # but questions
PUBLISHED = re.compile(r"<https?://|\]\(https?://|\[\d+\](?!\()")
DECIMALS = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")


def refused(text: str, folder: Path) -> Iterator[str]:
    """Yield a line for each number of a Markdown text that no record bears out.

    `folder` is where the text's links start.
    """
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )", text):
        plain = NO_PROSE.sub("", paragraph)
        for label, target, title in CITED.findall(plain):
            if VALUE.fullmatch(label):
                yield from wrong_link(label, folder / target.partition("#")[0], title)
        if any(mark in plain for mark in NO_STATEMENT) or PUBLISHED.search(plain):
            continue
        # Of a link to a record the words are checked; alt texts are statements.
        plain = CITED.sub(lambda m: "" if VALUE.fullmatch(m[1]) else m[1], plain)
        for found in QUOTED.finditer(plain):
            yield f'"{" ".join(found[0].split())}" names no record'
        for row in re.findall(r"^\s*\|.*\|\s*$", plain, re.MULTILINE):
            for number in DECIMALS.findall(row):
                yield f'"{number}" in a table names no record'


def wrong_link(label: str, path: Path, title: str) -> Iterator[str]:
    """Yield why a linked number is not its record's; nothing if it is."""
    quoted, unit = VALUE.fullmatch(label).groups()
    if path.suffix not in (".jsonl", ".txt"):
        return  # a link to a section or a page, not to a record
    where = f'"{label}" ({path.name}, "{title}")'
    try:
        value = cell(path, title, unit)
    except (LookupError, ValueError, OSError, RecordError) as error:
        yield f"{where}: {error}"
        return
    if not agrees(quoted, value):
        yield f"{where}: the record has {value:.6g}"


def cell(path: Path, title: str, unit: str | None) -> float:
    """Return what a record has under a title, in this unit.

    Raises LookupError where the record has no such arm, row or column.
    """
    if path.suffix == ".txt":
        value = table_cell(path.read_text(encoding="utf-8"), title)
        return 100 * value if unit == "%" and value <= 1 else value
    if title not in ("seconds per epoch", "accuracy"):
        run = files.read(path)
        found = arm_times(run) if run.lines_of(ArmSample) else []
        arms = {f"{arm.work} | {arm.name}": arm.seconds for arm in found}
        arms.update({arm.name: arm.seconds for arm in reversed(found)})
        if not arms.get(title):
            raise LookupError(f"no arm of this name; there are {', '.join(arms)}")
        value = summarize(arms[title]).median
    else:
        seeds = path.name.replace("book-", "book-seed*-", 1)
        records = [files.read(found) for found in [path, *path.parent.glob(seeds)]]
        if title == "accuracy":
            return median(map(comparison.final_accuracy, records))
        epochs = [epoch.seconds for record in records for epoch in timed_epochs(record)]
        value = summarize(epochs).median
    if unit not in SECONDS:
        raise LookupError(f"this is a time; write one of {', '.join(SECONDS)}")
    return value * SECONDS[unit]


def table_cell(text: str, title: str) -> float:
    """Return the number in "ROW | COLUMN" of the first table that has both.

    ROW is the beginning of a row's line, COLUMN the head of a column. Columns are
    parted by two spaces or more, and a row's are counted from its right end.
    """
    row, _, column = (part.strip() for part in title.partition("|"))
    heads: list[str] = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if column in cells:
            heads = cells
        elif not line.strip():
            heads = []
        elif heads and " ".join(line.split()).startswith(f"{row} "):
            at = heads.index(column) - len(heads)
            return float(cells[at].replace(",", ""))
    raise LookupError("no such row and column")


def agrees(quoted: str, value: float) -> bool:
    """Is this the value, rounded to the digits of the quoted number?"""
    plain = quoted.replace(",", "")
    decimals = len(plain.partition(".")[2])
    return abs(float(plain) - value) <= 10.0**-decimals / 2 * (1 + 1e-9)


def prose(path: Path) -> str:
    """Return a document, or the prose of a chapter's script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        cells = re.split(r"^# %%(.*)$", text, flags=re.MULTILINE)[1:]
        words = [c for kind, c in zip(cells[::2], cells[1::2]) if "markdown" in kind]
        text = re.sub(r"^# ?", "", "\n\n".join(words), flags=re.MULTILINE)
    return text


def wrong_in(path: Path) -> list[str]:
    """Return what is refused in a document or in a chapter's script."""
    return list(refused(prose(path), path.parent))


def main(paths: list[str]) -> int:
    found = [(path, line) for path in paths for line in wrong_in(Path(path).resolve())]
    for path, line in found:
        print(f"{path}: {line}")
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
