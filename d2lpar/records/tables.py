"""Tables as plain text, for the results that are printed and kept beside pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The rows under the columns' names, two spaces between columns.

    Columns with numbers (cells that start with a digit or a sign) are aligned to the
    right, as are columns of "-" alone; all others to the left.

    >>> print(plain_table(["net", "seconds"], [["LeNet", "9.12"], ["MLP", "-"]]))
    net    seconds
    LeNet     9.12
    MLP          -
    """
    lines = [list(columns), *map(list, rows)]
    cells_of = list(zip(*lines))
    widths = [max(map(len, cells)) for cells in cells_of]
    numeric = [
        any(map(_is_number, cells[1:])) or set(cells[1:]) <= {"-"} for cells in cells_of
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric)
        ).rstrip()
        for line in lines
    )


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-")[:1].isdigit()
