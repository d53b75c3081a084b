"""Refuse measured numbers in prose that no record bears out.

    python tools/quoted_numbers.py README.md chapters/scaling.py notebooks/gan.ipynb

A measured number in prose is a link to one cell of one record:

    [0.393 ms](../figures/h200/timing/x.jsonl "ARM")   median of "ARM", "WORK | ARM"
    [1.4 times](../figures/peers/x.jsonl "ARM / ARM")   ratio of two medians
    [24.7 s](figures/multiple_gpus/x.jsonl "seconds per epoch")   also "accuracy"
    [0.29 s](../figures/least_squares/x-results.txt "ROW | COLUMN")   of its tables

It is compared with that cell in its unit, rounded as the prose rounds it. A record of
random seed 0 stands for the other seeds beside it, too. A table may name its record
once, in the paragraph before it: `[record](x.jsonl "rows")`. Its first column then
names arms, and a head begins with a unit ("seconds, WORK") or compares ("times ARM").

Every other number with a unit of time, of a rate, of a ratio or in MiB is refused,
unless it is published (its paragraph, or its row of a table, links a page of the web or
cites [1], and its sentence says neither "we" nor "here"), part of a question (a
prediction, an exercise on paper), or arithmetic in a code span or formula. So are the
numbers of tables with decimals, or in columns of such a unit. Outputs of cells are no
evidence: on another machine they differ.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from d2lpar.errors import RecordError
from d2lpar.records import comparison, files
from d2lpar.records.comparison import arm_times, summarize
from d2lpar.records.kinds import ArmSample, timed_epochs

NUMBER = r"\d[\d,]*(?:\.\d+)?"
SECONDS = {
    **dict.fromkeys(("ns", "nanoseconds"), 1e9),
    **dict.fromkeys(("us", "µs", "μs", "microseconds"), 1e6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1e3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("min", "minute", "minutes"), 1 / 60),
    **dict.fromkeys(("h", "hour", "hours"), 1 / 3600),
}
SHARES = {"": 1, "%": 100, "per cent": 100, "percent": 100}
RATIOS = {**SHARES, "times": 1, "x": 1, "×": 1}
DONE = "images|steps|samples|tokens|operations"
UNITS = (
    rf"{'|'.join(sorted(SECONDS, key=len, reverse=True))}"
    r"|%|per cent|percent(?:age points)?|points|times|(?<=\d)x|×|fold"
    rf"|[KMGT]i?B/s|[KMGTP]?FLOPS|[KMGTP]?FLOP/s|(?:{DONE})(?:/s| per second)"
)
# "0.39 and 1.24 ms", "5 to 10 %", "a 3-minute run"
QUOTED = re.compile(
    rf"(?<![\w.,/^])(?<!\w-)((?:{NUMBER}|\.\d+)(?:e-?\d+)?"
    rf"(?:(?:, | and | or | to | against |, and |-){NUMBER})*)"
    rf"[ \n-]?(?:{UNITS})(?!\w)(?! ?\d)"
)
# Ratios without a unit, which their digits tell from settings such as a rate of 0.1
BARE = re.compile(
    r"(?:speedup|efficiency|accuracy|agreement)(?:\s[a-z]+)?\s\d?\.\d\d+"
    r"|(?:speedup|factor)\sof\s\d+\.\d+|\d+\.\d+ x (?!\d)"
    r"|\d[\d,.]+[ \n-]?[MG]iB\b(?!/s)"  # of one digit are sizes of pages
    r"|(?:two|three|four|five|six|seven|eight|nine|ten|several|many)\stimes\sas\s"
    r"(?:fast|slow|long)"
)
CITED = re.compile(r'(!?)\[([^]]*)\]\(([^\s)]+)(?:\s+"([^"]*)")?\)')
VALUE = re.compile(rf"({NUMBER})(?:[ -]?({UNITS}|[KMG]iB))?")
FENCES = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ ]*$", re.DOTALL | re.MULTILINE)
SPANS = re.compile(r"(`|\$)([^`$]*)\1")
ARITHMETIC = re.compile(r"[-+*/^]\s")
OURS = re.compile(r"\b(?:we|our|ours|here)\b", re.IGNORECASE)
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`>_])")
PUBLISHED = re.compile(r"<https?://|\]\(https?://|(?<![\w\]])\[\d+\](?!\()")
# Of an exercise on paper the question alone: its answer is a statement.
QUESTIONS = re.compile(
    r"\*Predict before you run\*.*\?|\*On paper\.\*(?:(?!\*\().)*", re.DOTALL
)
DECIMALS = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.])")
ANY = re.compile(rf"(?<![\w.,]){NUMBER}(?!\w)")
UNIT_OF_HEAD = re.compile(rf"(?<![\w/'])(?:{UNITS}|[KMG]iB|speedup|accuracy)(?!\w)")


class Part(NamedTuple):
    """A paragraph, an item of a list or a table, and the text before it."""

    text: str
    before: str


def parts(text: str) -> Iterator[Part]:
    """Yield the statements of a Markdown text, without its blocks of code."""
    text = re.sub("&nbsp;|[\u00a0\u2009\u202f]", " ", FENCES.sub("", text))
    before, in_item = "", False
    for block in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in block.splitlines() if line.strip()]
        is_indented = all(line.startswith(("    ", "\t")) for line in lines)
        if is_indented and not in_item:
            continue  # code; after an item of a list it is the item's next paragraph
        for part in re.split(r"\n(?=\s*(?:[-*+]|\d+\.) )|(?<!\|)\n(?=\|)", block):
            in_item = is_indented or bool(re.match(r"\s*(?:[-*+]|\d+\.) ", part))
            yield Part(part, before)
            before = part


def refused(text: str, folder: Path) -> Iterator[str]:
    """Yield a line for each number of a Markdown text that no record bears out.

    `folder` is where the text's links start.
    """
    for part in parts(text):
        for link in CITED.finditer(part.text):
            if links_record(link):
                yield from wrong_link(link[2], folder / link[3], link[4] or "")
        if part.text.lstrip().startswith("|"):
            yield from in_table(part, folder)
        elif PUBLISHED.search(part.text):
            sentences = SENTENCE.split(QUESTIONS.sub("", part.text))
            yield from in_prose(" ".join(filter(OURS.search, sentences)))
        else:
            yield from in_prose(part.text)


def links_record(link: re.Match) -> bool:
    """Is this link a number and its record?"""
    is_number = VALUE.fullmatch(link[2]) and not link[1]
    return bool(is_number) and link[3].endswith((".jsonl", ".txt"))


def statement(text: str) -> str:
    """Return what a reader is told beside arithmetic and numbers that link records."""

    def words(link: re.Match) -> str:
        if links_record(link):
            return ""
        return f"{link[2]} {link[4] or ''}" if link[1] else link[2]

    def alone(span: re.Match) -> str:
        is_sum = ARITHMETIC.search(span[2])
        is_value = VALUE.fullmatch(span[2].strip()) or QUOTED.search(span[2])
        return span[2] if is_value and not is_sum else ""

    plain = CITED.sub(words, SPANS.sub(alone, text))
    return re.sub(r"(?<=\d)[*_]+|[*_]+(?=\d)", "", plain)  # emphasis


def measured(plain: str) -> list[str]:
    """Return the numbers of a statement that a clock or another measure gave."""
    return [found[0] for each in (QUOTED, BARE) for found in each.finditer(plain)]


def in_prose(text: str) -> Iterator[str]:
    """Yield the measured numbers of a paragraph or an item that link no record."""
    text = QUESTIONS.sub("", text)
    for link in CITED.finditer(text):
        if DECIMALS.fullmatch(link[2]) and not links_record(link):
            yield f'"{link[2]}" names no record'
    for number in measured(statement(text)):
        yield f'"{" ".join(number.split())}" names no record'


def in_table(table: Part, folder: Path) -> Iterator[str]:
    """Yield the wrong numbers of a table; its record is linked before it, if any."""
    if PUBLISHED.search(table.before) and not OURS.search(table.before):
        return
    links = CITED.finditer(table.before)
    record = next((folder / link[3] for link in links if link[4] == "rows"), None)
    rows = [
        [each.strip() for each in line.strip().strip("|").split("|")]
        for line in table.text.splitlines()
    ]
    head = rows[0]
    for row in rows:
        if PUBLISHED.search(" | ".join(row)):
            continue
        for at, (name, text) in enumerate(zip(head, row)):
            plain, unit = statement(text).strip(), UNIT_OF_HEAD.search(name)
            if record and at and unit and VALUE.fullmatch(plain):
                label = plain if unit[0] in ("speedup", "accuracy") else plain + unit[0]
                yield from wrong_link(label, record, title_of(row[0], name, record))
                continue
            found = measured(plain)
            is_measured = at and unit and row is not head
            found += (ANY if is_measured else DECIMALS).findall(plain)
            for number in dict.fromkeys(found):
                yield f'"{number}" in a table names no record'


def title_of(arm: str, head: str, record: Path) -> str:
    """Return what a cell of a table is, as a link would say it."""
    if record.suffix == ".txt":
        return f"{arm} | {head}"
    if head.startswith("times "):
        return f"{arm} / {head[len('times ') :]}"
    work = head.partition(", ")[2]
    return f"{work} | {arm}" if work else arm


def wrong_link(label: str, path: Path, title: str) -> Iterator[str]:
    """Yield why a linked number is not its record's; nothing if it is."""
    quoted, unit = VALUE.findall(label)[0]
    where = f'"{label}" ({path.name}, "{title}")'
    try:
        value = cell(path, title, unit)
    except (LookupError, ValueError, OSError, RecordError) as error:
        yield f"{where}: {error}"
        return
    if not agrees(quoted, value):
        yield f"{where}: the record has {value:.6g}"


def cell(path: Path, title: str, unit: str) -> float:
    """Return what a record has under a title, in this unit.

    Raises LookupError where the record has no such arm, row, column or unit.
    """
    if path.suffix == ".txt":
        return table_cell(path.read_text(encoding="utf-8"), title, unit)
    if title not in ("seconds per epoch", "accuracy"):
        arm, _, other = title.partition(" / ")
        if other:
            ratio = arm_seconds(path, arm) / arm_seconds(path, other)
            return ratio * scale(RATIOS, unit)
        return arm_seconds(path, arm) * scale(SECONDS, unit)
    seeds = path.name.replace("book-", "book-seed*-", 1)
    records = [files.read(found) for found in [path, *path.parent.glob(seeds)]]
    if title == "accuracy":
        return median(map(comparison.final_accuracy, records)) * scale(SHARES, unit)
    epochs = [epoch.seconds for record in records for epoch in timed_epochs(record)]
    return summarize(epochs).median * scale(SECONDS, unit)


def scale(units: dict, unit: str) -> float:
    """Return how many of a unit are 1. Raises LookupError for another kind of unit."""
    if unit not in units:
        names = ", ".join(name or "no unit" for name in units)
        raise LookupError(f"its unit is one of: {names}")
    return units[unit]


def arm_seconds(path: Path, title: str) -> float:
    """Return the median of "ARM", or of "WORK | ARM" where works share its name."""
    run = files.read(path)
    arms = arm_times(run) if run.lines_of(ArmSample) else []
    found = [
        arm
        for arm in arms
        if arm.seconds and title in (arm.name, f"{arm.work} | {arm.name}")
    ]
    if len(found) != 1:
        names = ", ".join(f"{arm.work} | {arm.name}".lstrip(" |") for arm in arms)
        raise LookupError(f'{len(found)} arms are "{title}"; there are {names}')
    return summarize(found[0].seconds).median


def table_cell(text: str, title: str, unit: str) -> float:
    """Return the number in "ROW | COLUMN" of the tables of a text, in this unit.

    ROW is the beginning of one row's line, COLUMN the head of a column. Columns are
    parted by two spaces or more, and a row's are counted from its right end.
    """
    row, _, column = (part.strip() for part in title.partition("|"))
    heads: list[str] = []
    found = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if column in cells:
            heads = cells
            if cells.count(column) > 1:
                raise LookupError(f'{cells.count(column)} columns are "{column}"')
        elif not line.strip():
            heads = []
        elif heads and " ".join(line.split()).startswith(f"{row} "):
            found.append(cells[heads.index(column) - len(heads)])
    if len(found) != 1:
        raise LookupError(f"{len(found) or 'no'} such row and column")
    value = float(found[0].replace(",", "").rstrip("x"))
    time = re.search(r"(?<![\w/])(us|ms|s|seconds)(?!\w)", column)
    if time:
        return value / SECONDS[time[1]] * scale(SECONDS, unit)
    if rate := re.search(r"\w+/s", column):
        return value * scale({rate[0]: 1}, unit)
    return value * scale(RATIOS if value <= 1 or unit != "%" else {}, unit)


def agrees(quoted: str, value: float) -> bool:
    """Is this the value, rounded to the digits of the quoted number, and not to 0?"""
    plain = quoted.replace(",", "")
    decimals = len(plain.partition(".")[2])
    half = 10.0**-decimals / 2 * (1 + 1e-9)
    return abs(float(plain) - value) <= min(half, abs(value) / 20)


def prose(path: Path) -> str:
    """Return a document, or the prose of a chapter's script or notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return "\n\n".join(
            "".join(each["source"]) for each in cells if each["cell_type"] == "markdown"
        )
    if path.suffix == ".py":
        cells = re.split(r"^# %%(.*)$", text, flags=re.MULTILINE)[1:]
        words = [c for kind, c in zip(cells[::2], cells[1::2]) if "markdown" in kind]
        text = re.sub(r"^# ?", "", "\n\n".join(words), flags=re.MULTILINE)
    return text


def wrong_in(path: Path) -> list[str]:
    """Return what is refused in a document or in a chapter's script or notebook."""
    return list(refused(prose(path), path.parent))


def main(paths: list[str]) -> int:
    found = [(path, line) for path in paths for line in wrong_in(Path(path).resolve())]
    for path, line in found:
        print(f"{path}: {line}")
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
