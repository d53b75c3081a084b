"""Chapters, homework and puzzles for students and graders, and slides: in build/.

    python tools/make_students.py [NAME ...]        (default: all of them)
    python tools/make_students.py --slides
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
from make_notebooks import ANSWER, FILES, NOTEBOOKS, ROOT, converted, definitions
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from d2lpar.puzzles.cases import WITH_ROUNDS

STUDENTS, GRADERS, SLIDES, GRADER = (
    ROOT / "build" / name for name in ("students", "graders", "slides", "grader")
)
HOMEWORK = ROOT / "teaching" / "homework.py"
TESTS = HOMEWORK.with_name("test_homework.py")
SOLUTION = HOMEWORK.with_name("solution.py")
TASKS = ROOT / "d2lpar" / "puzzles" / "tasks.py"
# Pixels, of which a slide has 960 by 700.
HEIGHT, TEXT, CODE, PICTURE_HEIGHT = 690, 31, 20, 560
AROUND = 60  # a block of code
LINES = (HEIGHT - AROUND) // CODE  # of code or output on a slide
FITTING = f"""

<style>.reveal :is(p, li, td, th) {{ font-size: 24px; line-height: {TEXT}px; }}
.reveal h1 {{ font-size: 44px; }} .reveal h2 {{ font-size: 36px; }}
.reveal img {{ max-height: {PICTURE_HEIGHT}px; max-width: 100%; margin: 0 auto; }}
.reveal pre {{ width: 100%; max-height: none; white-space: pre !important;
  font-size: 14px !important; line-height: {CODE}px !important; }}
.reveal pre code {{ font-size: inherit; line-height: inherit; }}</style>"""
LESSONS = ("multiple_gpus", "timing", "least_squares", "scaling")
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


def slides(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An executed lesson as slides, up to its exercises, without folds.

    A heading begins a slide; a picture, a prediction and code begin one below it, and
    so does what does not fit. All paragraphs but a heading's first are notes, unless
    they begin in bold. Raises ValueError for a block that is higher than a slide.
    """
    cells: list[nbformat.NotebookNode] = []
    for cell in map(self_contained, notebook.cells):
        if cell.cell_type == "code":
            cells += in_pieces("python", cell.source, "subslide")
            for output in cell.get("outputs", []):
                cells += of_output(output)
            continue
        text, exercises, _ = cell.source.partition("## Exercises\n")
        text = re.sub("<details>.*?</details>", "", text, flags=re.DOTALL)
        for block in filter(None, re.split(r"\n\n+", text.strip())):
            is_paragraph = re.match(r"(?!\d+\. )[\w`\"(]", block)
            if block.startswith("#"):
                kind = "slide"
            elif block.startswith(("![", "*Predict")):
                kind = "subslide"
            elif is_paragraph and not cells[-1].source.startswith("#"):
                kind = "notes"
            else:
                kind = "-"
            cells.append(slide(block, kind, cell.get("attachments", {})))
        if exercises:
            break
    fit(cells)
    cells[0].source += FITTING
    notebook.cells = cells
    return notebook


def slide(text: str, kind: str, attachments: dict) -> nbformat.NotebookNode:
    """A cell of Markdown on slides."""
    metadata = {"slideshow": {"slide_type": kind}}
    return new_markdown_cell(text, metadata=metadata, attachments=attachments)


def in_pieces(language: str, text: str, kind: str) -> list[nbformat.NotebookNode]:
    """Code or output as cells that fit on a slide, parted at empty lines."""
    lines, cells = text.strip("\n").split("\n"), []
    while lines:
        end = len(lines)
        if end > LINES:
            empty = [k for k in range(1, LINES + 1) if not lines[k].strip()]
            end = max(empty, default=LINES)
        piece = "\n".join(lines[:end]).strip("\n")
        cells.append(slide(f"```{language}\n{piece}\n```", kind, {}))
        lines = lines[end:]
    return cells


def of_output(output: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """What a cell has printed, below it if there is room, or drawn, by itself."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = {"output.png": {"image/png": data["image/png"]}}
        return [slide("![output](attachment:output.png)", "subslide", picture)]
    text = output.get("text", data.get("text/plain", ""))
    return in_pieces("text", text, "-") if text.strip() else []


def height(block: str) -> int:
    """About how many pixels of a slide a block takes."""
    if block.startswith("```"):
        return CODE * (block.count("\n") - 1) + AROUND
    if block.startswith("!["):
        return PICTURE_HEIGHT
    if block.startswith("#"):
        return 110
    rows = [line for line in block.split("\n") if not re.match(r"\|[-:| ]+$", line)]
    if rows[0].startswith("|"):  # a cell of a table has a padding
        return sum((TEXT + 16) * -(-len(row) // 60) for row in rows) + 40
    items = re.split(r"\n(?=[-\d])", block)
    return TEXT * sum(1 + len(item) // 62 for item in items) + 30


def fit(cells: list[nbformat.NotebookNode]) -> None:
    """Begin a new slide where the next block has no room on the last one."""
    used = 0
    for cell in cells:
        how, needed = cell.metadata["slideshow"], height(cell.source)
        if how["slide_type"] == "notes":
            continue
        if how["slide_type"] == "-" and used + needed > HEIGHT:
            how["slide_type"] = "subslide"
        used = needed + used * (how["slide_type"] == "-")
        if used > HEIGHT:
            raise ValueError(
                f"{used} pixels, a slide has {HEIGHT}: {cell.source[:200]}"
            )


def main(arguments: list[str]) -> int:
    if arguments == ["--slides"]:
        SLIDES.mkdir(parents=True, exist_ok=True)
        for name in LESSONS:
            notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
            nbformat.write(slides(notebook), SLIDES / f"{name}.ipynb")
        return 0
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
