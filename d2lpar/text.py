"""Numbers, sizes and tables as plain text, for terminals, labels and messages."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80  # columns of a line of text, where no terminal says otherwise
WIDEST = 100  # longer lines are hard to read


def number(value: float) -> str:
    """Return three significant digits or all of the whole part, never an exponent.

    >>> number(9.1234), number(6580.4), number(0.0051234)
    ('9.12', '6,580', '0.00512')
    >>> number(0.9996), number(9.996), number(math.nan)
    ('1.00', '10.0', 'nan')
    """
    rounded = abs(float(f"{value:.3g}"))
    if not 0 < rounded < 100:  # so is NaN
        return f"{value:,.0f}"
    return f"{value:,.{2 - math.floor(math.log10(rounded))}f}"


def as_ratio(ratio: float) -> str:
    """Return a ratio above 1 with one decimal, or more where one would say 1.0.

    >>> as_ratio(1.84), as_ratio(12.3), as_ratio(1.04), as_ratio(1.004)
    ('1.8', '12.3', '1.04', '1.004')
    """
    digits = next((n for n in (1, 2, 3) if round(ratio, n) != 1), 3)
    return f"{ratio:,.{digits}f}"


def plural(n: int, noun: str) -> str:
    """Return the count and its noun: "1 device", "2 devices"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds, or minutes from 60 seconds on: "6 s", "2.5 min"."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:g} min"


def byte_size(size: float) -> str:
    """Return bytes in a unit that suits them, with at most one decimal.

    >>> byte_size(0), byte_size(512 * 2**10), byte_size(1_610_612_736)
    ('0 B', '512 KiB', '1.5 GiB')
    """
    power = next((k for k in range(3) if size < 1024 ** (k + 1)), 3)
    digits = f"{size / 1024**power:,.1f}".removesuffix(".0")
    return f"{digits} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def printable(text: str) -> str:
    """Spell out escape sequences and the like, as in names of files and records.

    >>> printable("\x1b[31mx.jsonl")
    '\\\\x1b[31mx.jsonl'
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def terminal_width() -> int:
    """Return the columns that text may fill: the terminal's, or 80 without one."""
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDEST)


def filled(text: str, start: str = "", width: int = 0) -> str:
    """Return text in lines of `width`, by default the terminal's, indented to `start`.

    No word is cut: one that is longer than a line, such as a path, stands alone.
    """
    return textwrap.fill(
        text,
        width or terminal_width(),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 0
) -> str:
    """Return the rows under the columns' names; without `columns` there is no header.

    Columns with numbers, or of "-" alone, are aligned to the right; all others to the
    left, and always the first `names` columns.

    >>> print(plain_table(["net", "seconds"], [["LeNet", "9.12"], ["MLP", "-"]]))
    net    seconds
    LeNet     9.12
    MLP          -
    """
    lines = [columns, *rows] if columns else list(rows)
    aligned = []
    for k, cells in enumerate(zip(*lines)):
        below = cells[1:] if columns else cells
        numbers = any(cell.lstrip("+-")[:1].isdigit() for cell in below)
        right = k >= names and (numbers or set(below) == {"-"})
        width = max(map(len, cells))
        align = str.rjust if right else str.ljust
        aligned.append([align(cell, width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned))
