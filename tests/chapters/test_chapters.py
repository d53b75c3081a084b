"""Every chapter: a lesson, a script that runs alone, and a notebook."""

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest

from d2lpar import datasets
from d2lpar.cli import main
from d2lpar.records.kinds import PrecisionRecord
from d2lpar.studies import low_precision

ROOT = Path(main.__file__).parents[2]
SOURCES = (
    "the book",
    "the least-squares notes",
    "the GPU wiki",
    "the CryptoPunks notebook",
    "the GPUSOROBAN posts",
)
PATHS = tuple(main.chapter_files().values())
EVERY = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


def run(path, *flags, cwd):
    return subprocess.run(
        [sys.executable, str(path), *flags],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )


@EVERY
def test_a_lesson_has_its_parts(path):
    """What is taught, questions, a summary, and 4 to 6 exercises with their answers."""
    text = path.read_text(encoding="utf-8")
    assert "# **What you will learn.**" in text
    assert text.count("*Predict before you run*: ") >= 3
    _, after = text.split("# ## Summary\n")
    _, exercises = after.split("# ## Exercises\n")
    numbers = re.findall(r"^# (\d+)\. ", exercises, re.MULTILINE)
    assert numbers == [str(k + 1) for k in range(len(numbers))]
    assert 4 <= len(numbers) <= 6
    assert exercises.count("*(") == exercises.count(")*") == len(numbers)


@EVERY
def test_a_chapter_fits_a_page_in_width(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 88


@EVERY
def test_a_chapter_opens_as_a_notebook(path):
    notebook = jupytext.read(path)
    kinds = {cell.cell_type for cell in notebook.cells}
    assert kinds == {"markdown", "code"}
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    assert len(notebook.cells) >= 6


@EVERY
def test_a_chapter_names_its_source_and_its_commands(path):
    title, source = main.about(path)
    assert title != path.stem and source.startswith(SOURCES)
    text = path.read_text(encoding="utf-8")
    assert ("https://d2l.ai/" in text) == ("the book" in source)
    assert f"python chapters/{path.name} --devices auto" in text
    assert f"d2lpar run {path.stem} --preset book" in text


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--mp4", "d2lpar: --mp4: chapter multiple_gpus has no use for it"),
        ("--num-devices=256", "d2lpar: num-devices 256: --devices gives"),
        ("--lr=nan", "d2lpar: Invalid value for '--lr': nan is not a number"),
        ("--help", ""),
    ],
)
def test_a_chapter_alone_looks_at_its_flags_before_its_cells_run(flag, says, tmp_path):
    done = run(ROOT / "chapters" / "multiple_gpus.py", flag, cwd=tmp_path)
    assert done.returncode == (2 if says else 0)
    assert done.stderr.startswith(says) and done.stderr.count("\n") == bool(says)
    assert done.stdout.startswith("Usage: multiple_gpus") or (says and not done.stdout)
    assert done.stdout.count("--help") == (not says)


# One that only prints and one that measures; test_lessons runs all cells, in kernels.
@pytest.mark.parametrize("name", ["devices", "gan"])
def test_a_chapter_runs_alone(name, tmp_path):
    flags = ["--data=synthetic", "--devices=cpu:2", "--num-devices=1,2", "--dry-run"]
    done = run(main.chapter_files()[name], *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if name == "devices":
        assert "a run on 2 uses cpu(0)" in done.stdout
        assert list(tmp_path.iterdir()) == []
    else:
        written = {p.name for p in (tmp_path / "runs" / name).iterdir()}
        assert "quality " in done.stdout and "[synthetic data]" in done.stdout
        assert {"dry-run-synthetic.gif", "dry-run-synthetic-samples.png"} <= written


@EVERY
def test_a_chapter_ends_in_its_measurement(path):
    """So that all of them take the same flags and report errors in the same way."""
    last = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    call = last.body[-1].value
    assert ast.unparse(call.func) in ("chapter.measure", "chapter.show")
    assert ast.literal_eval(call.args[0]) == path.stem


# All chapters in one process: their last cells with some flags.
ANSWERS = """
import ast, contextlib, io, json, sys

def run(nodes, namespace):
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            exec(compile(ast.Module(nodes, []), "chapter", "exec"), namespace)
        except SystemExit as ended:
            code = ended.code
    return [code, out.getvalue(), err.getvalue()]

answers = {}
for path in sys.argv[1:]:
    *nodes, last = ast.parse(open(path, encoding="utf-8").read()).body
    namespace = {"__name__": "__main__", "__file__": path}
    code, _, wrong = run(nodes, namespace)
    assert not code, wrong
    answers[path] = {}
    for flag in ("--help", "--devices=cpu:0"):
        sys.argv = [path, flag]
        answers[path][flag] = run([last], namespace)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory, short_checkout):
    """By path and flag: the exit code, stdout and stderr of every chapter."""
    folder = tmp_path_factory.mktemp("answers")
    paths = [short_checkout / "chapters" / path.name for path in PATHS]
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, *map(str, paths)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return dict(zip(PATHS, json.loads(done.stdout.splitlines()[-1]).values()))


@EVERY
def test_a_chapter_says_how_to_run_it_and_what_is_wrong(path, answers):
    code, text, _ = answers[path]["--help"]
    assert "--num-devices" in text and "--dry-run" in text and not code
    code, _, wrong = answers[path]["--devices=cpu:0"]
    assert code == 2
    assert wrong.startswith("d2lpar: ") and "Traceback" not in wrong


def presets_of(name):
    """The presets of a chapter, which is not run."""
    text = main.chapter_files()[name].read_text(encoding="utf-8")
    (value,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PRESETS"
    )
    return ast.literal_eval(value)


def test_the_two_implementations_have_the_same_presets():
    """So that they can be compared."""
    presets = [presets_of(name) for name in ("multiple_gpus", "multiple_gpus_concise")]
    assert presets[0] == presets[1]
    assert presets[0]["book"] == {
        "num_epochs": 10, "global_batch_size": 256, "lr": 0.2,
    }  # fmt: skip


def test_low_precision_says_what_is_not_supported(monkeypatch, capsys):
    """As INT8 on a GPU: a row without numbers."""

    def refused(precision, params, task, weights="trained"):
        return PrecisionRecord(precision, weights, 200, "MXNet: no INT8 here")

    load = datasets.load
    few = {"n_train": 400, "n_test": 100}
    monkeypatch.setattr(datasets, "load", lambda name, **sizes: load(name, **few))
    monkeypatch.setattr(low_precision, "measure", refused)
    runpy.run_path(str(ROOT / "chapters" / "low_precision.py"))
    printed = capsys.readouterr().out
    assert "trained int8-none not supported: MXNet: no INT8 here" in printed
    assert "equalised, int8-entropy: MXNet: no INT8 here" in printed
