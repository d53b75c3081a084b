"""Chapters, homework and puzzles for students and graders, and slides: in build/.

    python tools/make_students.py [NAME ...]        (default: all of them)
    python tools/make_students.py --slides          (needs build/reveal: make slides)

From each script come three notebooks without outputs, with their pictures inside:

    students/NAME.ipynb                      for students: no solution, no hidden test
    graders/nbgrader/source/NAME/NAME.ipynb  for `nbgrader generate_assignment NAME`
    graders/otter/NAME/NAME.ipynb            for `otter assign NAME.ipynb dist`

The puzzles, of which each is checked and drawn by its own cell, are for students only.
Hand out students/, never graders/, which holds solutions and hidden tests.

An exercise is a question with a free answer, which a person grades. The homework's
functions are graded by the tests of teaching/test_homework.py, whose first lines say
their points. Its solution, teaching/solution.py, is in the graders' notebooks only.
"""

from __future__ import annotations

import ast
import base64
import mimetypes
import re
import shutil
import sys
from pathlib import Path

import jupytext
import nbformat
from make_notebooks import ANSWER, FILES, NOTEBOOKS, ROOT, converted, definitions
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_raw_cell

from d2lpar.puzzles.cases import TARGETS

STUDENTS, GRADERS, SLIDES = (
    ROOT / "build" / name for name in ("students", "graders", "slides")
)
HOMEWORK = ROOT / "teaching" / "homework.py"
TESTS = HOMEWORK.with_name("test_homework.py")
SOLUTION = HOMEWORK.with_name("solution.py")
TASKS = ROOT / "d2lpar" / "puzzles" / "tasks.py"
LESSONS = ("multiple_gpus", "timing", "least_squares", "scaling")
PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]*)\)")
LINK = re.compile(r"\[([^\]]*)\]\(\.\./[^)]*\)")  # leads nowhere outside the checkout
AFTER = re.compile(r"^(?=\*\*Puzzles\.|## )", re.MULTILINE)  # the exercises end here
POINTS = re.compile(r"\b(\d+) points\b")
BLANK = re.compile(r"^    raise NotImplementedError\(.*\)$", re.MULTILINE)


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


class Plain:
    """The cells of a student's notebook."""

    def start(self, name: str) -> list:
        return []

    def exercise(self, name: str, number: int, question: str, answer: str) -> list:
        return [new_markdown_cell(question)]

    def function(self, name: str, blank: str, solution: str, tests: dict) -> list:
        seen = [test for test in tests if not test.endswith("_hidden")]
        cells = [new_code_cell(f"{tests[test]}\n\n\n{test}({name})") for test in seen]
        return [new_code_cell(blank), *cells]


class Nbgrader(Plain):
    """The cells of nbgrader's format, https://nbgrader.readthedocs.io, version 3."""

    def cell(self, make, source: str, grade_id: str, kind: str = "", points: int = 1):
        """A cell whose `kind` says what it is: grade, solution, both, or none."""
        grade = "grade" in kind
        data = {"grade": grade, "solution": "solution" in kind, "task": False}
        data |= {"locked": "solution" not in kind, "grade_id": grade_id}
        data |= {"schema_version": 3} | ({"points": points} if grade else {})
        return make(source, metadata={"nbgrader": data})

    def exercise(self, name: str, number: int, question: str, answer: str) -> list:
        grade_id = f"{name}-{number}"
        answer = f"### BEGIN SOLUTION\n{answer}\n### END SOLUTION"
        return [
            self.cell(new_markdown_cell, question, f"{grade_id}-question"),
            self.cell(
                new_markdown_cell,
                answer,
                grade_id,
                "grade and solution",
                points(question),
            ),
        ]

    def function(self, name: str, blank: str, solution: str, tests: dict) -> list:
        region = f"    ### BEGIN SOLUTION\n{body(solution)}\n    ### END SOLUTION"
        source = BLANK.sub(lambda _: region, blank)
        cells = [self.cell(new_code_cell, source, name, "solution")]
        for test, source in tests.items():
            worth = points(source)
            source = f"{source}\n\n\n{test}({name})"
            if test.endswith("_hidden"):
                source = f"### BEGIN HIDDEN TESTS\n{source}\n### END HIDDEN TESTS"
                source = f"# A test that you do not see: {worth} points\n{source}"
            cells.append(self.cell(new_code_cell, source, test, "grade", worth))
        return cells


class Otter(Plain):
    """The cells of otter's format, https://otter-grader.readthedocs.io, version 7."""

    def start(self, name: str) -> list:
        config = f"# ASSIGNMENT CONFIG\nname: {name}\nexport_cell: {{pdf: false}}\n"
        config += "tests: {ok_format: false}\nsuppress_no_tests_warning: true\n"
        if name == HOMEWORK.stem:
            config += "generate: {pdf: false}\npython_version: 3.11\n"
            config += "requirements: ['d2lpar[cpu]']\n"
        return [new_raw_cell(config)]

    def block(self, kind: str, cells: list, config: str = "") -> list:
        begin, end = f"# BEGIN {kind}\n{config}".strip(), f"# END {kind}"
        return [new_raw_cell(begin), *cells, new_raw_cell(end)]

    def exercise(self, name: str, number: int, question: str, answer: str) -> list:
        solution = self.block("SOLUTION", [new_markdown_cell(answer)])
        worth = points(question)
        config = f"name: {name}_{number}\nmanual: true\npoints: {worth}"
        cells = [new_markdown_cell(question), *solution]
        return self.block("QUESTION", cells, config)

    def function(self, name: str, blank: str, solution: str, tests: dict) -> list:
        region = f"    # BEGIN SOLUTION NO PROMPT\n{body(solution)}\n    # END SOLUTION"
        start, end = '    """ # BEGIN PROMPT', '    """; # END PROMPT'
        source = BLANK.sub(lambda m: "\n".join([region, start, m[0], end]), blank)
        cells = self.block("SOLUTION", [new_code_cell(source)])
        tested = []
        for test, source in tests.items():
            hidden = str(test.endswith("_hidden")).lower()
            config = f"hidden: {hidden}\npoints: {points(source)}"
            config = f'""" # BEGIN TEST CONFIG\n{config}\n""" # END TEST CONFIG'
            tested.append(new_code_cell(f"{config}\n{source}"))
        cells += self.block("TESTS", tested)
        return self.block("QUESTION", cells, f"name: {name}")


def written(script: Path, form: Plain) -> nbformat.NotebookNode:
    """A script as a notebook in one of the three forms."""
    notebook, name = converted(script), script.stem
    solutions, tests = definitions(SOLUTION), definitions(TESTS)
    free = free_answers(SOLUTION) if script == HOMEWORK else []
    cells = form.start(name)
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
                cells += form.exercise(name, number, question, answer)
            cells += map(new_markdown_cell, after)
        elif script == HOMEWORK and defined:
            function = defined[1]
            graded = {
                t: s for t, s in tests.items() if t.startswith(f"test_{function}")
            }
            solution = solutions[function]
            cells += form.function(function, cell.source, solution, graded)
        else:
            cells.append(cell)
    notebook.cells = [self_contained(cell) for cell in cells if cell.source.strip()]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{name}-{number}"[-64:]
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
        calls += [f"puzzles.draw({name})"] if name in TARGETS else []
        cells.append(new_markdown_cell(f"## Puzzle {number}: `{name}`"))
        cells += map(new_code_cell, [task, "\n".join(calls)])
    for number, cell in enumerate(cells):
        cell.id = f"puzzles-{number}"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def slides(notebook: nbformat.NotebookNode, room: int = 700) -> nbformat.NotebookNode:
    """An executed lesson as slides, up to its exercises.

    A heading begins a slide. Code with its output begins one below it, and so does what
    to predict, and what does not fit on a slide of `room` characters. All paragraphs
    but a heading's first are the speaker's notes, but for those in bold. Folds are left
    out.
    """
    cells: list[nbformat.NotebookNode] = []
    left = 0  # characters that still fit on the slide; none after code
    for cell in map(self_contained, notebook.cells):
        if cell.cell_type == "code":
            kind, left = "-" if left == room else "subslide", 0
            cell.metadata["slideshow"] = {"slide_type": kind}
            cells.append(cell)
            continue
        text, exercises, _ = cell.source.partition("## Exercises\n")
        text = re.sub("<details>.*?</details>", "", text, flags=re.DOTALL)
        for block in re.split(r"\n\n+", text.strip()):
            picture = block.startswith("![")
            size = 450 if picture else len(re.sub("<.*?>", "", block))
            paragraph = re.match(r"[\w`\"(]", block) and not re.match(r"\d+\. ", block)
            if block.startswith("#"):
                kind, left = "slide", room
            elif paragraph and left < room:
                kind = "notes" if cells else "slide"
            elif left < size or (block.startswith("*Predict") and left < room):
                kind, left = "subslide", room - size
            else:
                kind, left = "-", left - size
            metadata = {"slideshow": {"slide_type": kind}}
            cells.append(new_markdown_cell(block, metadata=metadata))
            cells[-1].attachments = cell.get("attachments", {})
        if exercises:
            break
    notebook.cells = cells
    return notebook


# nbconvert's page without what it loads from the network.
PAGE = """{% extends 'index.html.j2' %}
{% block html_head_js %}{% endblock %}{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_css %}<style>
:root { --jp-content-font-size1: 23px }
.reveal .slides section { text-align: left }
.reveal .slides :is(h1, h2, h3) { text-transform: none; font-size: 1.5em }
.reveal .slides .jp-MarkdownOutput :is(pre, table) { font-size: 19px }
.reveal img { max-height: 560px }
.reveal .slides section section { max-height: 680px; overflow-y: auto }
.jp-InputPrompt, .jp-OutputPrompt { display: none }
</style>{% endblock %}
{% block footer_js %}<script src="reveal/dist/reveal.js"></script>
<script src="reveal/plugin/notes/notes.js"></script><script>
Reveal.initialize({hash: true, center: false, width: 1100, plugins: [RevealNotes]})
</script>{% endblock %}"""


def write_slides() -> None:
    from docutils.utils.math.latex2mathml import tex2mathml
    from jinja2 import DictLoader
    from nbconvert import SlidesExporter

    reveal = ROOT / "build" / "reveal" / "node_modules" / "reveal.js"
    for part in ("dist", "plugin/notes"):
        shutil.copytree(reveal / part, SLIDES / "reveal" / part, dirs_exist_ok=True)
    loader = DictLoader({"lesson.html.j2": PAGE})
    exporter = SlidesExporter(extra_loaders=[loader], template_file="lesson.html.j2")
    exporter.reveal_url_prefix, exporter.reveal_theme = "reveal", "white"
    for name in LESSONS:
        notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":  # formulas as MathML: MathJax is far away
                cell.source = re.sub(
                    r"\$\$(.*?)\$\$", lambda m: tex2mathml(m[1], True), cell.source
                )
        page, _ = exporter.from_notebook_node(slides(notebook))
        (SLIDES / f"{name}.html").write_text(page, encoding="utf-8")
        print(SLIDES / f"{name}.html")


def main(arguments: list[str]) -> int:
    if arguments == ["--slides"]:
        write_slides()
        return 0
    scripts = {HOMEWORK.stem: HOMEWORK, "puzzles": TASKS, **FILES}
    for name in arguments or scripts:
        if name not in scripts:
            print(f"{name!r}: write one of {', '.join(scripts)}", file=sys.stderr)
            return 2
        if name == "puzzles":
            STUDENTS.mkdir(parents=True, exist_ok=True)
            nbformat.write(puzzles(), STUDENTS / "puzzles.ipynb")
            print(STUDENTS / "puzzles.ipynb")
            continue
        for folder, form in (
            (STUDENTS, Plain()),
            (GRADERS / "nbgrader" / "source" / name, Nbgrader()),
            (GRADERS / "otter" / name, Otter()),
        ):
            folder.mkdir(parents=True, exist_ok=True)
            nbformat.write(written(scripts[name], form), folder / f"{name}.ipynb")
        print(STUDENTS / f"{name}.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
