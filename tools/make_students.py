"""Chapters, homework and puzzles for students and graders: in build/.

    python tools/make_students.py [NAME ...]        (default: all of them)
    python tools/make_students.py --grader

Each script becomes two notebooks without outputs, with their pictures inside:

    graders/source/NAME/NAME.ipynb     for `nbgrader generate_assignment NAME`
    students/NAME.ipynb                the same without solutions and hidden tests

With the homework come its two scripts and their tests, those for graders left out.
The grader is one file, build/grader.zip, for Gradescope and Otter.

The puzzles, each of which is checked and drawn by its own cell, are for students only.
Hand out students/, never graders/.

An exercise is a question with a free answer, which a person grades. The homework's
functions are graded by the tests of teaching/test_homework.py, whose first lines say
their points. Its solution, teaching/solution.py, is in the graders' notebook only.
"""

from __future__ import annotations

import ast
import base64
import copy
import mimetypes
import re
import sys
import zipfile
from pathlib import Path

import jupytext
import nbformat
from make_notebooks import ANSWER, FILES, ROOT, converted, definitions
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from d2lpar.puzzles.cases import WITH_ROUNDS

STUDENTS, GRADERS, GRADER = (
    ROOT / "build" / name for name in ("students", "graders", "grader")
)
HOMEWORK = ROOT / "teaching" / "homework.py"
TESTS = HOMEWORK.with_name("test_homework.py")
SOLUTION = HOMEWORK.with_name("solution.py")
TASKS = ROOT / "d2lpar" / "puzzles" / "tasks.py"
PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]*)\)")
LINK = re.compile(r"\[([^\]]*)\]\(\.\./[^)]*\)")  # leads nowhere outside the checkout
AFTER = re.compile(r"^(?=\*\*Puzzles\.|## )", re.MULTILINE)  # the exercises end here
POINTS = re.compile(r"\b(\d+) points\b")
BLANK = re.compile(r"^    raise NotImplementedError\(.*\)$", re.MULTILINE)
HIDDEN = re.compile(r"\n\n\ndef test_\w+_hidden\(.*?(?=\n\n\ndef |\Z)", re.DOTALL)
# What Gradescope runs in its container: once, with a network; for each submission.
SETUP = """#!/bin/sh
cd "$(dirname "$0")"
python3 -m pip install --no-index --no-deps wheels/*.whl || exit 1
python3 -m pip install -q --retries 1 torch || echo "no PyTorch, so not its track"
"""
RUN = """#!/bin/sh
cd "$(dirname "$0")" && folder=${AUTOGRADER:-/autograder}
[ -d source ] && cd source
python3 autograde.py "$folder"
"""
REGION = re.compile(r"### BEGIN SOLUTION\n.*?### END SOLUTION", re.DOTALL)


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


def points(text: str) -> int:
    """The points that a question, or a test, says it is worth first; 1 if none."""
    found = POINTS.search(text)
    return int(found[1]) if found else 1


def free_answers(path: Path) -> list[str]:
    """The texts of ANSWERS in the homework's solution."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ANSWERS":
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} has no ANSWERS")


def body(function: str) -> str:
    return function.split(":\n", 1)[1]


def graded(make, source: str, grade_id: str, points: int = 0, solution: bool = False):
    """A cell in nbgrader's format, version 3; without points it is not graded."""
    data = {"schema_version": 3, "grade_id": grade_id, "task": False}
    data |= {"grade": points > 0, "solution": solution, "locked": not solution}
    data |= {"points": points} if points else {}
    return make(source, metadata={"nbgrader": data})


def exercise(grade_id: str, question: str, answer: str) -> list:
    """The cells of a question and its free answer."""
    answer = f"### BEGIN SOLUTION\n{answer}\n### END SOLUTION"
    worth = points(question)
    return [
        graded(new_markdown_cell, question, f"{grade_id}-question"),
        graded(new_markdown_cell, answer, grade_id, worth, solution=True),
    ]


def function(name: str, blank: str, solution: str, tests: dict[str, str]) -> list:
    """The cells of a function to fill in, and of its tests."""
    region = f"    ### BEGIN SOLUTION\n{body(solution)}\n    ### END SOLUTION"
    source = BLANK.sub(lambda _: region, blank)
    cells = [graded(new_code_cell, source, name, solution=True)]
    for test, source in tests.items():
        worth = points(source)
        (defined,) = ast.parse(source).body
        arguments = ", ".join(arg.arg for arg in defined.args.args)
        source = f"{source}\n\n\n{test}({arguments})"
        if test.endswith("_hidden"):
            source = f"### BEGIN HIDDEN TESTS\n{source}\n### END HIDDEN TESTS"
            source = f"# A test that you do not see: {worth} points\n{source}"
        cells.append(graded(new_code_cell, source, test, worth))
    return cells


def written(script: Path) -> nbformat.NotebookNode:
    """A script as nbgrader's source: with solutions and hidden tests in regions."""
    notebook, name = converted(script), script.stem
    solutions, tests = definitions(SOLUTION), definitions(TESTS)
    free = free_answers(SOLUTION) if script == HOMEWORK else []
    cells = []
    for cell, original in zip(notebook.cells, jupytext.read(script).cells):
        text, heading, exercises = original.source.partition("## Exercises\n")
        defined = re.match(r"def (\w+)", cell.source)
        if heading:
            exercises, *after = AFTER.split(exercises, maxsplit=1)
            intro, *items = re.split(r"^(?=\d+\. )", exercises, flags=re.MULTILINE)
            cells.append(new_markdown_cell(text + heading + intro))
            for number, item in enumerate(items, 1):
                answers = free[number - 1 : number] or ANSWER.findall(item)
                answer = " ".join("\n".join(answers).split())
                question = ANSWER.sub("", item).strip()
                cells += exercise(f"{name}-{number}", question, answer)
            cells += map(new_markdown_cell, after)
        elif script == HOMEWORK and defined:
            task = defined[1]
            own = {t: x for t, x in tests.items() if t.startswith(f"test_{task}")}
            cells += helpers(tests) if task == "get_params" else []
            cells += function(task, cell.source, solutions[task], own)
        else:
            cells.append(cell)
    notebook.cells = [self_contained(cell) for cell in cells if cell.source.strip()]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"[-64:]
    return notebook


def helpers(tests: dict[str, str]) -> list:
    """A cell of what the tests import and share."""
    imports = [n for n in ast.parse(TESTS.read_text("utf-8")).body
               if isinstance(n, (ast.Import, ast.ImportFrom))]  # fmt: skip
    shared = [x for name, x in tests.items() if name.startswith("check_")]
    source = "\n".join(map(ast.unparse, imports))
    return [graded(new_code_cell, "\n\n\n".join([source, *shared]), "helpers")]


def scripts_for_students() -> None:
    """Write the homework's scripts, and their tests without those for graders."""
    for script in (HOMEWORK, HOMEWORK.with_name("homework_pytorch.py")):
        for path in (script, script.with_name(f"test_{script.name}")):
            text = HIDDEN.sub("", path.read_text(encoding="utf-8")).rstrip() + "\n"
            (STUDENTS / path.name).write_text(text, encoding="utf-8")


def grader() -> Path:
    """Write a zip of the tests and of what runs them, with the wheels in GRADER."""
    archive = GRADER.with_suffix(".zip")
    tests = [TESTS, TESTS.with_name("test_homework_pytorch.py")]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in (("setup.sh", SETUP), ("run_autograder", RUN)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o755 << 16
            file.writestr(entry, text)
        for path in [Path(__file__).with_name("autograde.py"), *tests]:
            file.write(path, path.name)
        for wheel in sorted((GRADER / "wheels").glob("*.whl")):
            file.write(wheel, f"wheels/{wheel.name}")
    return archive


def for_students(source: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A source of nbgrader without solutions, hidden tests and nbgrader's marks."""
    notebook = copy.deepcopy(source)
    notebook.cells = [c for c in notebook.cells if "BEGIN HIDDEN TESTS" not in c.source]
    for cell in notebook.cells:
        is_code = cell.cell_type == "code"
        blank = "raise NotImplementedError" if is_code else "*Your answer.*"
        cell.source = REGION.sub(blank, cell.source)
        cell.metadata.pop("nbgrader", None)
    return notebook


def puzzles() -> nbformat.NotebookNode:
    """Each puzzle in a cell, followed by one that checks it and draws its rounds."""
    text = ast.get_docstring(ast.parse(TASKS.read_text(encoding="utf-8"))) or ""
    _, _, rules = text.partition("\n\n")
    start = "# Puzzles\n\nFill in each function, or repair it from puzzle 17 on, and"
    start += " run its cell and the next one. If you are stuck, `puzzles.hint(ring)`"
    start += " prints the next of three hints for `ring`.\n\n"
    start += rules.replace(" ::\n", ":\n")
    cells = [new_markdown_cell(start), new_code_cell("from d2lpar import puzzles")]
    for number, (name, task) in enumerate(definitions(TASKS).items(), 1):
        calls = [f"puzzles.check({name})"]
        calls += [f"puzzles.draw({name})"] if name in WITH_ROUNDS else []
        cells.append(new_markdown_cell(f"## Puzzle {number}: `{name}`"))
        cells += map(new_code_cell, [task, "\n".join(calls)])
    for number, cell in enumerate(cells):
        cell.id = f"puzzles-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def main(arguments: list[str]) -> int:
    if arguments == ["--grader"]:
        print(grader())
        return 0
    scripts = {HOMEWORK.stem: HOMEWORK, "puzzles": TASKS, **FILES}
    STUDENTS.mkdir(parents=True, exist_ok=True)
    for name in arguments or scripts:
        if name not in scripts:
            print(f"{name!r}: write one of {', '.join(scripts)}", file=sys.stderr)
            return 2
        if name == "puzzles":
            notebook = puzzles()
        else:
            source, folder = written(scripts[name]), GRADERS / "source" / name
            folder.mkdir(parents=True, exist_ok=True)
            nbformat.write(source, folder / f"{name}.ipynb")
            notebook = for_students(source)
        nbformat.write(notebook, STUDENTS / f"{name}.ipynb")
        if name == HOMEWORK.stem:
            scripts_for_students()
        print(STUDENTS / f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
