"""Tables as plain text, for the results that are printed and kept beside pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from d2lpar.records.wording import aligned


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
    columns_of_cells = zip(*(rows or lines))
    right = [
        k
        for k, cells in enumerate(columns_of_cells)
        if k >= names and _holds_numbers(cells)
    ]
    return aligned(lines, right)


def _holds_numbers(cells: Sequence[str]) -> bool:
    numbers = any(cell.lstrip("+-")[:1].isdigit() for cell in cells)
    return numbers or all(cell == "-" for cell in cells)
