"""Every chapter: a lesson of bounded length, a script, and a notebook."""

import ast
import re
from pathlib import Path

import jupytext
import pytest

from d2lpar.experiments import EXPERIMENTS, load

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "chapters").glob("[!_]*.py"))
EVERY = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_functions_of_an_experiment_are_there(name):
    experiment = EXPERIMENTS[name]
    values = [getattr(experiment, field) for field in experiment.__annotations__]
    functions = [v for v in values if isinstance(v, str) and v.startswith("d2lpar.")]
    functions.remove(experiment.room)
    functions += [
        f"{experiment.room}.{f}" for f in ("result:result", "figure:pictures")
    ]
    assert experiment.measure in functions
    assert all(callable(load(function)) for function in functions)
    assert {"quick", "book"} <= experiment.presets.keys()


@EVERY
def test_a_lesson_opens_as_a_notebook_and_measures(path):
    notebook = jupytext.read(path)
    assert {cell.cell_type for cell in notebook.cells} == {"markdown", "code"}
    assert notebook.cells[0].source.startswith("# ")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    guarded = [block for block in body if isinstance(block, ast.If)
               and ast.unparse(block.test) == "__name__ == '__main__'"]  # fmt: skip
    calls = [ast.unparse(block.body[0].value) for block in guarded]
    assert len(calls) == (path.stem in EXPERIMENTS)
    for call in calls:
        assert call.startswith(f"chapter.measure('{path.stem}'")


@EVERY
def test_a_lesson_is_short_shows_a_picture_and_asks(path):
    notebook = jupytext.read(path)
    prose = "\n\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    assert len(prose.split()) <= (1_750 if path.stem == "least_squares" else 1_250)
    assert "](../docs/drawings/" in prose or "](../figures/" in prose
    code = path.read_text(encoding="utf-8")
    asked = prose.count("*Predict before you run*: ")
    assert asked == code.count("chapter.predict(") == code.count("chapter.answer(") <= 2
    exercises = prose.split("## Exercises\n")[1]
    numbers = re.findall(r"^(\d+)\. ", exercises, re.MULTILINE)
    assert numbers == [str(k + 1) for k in range(len(numbers))] and len(numbers) >= 2
    is_open = exercises.count("*Open.*")
    assert exercises.count("*(") == exercises.count(")*") == len(numbers) - is_open
