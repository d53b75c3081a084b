"""The homework: right but unusual answers keep their points, cheats get none."""

import csv
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import exercises
import pytest
from exercises import EXERCISES
from puzzles.devices import Program, Wrong
from puzzles.worker import cells

ROOT = Path(__file__).parents[2]
SOLVED = (ROOT / "teaching" / "solution.py").read_text(encoding="utf-8")
BLANK = ROOT / "teaching" / "homework.py"


@pytest.fixture(scope="module")
def program():
    """One process that starts devices serves all files here."""
    with Program(BLANK) as program:
        yield program


@pytest.fixture
def lost(program):
    """The exercises without points in a file, each with what its test says."""

    def lost(path, asked=EXERCISES):
        program.name, program.data, found = str(path), path.read_bytes(), {}
        for exercise in asked:
            try:
                exercises.grade(program, exercise)
            except Wrong as error:
                found[exercise] = error
        return found

    return lost


def test_the_solution_has_all_points_and_the_blank_has_none(lost):
    assert lost(ROOT / "teaching" / "solution.py") == {}
    blank = lost(BLANK)
    assert blank.keys() == EXERCISES.keys()
    assert str(blank["ring"]).endswith("NotImplementedError: write ring")
    assert sum(points for points, *_ in EXERCISES.values()) == 70


STEP = "def train_batch(rank, n, X, y, params, lr, gradient, exchange):\n"
NORM = "def batch_norm(rank, n, X, exchange):\n"
REDUCE = "def allreduce(rank, n, array, exchange):\n"
UNUSUAL = {  # of exercises, in place of or behind the solution
    "lists": ("batch_norm split_batch", """
def split_batch(rank, n, X, y):
    rows = [*range(len(X))]
    own = rows[sum(len(rows[k::n]) for k in range(rank)):][:len(rows[rank::n])]
    return [X[i].tolist() for i in own] or X[:0], [int(y[i]) for i in own]
""" + NORM + """
    count, sums, squares = numpy.array(len(X)), X.sum(axis=0), (X * X).sum(axis=0)
    for array in (count, sums, squares):
        allreduce(rank, n, array, exchange)
    mean = [s / count for s in sums]
    return mean, [s / count - m * m for s, m in zip(squares, mean)]
"""),
    "a partial, a class, a lambda": ("allreduce split_batch", """
import functools
def reduce_by(how, rank, n, array, exchange):
    return how(rank, n, array, exchange)
allreduce = functools.partial(reduce_by, allreduce)
class Split:
    def __call__(self, rank, n, X, y):
        return numpy.array_split(X, n)[rank], numpy.array_split(y, n)[rank]
split_batch = Split()
"""),
    "a table that is filled": ("step a step e", """
TABLE = {}
for key, number in zip("abcde", [3, 2, 5, 1, 6]):
    TABLE[key] = number
def diagnosis(step):
    return TABLE[step]
"""),
    "an absent import": ("allreduce ring", """
import a_package_that_is_absent
def measured():
    return a_package_that_is_absent.timeit(ring)
print(measured())
"""),
    "a measurement without end": ("ring", "while True:\n    seconds = ring\n"),
    "a dataclass": ("split_batch", """
from dataclasses import dataclass
@dataclass
class Shard:
    X: object
    y: list[int] | None
split = split_batch
def split_batch(rank, n, X, y):
    shard = Shard(*split(rank, n, X, y))
    return shard.X, shard.y
"""),
    "its own path": ("ring", "from pathlib import Path\nPath(__file__).parent\n"),
    "much text": ("allreduce", REDUCE + """
    for _ in range(3000):
        print("device", rank)
    for turn in range(1, n):
        exchange()
    total = array.copy()
    for turn in range(1, n):
        total += exchange(array, (rank + turn) % n)
    array[...] = total
"""),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_right_but_unusual_answer_keeps_its_points(tmp_path, name, lost):
    asked, text = UNUSUAL[name]
    names = [e for e in EXERCISES if e in asked]
    file = tmp_path / "homework.py"
    file.write_text(SOLVED + text, encoding="utf-8")
    assert names and lost(file, names) == {}


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + SOLVED.encode(),
        b"# -*- coding: latin-1 -*-\n# Gr\xf6\xdfe\n" + SOLVED.encode(),
        b"# Gr\xf6\xdfe\n" + SOLVED.encode(),
        SOLVED.replace("\n", "\r\n").encode(),
        SOLVED.encode() + b"\n# %%\ndef unfinished(:\n",
    ],
)
def test_an_encoding_or_a_broken_cell_costs_nothing(tmp_path, data, lost):
    file = tmp_path / "homework.py"
    file.write_bytes(data)
    assert lost(file, ["split_batch", "ring"]) == {}


def notebook(path, *texts):
    found = [{"cell_type": "code", "source": text.splitlines(True)} for text in texts]
    path.write_text(json.dumps({"cells": found}), encoding="utf-8")
    return path


def test_a_notebook_with_magics_and_broken_cells_keeps_its_points(tmp_path, lost):
    path = notebook(
        tmp_path / "homework.ipynb",
        "%matplotlib inline\n!pip install numpy\nimport numpy",
        "%%bash\nls | wc",
        "scratch + 1",
        "def broken(:",
        "%%time\n# I tried test_allreduce_sums first\nlatest_start = 0\n" + SOLVED,
        "here = !ls\n%timeit -n 1 ring(0, 1, numpy.ones(2), None)\nring?",
        "assert test_that_is_absent(ring)",
    )
    assert lost(path) == {}


def test_a_message_names_the_cell_and_line_of_the_student(tmp_path, lost):
    path = notebook(
        tmp_path / "homework.ipynb",
        "import numpy\n\nimport absent",
        "def ring(rank, n, array, exchange):\n\n    absent.sum(array)",
        "def allreduce(:",
    )
    found = lost(path, ["ring", "allreduce"])
    ring = str(found["ring"])
    assert "homework.ipynb, code cell 2, line 3: NameError" in ring
    assert "code cell 1, line 3: ModuleNotFoundError: No module named 'absent'" in ring
    assert "code cell 3, line 1: SyntaxError" in str(found["allreduce"])


CHEATS = {
    "train_batch": [
        ("own rows only", STEP + """
    for p, g in zip(params, gradient(X, y, params)):
        p -= lr / max(len(X), 1) * g
"""),
        ("an average of means", SOLVED.replace("lr / rows * g", "lr / n * g")),
        ("not in place", SOLVED.replace("p -= lr / rows * g", "p = p - lr / rows * g")),
        ("nan", STEP + "    for p in params:\n        p *= float('nan')"),
    ],
    "split_batch": [
        ("all on each", "def split_batch(rank, n, X, y): return X, y"),
        ("equal only", SOLVED.replace("array_split(X", "split(X")),
        ("in turns", "def split_batch(rank, n, X, y): return X[rank::n], y[rank::n]"),
    ],
    "batch_norm": [
        ("the own", NORM + "    return X.mean(axis=0), X.var(axis=0)"),
        ("negative", SOLVED.replace("squares - mean**2", "mean**2 - squares")),
        ("all rows sent", NORM + """
    every = [X]
    for turn in range(1, n):
        every.append(exchange(numpy.append(X.ravel(), numpy.zeros(99)),
                              (rank + turn) % n)[:0].reshape(0, 3))
    every = numpy.concatenate(every)
    return every.mean(axis=0), every.var(axis=0)
"""),
    ],
    "ring": [
        ("central", SOLVED.replace("def ring", "def no").replace("def allr", "def ring")
         .replace("educe(", "(", 1)),
        ("scaled", SOLVED.replace("arrived + copy", "arrived + 2 * copy")),
    ],
    "break_even": [
        ("medians", """
import statistics
def break_even(batches, one, two):
    start = None
    for batch, a, b in zip(batches, one, two):
        wins = statistics.median(a) > statistics.median(b)
        start = (start or batch) if wins else None
    return start
"""),
        ("the first", SOLVED.replace("if wins else None", "if wins else start")),
        ("three turns", SOLVED.replace("t >= 4 and ", "").replace("T95[t]", "2")),
        ("never", "def break_even(*args): return None"),
    ],
    "step a": [("one for all", "def diagnosis(step): return 4"),
               ("all at once", "def diagnosis(step): return [1, 2, 3, 4, 5, 6, 7]")],
}  # fmt: skip


@pytest.mark.parametrize("exercise", CHEATS)
def test_mistakes_and_cheats_get_no_points(tmp_path, exercise, lost):
    for name, text in CHEATS[exercise]:
        file = tmp_path / "homework.py"
        file.write_text("import numpy\n" + text, encoding="utf-8")
        error = lost(file, [exercise]).get(exercise)
        assert error and "NotImplemented" not in str(error), (name, error)


def test_each_broken_step_is_broken_and_only_e_needs_an_idle_device(
    tmp_path, monkeypatch, lost
):
    text = BLANK.read_text(encoding="utf-8")
    steps = text[text.index("def step_a") : text.index("# %%\ndef diagnosis")]
    file = tmp_path / "homework.py"
    for idle in (True, False):
        right = set()
        if not idle:
            monkeypatch.setattr(
                exercises, "shards", lambda n, rng: rng.integers(1, 6, size=n)
            )
        for letter in "abcde":
            step = steps.replace(f"step_{letter}(", "train_batch(")
            file.write_text(SOLVED.replace("def train_batch", "def old") + step)
            right |= {letter} - {*(letter for _ in lost(file, ["train_batch"]))}
        assert right == (set() if idle else {"e"})


def test_steps_are_measured_in_turns():
    one, two = exercises.seconds(ROOT / "teaching" / "solution.py", batch=16, turns=3)
    assert len(one) == len(two) == 3 and min(one + two) > 0


def grade(*words, cwd, **environ):
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env={**os.environ, **environ},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_folder_is_graded_within_its_seconds(tmp_path):
    students = tmp_path / "class"
    for name in ("ann", "eve", "none"):
        (students / name).mkdir(parents=True)
    (students / "ann" / "homework.py").write_text(SOLVED)
    (students / "eve" / "homework.py").write_text(
        SOLVED.replace("    for turn", "    import time; time.sleep(99)\n    for turn")
    )
    grade(sys.executable, ROOT / "tools/autograde.py", students, 8, cwd=tmp_path)
    with (tmp_path / "grades.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["ann"]["total"] == "70" and rows["ann"]["first message"] == ""
    assert rows["eve"]["split_batch"] == "8" and rows["eve"]["ring"] == "0"
    assert "no answer in time" in rows["eve"]["first message"]
    assert "hand in one of" in rows["none"]["first message"]


HOSTILE = """
import os, signal
def split_batch(rank, n, X, y):
    for name in ("source/solution.py", "source/exercises.py", "results/results.json"):
        try:
            open(FOLDER + "/" + name, "r+").write("nothing")
        except OSError:
            continue
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) > 1 and "autograde" in open(
            f"/proc/{pid}/cmdline").read():
            os.kill(int(pid), signal.SIGKILL)
"""


@pytest.fixture
def container(tmp_path):
    """A folder like Gradescope's, with the zip unpacked."""
    pytest.importorskip("jupytext", reason="no extra docs")
    import make_students

    with zipfile.ZipFile(make_students.grader()) as file:
        file.extractall(tmp_path / "source")
        modes = {info.filename: info.external_attr >> 16 for info in file.infolist()}
        assert sum(info.file_size for info in file.infolist()) < 100_000
    assert modes["run_autograder"] == modes["setup.sh"] == 0o755
    (tmp_path / "submission").mkdir()
    return tmp_path


def run_container(container, text):
    (container / "submission" / "homework.py").write_text(text, encoding="utf-8")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    script = container / "source" / "run_autograder"
    grade("sh", script, cwd="/", AUTOGRADER=str(container), PATH=path, PYTHONPATH="")
    return json.loads((container / "results" / "results.json").read_text())


def test_the_zip_grades_as_in_a_container(container):
    assert run_container(container, SOLVED)["score"] == 70


@pytest.mark.skipif(
    not Program(BLANK).uids, reason="needs root, and a Python that all users can read"
)
def test_as_root_a_device_reads_no_test_and_ends_no_grader(container):
    text = SOLVED.replace("def split_batch", "def old")
    report = run_container(container, text + f"FOLDER = {str(container)!r}\n" + HOSTILE)
    assert "PermissionError" in report["tests"][0]["output"]
    assert report["score"] == 62
    source = (container / "source" / "solution.py").read_text(encoding="utf-8")
    assert source == SOLVED


@pytest.mark.slow
def test_the_folder_of_students_is_tested_and_has_no_solution(tmp_path, monkeypatch):
    pytest.importorskip("jupytext", reason="no extra docs")
    import make_students

    monkeypatch.setattr(make_students, "BUILD", tmp_path)
    assert make_students.main(["homework", "timing"]) == 0
    folder = tmp_path / "students"
    names = {path.name for path in folder.iterdir()}
    assert {"homework.py", "homework.ipynb", "test_homework.py", "puzzles"} <= names
    assert "solution.py" not in names
    texts = [
        text for _, text in cells("x.ipynb", (folder / "homework.ipynb").read_bytes())
    ]
    assert any(text.startswith("def ring") for text in texts)
    chapter = (folder / "timing.ipynb").read_text(encoding="utf-8")
    assert "*Your answer.*" in chapter and "*(" not in chapter
    (folder / "homework.ipynb").unlink()
    (folder / "homework.py").write_text(SOLVED)
    command = [sys.executable, "-m", "pytest", "--tb=line", "test_homework.py"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-q"], cwd=folder,
        env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True,
    )  # fmt: skip
    assert "6 passed, 5 skipped" in done.stdout, done.stdout


ON_THREE = """
X, y = torch.randn(7, 2, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
distributed.broadcast(X, 0), distributed.broadcast(y, 0)
own = [slice(0, 5), slice(5, 7), slice(7, 7)][rank]
train_batch(X[own], y[own], [w], 0.1, lambda X, y, p: ((X @ p[0] - y) ** 2).sum())
right = 0.1 * 2 / 7 * X.T @ y
assert n == 3 and torch.allclose(w, right), (w, right)
"""


def test_the_step_of_the_page_in_pytorch_is_the_step_of_one(tmp_path):
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    *_, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "mine.py").write_text(code + ON_THREE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    grade(*launch, "mine.py", cwd=tmp_path)
