"""Tables as plain text, for the results that are printed and kept beside pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 0
) -> str:
    """The rows under the columns' names, two spaces between columns.

    Columns with numbers (cells that start with a digit or a sign) are aligned to the
    right, as are columns of "-" alone; all others to the left, and always the first
    `names` columns. Without `columns` (``[]``) there is no header.

    >>> print(plain_table(["net", "seconds"], [["LeNet", "9.12"], ["MLP", "-"]]))
    net    seconds
    LeNet     9.12
    MLP          -
    """
    rows = [list(row) for row in rows]
    lines = [list(columns), *rows] if columns else rows
    by_column = list(zip(*lines))
    widths = [max(map(len, cells)) for cells in by_column]
    right = [
        k >= names and _holds_numbers(cells[len(lines) - len(rows) :])
        for k, cells in enumerate(by_column)
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right)
        ).rstrip()
        for line in lines
    )


def _holds_numbers(cells: Sequence[str]) -> bool:
    numbers = any(cell.lstrip("+-")[:1].isdigit() for cell in cells)
    return numbers or all(cell == "-" for cell in cells)
