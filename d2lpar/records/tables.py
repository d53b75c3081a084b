"""Tables as plain text, for the results that are printed and kept beside pictures."""

from __future__ import annotations

import io
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
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    lines = [columns, *rows] if columns else rows
    table = Table.grid(padding=(0, 2))
    for k, cells in enumerate(zip(*(rows or lines))):
        right = k >= names and _holds_numbers(cells)
        table.add_column(justify="right" if right else "left", no_wrap=True)
    for line in lines:
        table.add_row(*map(Text, line))
    # In a notebook rich would display the table instead of writing it.
    plain = {"color_system": None, "force_jupyter": False}
    console = Console(file=io.StringIO(), width=10_000, **plain)
    console.print(table)
    printed = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in printed)


def _holds_numbers(cells: Sequence[str]) -> bool:
    numbers = any(cell.lstrip("+-")[:1].isdigit() for cell in cells)
    return numbers or all(cell == "-" for cell in cells)
