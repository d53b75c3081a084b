"""Tables as plain text, for the results that are printed and kept beside pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The rows under the columns' names, two spaces between columns.

    A column in which a cell starts with a digit or a sign holds numbers and is aligned
    to the right, all others to the left.

    >>> print(plain_table(["net", "seconds"], [["LeNet", "9.12"], ["MLP", "-"]]))
    net    seconds
    LeNet     9.12
    MLP          -
    """
    lines = [list(columns), *map(list, rows)]
    cells_of = list(zip(*lines))
    widths = [max(map(len, cells)) for cells in cells_of]
    numeric = [any(_is_number(cell) for cell in cells[1:]) for cells in cells_of]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric)
        ).rstrip()
        for line in lines
    )


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-")[:1].isdigit()
