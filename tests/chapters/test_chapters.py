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
# Chapters that only print, with words of their output.
SHOWN = {
    "devices": ["a run on 2 uses cpu(0)", "40 x 64 = 2,560"],
    "arrays": ["[ 2.  4.  6.  8. 10.]", "1,000 numbers on cpu(1)", "function calls"],
    "memory": ["largest batch that fits", "2000: out of memory on cpu(0): conv"],
    "kernels": ["as NumPy: True", "to the bit: True"],
}
SOURCES = (
    "the book",
    "the least-squares notes",
    "the GPU wiki",
    "the CryptoPunks notebook",
    "the GPUSOROBAN posts",
)
EVERY = pytest.mark.parametrize(
    "path", main.chapter_files().values(), ids=lambda p: p.stem
)


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


# `make test` has one that measures and one that prints.
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=name,
            marks=[] if name in ("multiple_gpus", "devices") else pytest.mark.slow,
        )
        for name, path in main.chapter_files().items()
    ],
)
def test_a_chapter_runs_alone(path, tmp_path):
    flags = ["--data=synthetic", "--devices=cpu:2", "--num-devices=1,2", "--dry-run"]
    done = run(path, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if path.stem in SHOWN:
        for words in SHOWN[path.stem]:
            assert words in done.stdout
        assert list(tmp_path.iterdir()) == []
        return
    written = {p.name for p in (tmp_path / "runs" / path.stem).iterdir()}
    if path.stem.startswith("multiple_gpus"):
        assert "replicas agree: True" in done.stdout and "test acc: " in done.stdout
        assert "dry-run-synthetic-cpu2.jsonl" in written
        assert "dry-run-synthetic-seconds.png" in written
    elif path.stem == "multiple_machines":
        assert "sum of the pushes = whole batch: True" in done.stdout
        assert "[[0], [1], []]" in done.stdout and "test acc: " in done.stdout
        assert "dry-run-synthetic-cpu2.jsonl" in written
    elif path.stem == "gan":
        assert "quality " in done.stdout and "[synthetic data]" in done.stdout
        assert {"dry-run-synthetic.gif", "dry-run-synthetic-samples.png"} <= written
        differ = re.findall(r"synchronised=\w+: the faces differ by (\S+)", done.stdout)
        assert float(differ[0]) > 1e-3 > 1e-5 > float(differ[1])
    elif path.stem == "timing":
        assert "two / one:" in done.stdout and "29 timings" in done.stdout
        assert {"dry-run-roofline.png", "dry-run-results.txt"} <= written
    elif path.stem == "low_precision":
        assert "same scores: True" in done.stdout and "int8-naive" in done.stdout
        assert "dry-run-synthetic-results.txt" in written
        assert "dry-run-synthetic-cpu2-precision.png" in written
    elif path.stem == "scaling":
        assert "break-even between the two: " in done.stdout
        assert "scratch: up to " in done.stdout and "concise: up to " in done.stdout
        stem = "dry-run-synthetic-1thread"
        assert {f"{stem}-map-concise.png", f"{stem}-results.txt"} <= written
    else:
        assert "residual: " in done.stdout
        assert "dry-run-cgls-cpu2.jsonl" in written and "dry-run-devices.png" in written


@EVERY
def test_a_chapter_ends_in_its_measurement(path):
    """So that all of them take the same flags and report errors in the same way."""
    last = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    call = last.body[-1].value
    assert ast.unparse(call.func) in ("chapter.measure", "chapter.show")
    assert ast.literal_eval(call.args[0]) == path.stem


# All chapters in one process: their cells once, then the last one with some flags.
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
    *cells, last = ast.parse(open(path, encoding="utf-8").read()).body
    namespace = {"__name__": "__main__", "__file__": path}
    answers[path] = {"cells": run(cells, namespace)}
    for flag in ("--help", "--devices=cpu:0"):
        sys.argv = [path, flag]
        answers[path][flag] = run([last], namespace)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """By path and flag: the exit code, stdout and stderr of every chapter."""
    folder = tmp_path_factory.mktemp("answers")
    paths = map(str, main.chapter_files().values())
    done = subprocess.run(
        [sys.executable, "-c", ANSWERS, *paths],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert list(folder.iterdir()) == []
    return json.loads(done.stdout.splitlines()[-1])


@EVERY
def test_a_chapter_says_how_to_run_it_and_what_is_wrong(path, answers):
    code, text, _ = answers[str(path)]["--help"]
    assert "--num-devices" in text and "--dry-run" in text and not code
    code, _, wrong = answers[str(path)]["--devices=cpu:0"]
    assert code == 2
    assert wrong.startswith("d2lpar: ") and "Traceback" not in wrong


def test_arrays_shows_what_the_notes_show(answers):
    """The round trip, + ** / - on both sides, x2 and its profile, and percentages."""
    _, text, _ = answers[str(main.chapter_files()["arrays"])]["cells"]
    assert "[ 2.  4.  6.  8. 10.]" in text
    for name, values in {
        "x + y": "[2. 3. 4.]",
        "x ** z": "[1. 4. 9.]",
        "x / x": "[1. 1. 1.]",
        "z - x": "[ 1.  0. -1.]",
        "z / 2": "[1. 1. 1.]",
        "x - 1": "[0. 1. 2.]",
    }.items():
        (line,) = re.findall(rf"^{re.escape(name)} .*$", text, re.MULTILINE)
        assert line.count(values) == 2
    assert "NumPy, on the host" in text and "on the device, not waited for" in text
    assert "Ordered by: cumulative time" in text and "(x2)" in text
    assert len(re.findall(r"^ +-?\d+\.\d +-?\d+\.\d$", text, re.MULTILINE)) == 10


def test_from_scratch_shows_what_the_book_shows(answers):
    """b1 and its gradient, [[1 1]] + [[2 2]] -> [[3 3]], and the 4 x 6 split."""
    _, text, _ = answers[str(main.chapter_files()["multiple_gpus"])]["cells"]
    assert text.count("[0. 0. 0. 0. 0. 0.") >= 2
    before, after = text.split("after allreduce:")
    assert "[[1. 1.]]" in before and "[[2. 2.]]" in before
    assert after.count("[[3. 3.]]") == 2
    shards = after.split("output =")[1].split("labels =")[0]
    first, second = shards.split("[[12.")
    assert "[ 6.  7.  8.  9. 10. 11.]" in first
    assert "[18. 19. 20. 21. 22. 23.]" in second


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


def test_a_chapter_runs_in_a_notebook_kernel(tmp_path):
    """All cells but the one that would train for a minute: test_notebook has that."""
    pytest.importorskip("ipykernel", reason="no notebook kernel: extra test")
    nbclient = pytest.importorskip("nbclient", reason="no nbclient: extra test")
    notebook = jupytext.read(main.chapter_files()["multiple_gpus"])
    cells = [c for c in notebook.cells if "chapter.measure(" not in c.source]
    assert len(cells) == len(notebook.cells) - 1
    notebook.cells = cells
    client = nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {}}
    )
    client.execute(cwd=str(tmp_path))
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert "replicas agree: True" in printed


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
