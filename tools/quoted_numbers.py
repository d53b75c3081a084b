"""Check that each number which links a record is the record's.

    python tools/quoted_numbers.py README.md chapters/scaling.py

A measured number in prose is a link to one cell of one record:

    [0.393 ms](../figures/h200/timing/x.jsonl "ARM")   median of "ARM", "WORK | ARM"
    [1.4 times](../figures/peers/x.jsonl "ARM / ARM")   ratio of two medians
    [24.7 s](figures/multiple_gpus/x.jsonl "seconds per epoch")   also "accuracy"; and
                                                     either with ", least" or ", most"
    [0.29 s](../figures/least_squares/x-results.txt "ROW | COLUMN")   of its tables

Where the line must stay readable it is `[24.7 s]` alone, and the page ends with
`[24.7 s]: figures/multiple_gpus/x.jsonl "seconds per epoch"`. A table may name its
record once, in the paragraph before it: `[record](x.jsonl "rows")`. Its first column
then names arms, and a head is "seconds", "seconds, WORK" or "times ARM".

A number is compared in its unit, rounded as the prose rounds it. The record of a
training of seed 0 stands for all of its setting, also of other seeds: the number is the
median, the least or the most of their medians. Numbers without a link are not read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from d2lpar.errors import RecordError
from d2lpar.records import files, measurements
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import ArmSample, Run

VALUE = re.compile(r"(\d[\d,]*(?:\.\d+)?) ?([a-z%]*)")
LINK = re.compile(r'\[([^]]*)\](?:\(|: )(\S+\.(?:jsonl|txt))(?:\s+"([^"]*)")?')
TABLE = re.compile(r'\]\((\S+) "rows"\)(?:.|\n(?!\n))*\n\n((?:\|.*\n)+)')
TIMES = {"us": 1e6, "ms": 1e3, "s": 1}
RATIOS = {"": 1, "times": 1, "%": 100}


def wrong_in(path: Path) -> list[str]:
    """Return what is wrong in a document, or in the comments of a chapter's script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
    return list(wrong(text, path.parent))


def wrong(text: str, folder: Path) -> Iterator[str]:
    """Yield a line for each number of a text that is not that of the linked cell."""
    for label, record, title in [*LINK.findall(text), *table_cells(text)]:
        number = VALUE.fullmatch(label)
        if not number:
            continue
        quoted, unit = number.groups()
        try:
            value, units = cell(folder / record, title)
            if unit not in units:
                raise LookupError(f"its unit is one of: {', '.join(units)}")
            value *= units[unit]
            why = "" if agrees(quoted, value) else f"the record has {value:.6g}"
        except (LookupError, ValueError, OSError, RecordError) as error:
            why = str(error)
        if why:
            yield f'"{label}" ({record}, "{title}"): {why}'


def table_cells(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the numbers of tables that name their record, as links would say them."""
    for record, table in TABLE.findall(text):
        head, _, *rows = (
            [each.strip() for each in line.strip().strip("|").split("|")]
            for line in table.splitlines()
        )
        for arm, *numbers in rows:
            for name, number in zip(head[1:], numbers):
                if name.startswith("times "):
                    yield number, record, f"{arm} / {name[len('times ') :]}"
                else:
                    _, _, work = name.partition(", ")
                    yield f"{number} s", record, f"{work} | {arm}" if work else arm


def cell(path: Path, title: str) -> tuple[float, dict[str, float]]:
    """Return what a record has under a title, in seconds or as a ratio, and its units.

    Raises LookupError where the record has no such arm, row or column.
    """
    if path.suffix == ".txt":
        return table_cell(path.read_text(encoding="utf-8"), title)
    name, _, which = title.partition(", ")
    if name in ("seconds per epoch", "accuracy"):
        runs, of = of_setting(path), {"": median, "least": min, "most": max}[which]
        if name == "accuracy":
            return of(list(map(measurements.at_the_end, runs))), RATIOS
        return of([measurements.seconds_per_epoch(run).median for run in runs]), TIMES
    arm, _, other = title.partition(" / ")
    if other:
        return arm_seconds(path, arm) / arm_seconds(path, other), RATIOS
    return arm_seconds(path, arm), TIMES


def of_setting(path: Path) -> list[Run]:
    """Return the records of a setting, which are beside `path` or in ``seeds/``."""
    chapter = path.parent
    above = chapter.parent.parent if chapter.parent.name == "seeds" else chapter.parent
    folders = above / chapter.name, above / "seeds" / chapter.name
    names = path.name, path.name.replace("book-", "book-seed*-", 1)
    found = {file for at in folders for name in names for file in at.glob(name)}
    if path not in found:
        raise LookupError("there is no such record")
    return [files.read(file) for file in sorted(found)]


def arm_seconds(path: Path, title: str) -> float:
    """Return the median of "ARM", or of "WORK | ARM" where works share its name."""
    run = files.read(path)
    arms = arm_times(run) if run.lines_of(ArmSample) else []
    measured = [arm for arm in arms if arm.seconds]
    found = [a for a in measured if title in (a.name, f"{a.work} | {a.name}")]
    if len(found) != 1:
        there = ", ".join(f"{arm.work} | {arm.name}".lstrip(" |") for arm in arms)
        raise LookupError(f'{len(found)} arms are "{title}"; there are {there}')
    return found[0].summary.median


def table_cell(text: str, title: str) -> tuple[float, dict[str, float]]:
    """Return the number in "ROW | COLUMN" of the tables of a text, as `cell` does.

    ROW is the beginning of one row's line, COLUMN the head of a column. Columns are
    parted by two spaces or more, and a row's are counted from its right end.
    """
    row, _, column = title.partition(" | ")
    heads: list[str] = []
    found = []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells.count(column) == 1 or not line:
            heads = cells
        elif column in heads and " ".join(cells).startswith(f"{row} "):
            found.append(cells[heads.index(column) - len(heads)])
    if len(found) != 1:
        raise LookupError(f"{len(found)} cells are row and column")
    value = float(found[0].replace(",", "").rstrip("x"))
    unit = next((word for word in column.split() if word in TIMES), None)
    return (value / TIMES[unit], TIMES) if unit else (value, RATIOS)


def agrees(quoted: str, value: float) -> bool:
    """Is this the value, rounded to the digits of the quoted number, and not to 0?"""
    plain = quoted.replace(",", "")
    half = 10.0 ** -len(plain.partition(".")[2]) / 2 * (1 + 1e-9)
    return abs(float(plain) - value) <= min(half, abs(value) / 20)


def main(paths: list[str]) -> int:
    found = [f"{path}: {line}" for path in paths for line in wrong_in(Path(path))]
    for line in found:
        print(line)
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
