"""Every chapter: a lesson, a script that runs alone, and a notebook."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import jupytext
import pytest

from d2lpar import chapter
from d2lpar.experiments import EXPERIMENTS, load
from d2lpar.records.comparison import compare, summarize
from d2lpar.records.kinds import TimingRecord

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "chapters").glob("[!_]*.py"))
EVERY = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


def test_every_script_is_an_experiment():
    """All but five, whose cells measure by themselves."""
    assert EXPERIMENTS.keys() <= {path.stem for path in PATHS} and len(PATHS) == 14
    numbers = [experiment.number for experiment in EXPERIMENTS.values()]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_functions_of_an_experiment_are_there(name):
    experiment = EXPERIMENTS[name]
    values = [getattr(experiment, field) for field in experiment.__annotations__]
    functions = [v for v in values if isinstance(v, str) and v.startswith("d2lpar.")]
    assert functions and all(callable(load(function)) for function in functions)
    assert experiment.measure and experiment.result and experiment.figure
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
def test_a_lesson_asks_and_answers(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("*Predict before you run*: ") >= 3
    exercises = text.split("# ## Exercises\n")[1]
    numbers = re.findall(r"^# (\d+)\. ", exercises, re.MULTILINE)
    assert numbers == [str(k + 1) for k in range(len(numbers))]
    assert exercises.count("*(") == exercises.count(")*") == len(numbers) >= 4


def test_a_chapter_runs_alone_and_all_its_outputs_go_to_out(tmp_path):
    """As in a clone that cannot be written to."""
    done = subprocess.run(
        [sys.executable, ROOT / "chapters" / "devices.py", f"--out={tmp_path}/mine"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "devices-at-work.png").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert "auto: cpu(0) (" in done.stdout


def timed(name):
    """The lines of a record by operation, library, form and first device."""
    lines = chapter.record(name).lines_of(TimingRecord)
    return {(x.operation, x.library, x.form, x.devices[0]): x for x in lines}


@pytest.mark.parametrize(
    "name", ["timing/book-cpu1.jsonl", "h200/timing/book-gpu1.jsonl"]
)
def test_a_clock_that_does_not_wait_shows_less_than_half(name):
    """As Chapter 4 says of its picture."""
    shown = {
        operation: x.naive_seconds
        for (operation, library, form, _), x in timed(name).items()
        if library == "MXNet" and form in ("as written", "dense layer")
        and median(x.naive_seconds) < median(x.seconds) / 2
    }  # fmt: skip
    assert shown.keys() == {"x2", "sum", "trig", "product"}


def test_what_chapters_3_and_4_say_of_an_h200_is_in_its_record():
    lines = timed("h200/timing/book-gpu1.jsonl")
    gpu, host = "gpu(0) NVIDIA H200", "host (16 threads)"
    for operation, form, place in (
        ("sum", "as written", host),
        ("x2", "in place", gpu),
    ):
        ours = summarize(lines[operation, "MXNet", form, gpu].seconds)
        theirs = summarize(lines[operation, "PyTorch", form, place].seconds)
        assert compare(ours, theirs).is_told and ours.median > theirs.median
    copies = ("host to device", "np.array"), ("device to host", "asnumpy")
    there_and_back = [lines[copy, "MXNet", form, gpu] for copy, form in copies]
    trip = sum(median(x.seconds) / x.num_bytes for x in there_and_back) * 200e6
    on_gpu = median(lines["x2", "MXNet", "as written", gpu].seconds)
    for library, operations in (("NumPy", 2), ("PyTorch", 7)):
        saved = median(lines["x2", library, "as written", host].seconds) - on_gpu
        assert int(trip // saved) + 1 == operations
