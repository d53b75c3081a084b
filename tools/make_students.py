"""Chapters and homework for a class, without solutions: build/students/.

    python tools/make_students.py [NAME ...]        (default: all of them)
    python tools/make_students.py --grader          build/grader.zip

A chapter is a notebook without outputs, with its pictures inside, and a cell for each
answer. With the homework come its tests, what runs them, and the puzzles; the diagnosis
is graded from the zip only, which is for Gradescope and Otter.
"""

from __future__ import annotations

import base64
import mimetypes
import re
import sys
import zipfile
from pathlib import Path

import nbformat
from make_notebooks import ANSWER, FILES, ROOT, converted
from nbformat.v4 import new_markdown_cell

BUILD, TEACHING = ROOT / "build", ROOT / "teaching"
HOMEWORK = TEACHING / "homework.py"
CHECKER = [TEACHING / "exercises.py", *sorted((TEACHING / "puzzles").glob("*.[pt]*"))]
PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]*)\)")
LINK = re.compile(r"\[([^\]]*)\]\(\.\./[^)]*\)")  # leads nowhere outside the checkout
AFTER = re.compile(r"^(?=\*\*Puzzles\.|## )", re.MULTILINE)  # the exercises end here
# What Gradescope runs in its container: once, with a network; for each submission.
SETUP = """#!/bin/sh
python3 -m pip install "numpy==1.26.4; python_version < '3.13'" \\
    "numpy==2.2.6; python_version >= '3.13'"
"""
RUN = """#!/bin/sh
cd "$(dirname "$0")"
[ -d source ] && cd source
exec python3 autograde.py
"""


def self_contained(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The cell with the pictures in it, and with the text of links to other files."""
    if cell.cell_type == "markdown":
        for _, path in PICTURE.findall(cell.source):
            kind = mimetypes.guess_type(path)[0]
            content = base64.b64encode((ROOT / path).read_bytes()).decode()
            cell.setdefault("attachments", {})[Path(path).name] = {kind: content}
        cell.source = PICTURE.sub(
            lambda m: f"![{m[1]}](attachment:{Path(m[2]).name})", cell.source
        )
        cell.source = LINK.sub(r"\1", cell.source)
    return cell


def for_students(script: Path) -> nbformat.NotebookNode:
    """Return a script as a notebook with room in place of the answers to exercises."""
    notebook, cells = converted(script), []
    for cell in notebook.cells:
        text, heading, exercises = cell.source.partition("## Exercises\n")
        if heading and cell.cell_type == "markdown":
            exercises, *after = AFTER.split(exercises, maxsplit=1)
            intro, *items = re.split(r"^(?=\d+\. )", exercises, flags=re.MULTILINE)
            cells.append(new_markdown_cell(text + heading + intro))
            for item in items:
                cells.append(new_markdown_cell(ANSWER.sub("", item).strip()))
                cells.append(new_markdown_cell("*Your answer.*"))
            cells += map(new_markdown_cell, after)
        else:
            cells.append(cell)
    notebook.cells = [self_contained(cell) for cell in cells if cell.source.strip()]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{script.stem}-{number}"[-64:]
    return notebook


def grader() -> Path:
    """Write a zip of the tests and of what runs them."""
    archive = BUILD / "grader.zip"
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o755 << 16
            file.writestr(entry, text)
        file.write(Path(__file__).with_name("autograde.py"), "autograde.py")
        for path in [*CHECKER, TEACHING / "solution.py"]:
            file.write(path, path.relative_to(TEACHING))
    return archive


def main(arguments: list[str]) -> int:
    if arguments == ["--grader"]:
        print(grader())
        return 0
    scripts, folder = {HOMEWORK.stem: HOMEWORK, **FILES}, BUILD / "students"
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments or scripts:
        if name not in scripts:
            print(f"{name!r}: write one of {', '.join(scripts)}", file=sys.stderr)
            return 2
        nbformat.write(for_students(scripts[name]), folder / f"{name}.ipynb")
        print(folder / f"{name}.ipynb")
        if name == HOMEWORK.stem:
            for path in [HOMEWORK, TEACHING / "test_homework.py", *CHECKER]:
                copy = folder / path.relative_to(TEACHING)
                copy.parent.mkdir(exist_ok=True)
                copy.write_bytes(path.read_bytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
