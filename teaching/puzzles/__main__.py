"""Check the functions of a file that are puzzles, a line for each.

python -m teaching.puzzles                        the puzzles
python -m teaching.puzzles FILE [NAME ...]        a script or a notebook
python -m teaching.puzzles --draw FILE NAME       what is sent: NAME.png
python -m teaching.puzzles --hint NAME [NUMBER]   one of three hints
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy

from . import devices, worker
from .cases import PUZZLES

FOLDER = Path(__file__).parent


def checked(path: Path, only: list[str]) -> int:
    """Print a line for each puzzle of a file; return 0 if all are right."""
    found, problems = worker.parts(path.name, path.read_bytes())
    if problems:
        print(*problems, sep="\n")
    written = {name for *_, sets in found for name in sets}
    asked, right = [name for name in PUZZLES if name in (only or written)], 0
    with devices.Program(path) as program:
        for name in asked:
            try:
                says = devices.check(program, name, PUZZLES[name])
                print(f"{name}: right" + f", {says}" * bool(says))
                right += 1
            except devices.Wrong as error:
                print(f"{name}: wrong with {error}")
    print(f"{right} of {len(asked)} solved")
    return int(right < len(asked) or not asked)


def draw(path: Path, name: str, n: int = 4) -> int:
    """Draw who sends how much to whom, round by round, in a file NAME.png."""
    from matplotlib.figure import Figure

    case = PUZZLES[name](n, 4 * n, numpy.random.default_rng())
    with devices.Program(path) as program, program.devices(name, n) as group:
        rounds = group.call(case).rounds
    figure = Figure((2 + 1.1 * len(rounds), 0.8 + 0.7 * n), layout="constrained")
    axes = figure.subplots()
    axes.set(title=f"{name}: numbers sent", xlabel="round", ylabel="device")
    axes.set(xlim=(0.8, len(rounds) + 1.2), ylim=(n - 0.6, -0.4))
    axes.set(xticks=range(1, len(rounds) + 1), yticks=range(n))
    axes.hlines(range(n), 0.8, len(rounds) + 1.2, color="0.85")
    for number, messages in enumerate(rounds, 1):
        for k, to, size in messages:
            end, start = (number + 1, to), (number, k)
            axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>"})
            at = number + 0.2, k + 0.2 * (to - k)
            axes.text(*at, size, ha="center", backgroundcolor="white", fontsize=8)
    figure.savefig(f"{name}.png", dpi=150)
    print(f"wrote {name}.png")
    return 0


def main(words: list[str]) -> int:
    if not words:
        tasks = ast.parse((FOLDER / "tasks.py").read_text(encoding="utf-8")).body
        for task in tasks[1:]:
            print(f"{task.name:20}", ast.get_docstring(task).splitlines()[0])
        print(__doc__.partition("\n\n")[2])
        return 0
    try:
        if words[0] == "--hint":
            name, number = [*words[1:], "1"][:2]
            lines = (FOLDER / "hints.tsv").read_text(encoding="utf-8").splitlines()
            rows = [line.split("\t") for line in lines]
            print([hint for of, hint in rows if of == name][int(number) - 1])
            return 0
        if words[0] == "--draw":
            return draw(Path(words[1]), words[2])
        return checked(Path(words[0]), words[1:])
    except (OSError, ValueError, devices.Wrong) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
