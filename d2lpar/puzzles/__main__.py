"""List the puzzles, and say which ones the functions in a file solve.

python -m d2lpar.puzzles [FILE.py]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from d2lpar.puzzles import tasks
from d2lpar.puzzles.cases import PUZZLES
from d2lpar.puzzles.checking import check


def main(words: list[str]) -> int:
    """Print a line per puzzle, after a file's check; return 2 if it is unreadable."""
    if len(words) > 1 or any(not Path(word).is_file() for word in words):
        print(f"{' '.join(words)}: no such file; python -m d2lpar.puzzles [FILE.py]")
        return 2
    mine = runpy.run_path(words[0]) if words else {}
    solved = []
    for name in PUZZLES:
        if name not in mine:
            continue
        if getattr(mine[name], "__name__", "") != name:  # check goes by this name
            print(f"{name}: not defined by `def {name}(...)`, so it is not checked")
        elif check(mine[name]):
            solved.append(name)
    for name in PUZZLES:
        about = getattr(tasks, name).__doc__.splitlines()[0]
        mark = "solved" if name in solved else ""
        print(f"{mark:7} {name:19} {about}")
    if words:
        print(f"{len(solved)} of {len(PUZZLES)} solved in {words[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
