"""Every chapter: a lesson, a script that runs alone, and a notebook."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from d2lpar.experiments import EXPERIMENTS, load

ROOT = Path(__file__).parents[2]
PATHS = [ROOT / "chapters" / f"{name}.py" for name in EXPERIMENTS]
EVERY = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


def test_every_script_is_an_experiment():
    assert sorted(PATHS) == sorted((ROOT / "chapters").glob("[!_]*.py"))
    assert [e.number for e in EXPERIMENTS.values()] == list(range(1, 15))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_functions_of_an_experiment_are_there(name):
    experiment = EXPERIMENTS[name]
    assert bool(experiment.measure) != bool(experiment.report)
    values = [getattr(experiment, field) for field in experiment.__annotations__]
    functions = [v for v in values if isinstance(v, str) and v.startswith("d2lpar.")]
    assert functions and all(callable(load(function)) for function in functions)
    assert bool(experiment.measure) == bool(experiment.result)
    assert {"quick", "book"} <= experiment.presets.keys()


@EVERY
def test_a_lesson_opens_as_a_notebook_and_measures(path):
    notebook = jupytext.read(path)
    assert {cell.cell_type for cell in notebook.cells} == {"markdown", "code"}
    assert notebook.cells[0].source.startswith("# ")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    (guarded,) = (block for block in body if isinstance(block, ast.If)
                  and ast.unparse(block.test) == "__name__ == '__main__'")  # fmt: skip
    call = ast.unparse(guarded.body[0].value)
    assert call.startswith(f"chapter.measure('{path.stem}'")


@EVERY
def test_a_lesson_asks_and_answers(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("*Predict before you run*: ") >= 3
    exercises = text.split("# ## Exercises\n")[1]
    numbers = re.findall(r"^# (\d+)\. ", exercises, re.MULTILINE)
    assert numbers == [str(k + 1) for k in range(len(numbers))]
    assert exercises.count("*(") == exercises.count(")*") == len(numbers) >= 4


def test_a_chapter_runs_alone_with_the_flags_of_d2lpar_run(tmp_path):
    done = subprocess.run(
        [sys.executable, PATHS[1], "--devices=cpu:2", "--num-devices=1,2", "--dry-run"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    printed = (tmp_path / "runs" / "devices" / "dry-run.txt").read_text()
    assert done.stdout.endswith(printed) and len(done.stdout) > len(printed)
