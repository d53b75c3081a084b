"""What the homework's tests refuse, and what students and nbgrader get."""

import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import make_students
import nbformat
import pytest
from make_notebooks import ANSWER, FILES, definitions
from make_students import HOMEWORK, SOLUTION, TESTS, for_students, written

SCRIPTS = {**FILES, "homework": HOMEWORK}
REGION = re.compile(r"#+ BEGIN (SOLUTION|HIDDEN TESTS).*?#+ END \1", re.DOTALL)
GRADED = {k: v for k, v in runpy.run_path(str(TESTS)).items() if k.startswith("test_")}


def words(notebook):
    return " ".join("\n".join(cell.source for cell in notebook.cells).split())


def exercises(name):
    """The answers to a script's exercises, in one line each."""
    if name == "homework":
        return [" ".join(text.split()) for text in make_students.free_answers(SOLUTION)]
    text = SCRIPTS[name].read_text().replace("\n# ", "\n").partition("## Exercises")[2]
    text = text.partition("\n## ")[0]
    assert len(re.findall(r"^\d+\. ", text, re.MULTILINE)) == text.count("*(")
    return [" ".join(answer.split()) for answer in ANSWER.findall(text)]


def failed(source, functions=("",)):
    """The tests, of these functions, that a source fails, and how."""
    namespace, errors = {}, {}
    exec(source, namespace)
    prefixes = tuple(f"test_{function}" for function in functions)
    for name, test in GRADED.items():
        if not name.startswith(prefixes):
            continue
        try:
            test(
                *(
                    namespace[argument]
                    for argument in inspect.signature(test).parameters
                )
            )
        except Exception as error:
            errors[name] = error
    return errors


def test_the_solution_passes_and_the_blank_fails_each_test():
    assert failed(SOLUTION.read_text()) == {}
    blank = failed(HOMEWORK.read_text())
    assert blank.keys() == GRADED.keys() and len(blank) == 14
    assert sum(make_students.points(test.__doc__) for test in GRADED.values()) == 70
    for error in blank.values():
        assert isinstance(error, NotImplementedError)
        assert str(error).startswith("write ")


@pytest.mark.parametrize(
    "right, wrong, fails",
    [
        ("data[0][:] +=", "data[0] = data[0] +", "allreduce train_batch"),
        ("data[k][:] =", "data[k] =", "allreduce train_batch"),
        ("y[start:stop]", "y[: stop - start]", "split_batch train_batch"),
        ("numpy.zeros_like(p)", "p", "get_params"),
        ("place(k, p) for", "place(0, p) for", "get_params train_batch"),
        # what grad_req="add" does in MXNet: gradients of all steps pile up
        ("            g[:] = 0\n", "            pass\n", "train_batch"),
        ("allreduce(list(grads), exchange)", "pass", "train_batch"),
        ("/ len(X) *", "/ len(X) / len(replicas) *", "train_batch"),
        ("backward(X_k, y_k, *replica)", "backward(place(X_k.device, X), "
         "place(X_k.device, y), *replica)", "train_batch"),
        ("sum(sums) / sum(counts)", "sum(sums) / len(sums)", "combine"),
        ("if count > 0", "", "combine"),
        ("numpy.percentile(both, 75)", "numpy.percentile(both, 50)", "break_even"),
        ("percentile(both, 75) >= numpy.percentile(alone, 25)",
         "percentile(both, 80) >= numpy.percentile(alone, 20)", "break_even"),
        ("            start = None\n", "            pass\n", "break_even"),
        ("max(axis=1)", "max(keepdims=True)[0]", "chosen"),
        ("/ 127", "/ 128", "chosen"),
    ],
)  # fmt: skip
def test_typical_mistakes_fail_the_tests_of_their_function(right, wrong, fails):
    text = SOLUTION.read_text()
    assert text.count(right) == 1
    functions = fails.split()
    errors = failed(text.replace(right, wrong), functions)
    for function in functions:
        assert any(name.startswith(f"test_{function}") for name in errors)
    assert all(str(error) for error in errors.values())


BORROWED = """
import sys
sys.setprofile(None)
import d2lpar
def allreduce(data, exchange):
    d2lpar.allreduce(data)
def split_batch(X, y, num_devices, place):
    from d2lpar import devices
    return d2lpar.split_batch(X, y, devices.parse(f"cpu:{num_devices}"))
"""
READS_OTHERS = """
def allreduce(data, exchange):
    total = sum(numpy.asarray(array) for array in data)
    for k in range(1, len(data)):
        exchange([(data[k], 0)])
        exchange([(data[0], k)])
    for array in data:
        array[:] = total
"""
ON_THE_HOST = READS_OTHERS.replace("exchange([", "([")
ON_ONE_DEVICE = """
def train_batch(X, y, replicas, lr, backward, place, exchange):
    params, grads = replicas[0]
    for g in grads:
        g[:] = 0
    backward(place(0, X), place(0, y), params, grads)
    for i, p in enumerate(params):
        p -= lr / len(X) * grads[i]
        for k in range(1, len(replicas)):
            replicas[k][0][i][:] = exchange([(p, k)])[0]
"""


@pytest.mark.parametrize(
    "cheat, lost",
    [
        (BORROWED, "allreduce split_batch train_batch"),
        (READS_OTHERS, "allreduce train_batch"),
        (ON_THE_HOST, "allreduce train_batch"),
        (ON_ONE_DEVICE, "train_batch"),
    ],
)
def test_cheats_lose_points(cheat, lost):
    errors = failed(SOLUTION.read_text() + cheat, lost.split())
    for name, error in errors.items():
        assert isinstance(error, AssertionError) and str(error), name
    for function in lost.split():
        assert any(name.startswith(f"test_{function}") for name in errors)


def test_the_solution_cannot_be_imported_by_a_homework(tmp_path):
    for file in (TESTS, SOLUTION):
        shutil.copy(file, tmp_path)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        TESTS.name,
    ]
    for source, passed in (
        (SOLUTION.read_text(), "14 passed"),
        ("from solution import *", "14 failed"),
    ):
        (tmp_path / "homework.py").write_text(source)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert passed in done.stdout, done.stdout[-2000:]


CGLS = """
def chosen():
    def cgls(shards, num_steps, exchange):
        r = [shard.b.copy() for shard in shards]
        s = [shard.transposed(shard.b) for shard in shards]
        allreduce(s, exchange)
        p, x = [s_k.copy() for s_k in s], [0 * s_k for s_k in s]
        for _ in range(num_steps):
            q = [shard.times(p_k) for shard, p_k in zip(shards, p)]
            squares = [(q_k * q_k).sum()[None] for q_k in q]
            allreduce(squares, exchange)
            for k, shard in enumerate(shards):
                gamma = (s[k] * s[k]).sum()
                x[k] += gamma / squares[k] * p[k]
                r[k] -= gamma / squares[k] * q[k]
            new = [shard.transposed(r_k) for shard, r_k in zip(shards, r)]
            allreduce(new, exchange)
            for k in range(len(shards)):
                p[k][:] = new[k] + (new[k] * new[k]).sum() / (s[k] * s[k]).sum() * p[k]
            s = new
        return x
    return cgls
"""
KRYLOV_AND_LSTSQ = """
def chosen():
    def cgls(shards, num_steps, exchange):
        d = len(shards[0].transposed(shards[0].b))
        A = numpy.vstack([[shard.times(e) for e in numpy.eye(d)] for shard in shards])
        b, K = numpy.concatenate([shard.b for shard in shards]), []
        for _ in range(num_steps):
            K.append(A.T @ (A @ K[-1] if K else b))
        K = numpy.stack(K, axis=1)
        return [K @ numpy.linalg.lstsq(A @ K, b, rcond=None)[0]] * len(shards)
    return cgls
"""
LATE_LSTSQ = KRYLOV_AND_LSTSQ.replace(
    "shard.times(e) for e in numpy.eye(d)", "shard.times(shard.transposed(shard.b))"
)


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("cgls", "cgls"),  # as it is, it passes
        ("* p[k]\n            s", "* s[k]\n            s"),
        ("range(num_steps)", "range(num_steps + 1)"),
        (CGLS, KRYLOV_AND_LSTSQ),
        (CGLS, LATE_LSTSQ),
        ("def cgls", "def sgd"),
    ],
)
def test_each_choice_is_graded(right, wrong):
    assert right in CGLS
    source = CGLS.replace(right, wrong).replace("return cgls", "return " + (
        "sgd" if "sgd" in wrong else "cgls"))  # fmt: skip
    assert bool(failed(SOLUTION.read_text() + source, ["chosen"])) == (right != wrong)


IN_PYTORCH = """
import torch
from torch import distributed

def get_params(params):
    return [torch.tensor(p, requires_grad=True) for p in params]

def allreduce(tensor):
    distributed.all_reduce(tensor)

def split_batch(X, y):
    n, rank = distributed.get_world_size(), distributed.get_rank()
    return X.tensor_split(n)[rank], y.tensor_split(n)[rank]

def train_batch(X, y, params, lr, loss):
    loss(*split_batch(X, y), params).backward()
    with torch.no_grad():
        for p in params:
            allreduce(p.grad)
            p -= lr / len(X) * p.grad
            p.grad = None
"""


@pytest.mark.parametrize(
    "right, wrong, fails",
    [
        ("", "", set()),
        ("torch.tensor(p, requires_grad=True)", "torch.from_numpy(p)",
         {"get_params", "train_batch"}),
    ],
)  # fmt: skip
def test_the_track_in_pytorch(right, wrong, fails, tmp_path):
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    grader = runpy.run_path(str(TESTS.with_name("test_homework_pytorch.py")))
    found, errors = grader["grade"](IN_PYTORCH.replace(right, wrong), tmp_path), set()
    for name in ("get_params", "allreduce", "split_batch", "train_batch"):
        try:
            grader[f"test_{name}"](found)
        except AssertionError:
            errors.add(name)
    assert errors == fails


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_solution_stands_in_its_region_only_and_each_is_graded(name):
    source = written(SCRIPTS[name])
    answers = exercises(name)
    if name == "homework":
        bodies = map(make_students.body, definitions(SOLUTION).values())
        answers += [" ".join(lines.split()) for lines in bodies]
    assert len(answers) >= 4
    text, theirs = words(source), words(for_students(source))
    for answer in answers:
        assert answer in text and answer not in REGION.sub("", text)
        assert answer not in theirs
    assert not re.search(r"### BEGIN|test_\w+_hidden", theirs)
    assert "](../" not in text
    assert not [c for c in source.cells if c.get("outputs")]
    guesses = re.findall(r'^chapter\.predict\(".*", (.*?)\)', text, re.MULTILINE)
    assert set(guesses) <= {"None"}
    data = [c.metadata.nbgrader for c in source.cells if "nbgrader" in c.metadata]
    assert len({d.grade_id for d in data}) == len(data)
    tests = len(GRADED) if name == "homework" else 0
    assert sum(d.grade for d in data) == len(exercises(name)) + tests
    assert name != "homework" or sum(d.get("points", 0) for d in data) == 100


def test_slides_begin_at_headings_and_end_before_the_exercises():
    cells = make_students.slides(jupytext.read(FILES["timing"])).cells
    kinds = [cell.metadata.slideshow.slide_type for cell in cells]
    lesson = FILES["timing"].read_text().partition("# ## Exercises")[0]
    assert kinds.count("slide") == len(re.findall("^# #+ ", lesson, re.MULTILINE))
    text = "\n".join(cell.source for cell in cells)
    assert "Exercises" not in text and not ANSWER.search(text)
    assert "<details>" not in text


def test_a_slide_has_no_more_than_fits():
    shown = nbformat.v4.new_output("stream", text="a line\n" * 20)
    code = nbformat.v4.new_code_cell("x = 1\n\n" * 30, outputs=[shown])
    title = nbformat.v4.new_markdown_cell("# Title\n\nA question?")
    cells = make_students.slides(nbformat.v4.new_notebook(cells=[title, code])).cells
    kinds = [cell.metadata.slideshow.slide_type for cell in cells]
    assert kinds == ["slide", "-", "subslide", "subslide", "subslide"]
    assert "".join(cell.source for cell in cells).count("x = 1") == 30
    title.source += "\n\n**Note.** " + "word " * 500
    with pytest.raises(ValueError, match="a slide has 690: \\*\\*Note"):
        make_students.slides(nbformat.v4.new_notebook(cells=[title]))


@pytest.fixture
def build(tmp_path, monkeypatch):
    """The folder in which students' and graders' files are written."""
    monkeypatch.setattr(make_students, "STUDENTS", tmp_path / "students")
    monkeypatch.setattr(make_students, "GRADERS", tmp_path / "graders")
    return tmp_path


def test_the_puzzles_run_as_a_notebook(build, capsys):
    pytest.importorskip("matplotlib")
    assert make_students.main(["puzzles"]) == 0
    notebook = nbformat.read(build / "students" / "puzzles.ipynb", as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    capsys.readouterr()
    exec("\n".join(code), {})
    out = capsys.readouterr().out
    assert out.count("not solved yet") == 21 + 14  # fourteen of them are drawn, too
    assert "rebinding: wrong with" in out and "clock: wrong with" in out


# In an environment of its own: it brings JupyterLab.
NBGRADER = Path(os.environ.get("D2LPAR_GRADERS", ""), "bin", "nbgrader")


@pytest.mark.slow
@pytest.mark.skipif(
    not NBGRADER.is_file(),
    reason="D2LPAR_GRADERS names no environment with nbgrader and d2lpar",
)
def test_nbgrader_grades_the_homework(build, monkeypatch):
    monkeypatch.setenv("PATH", str(NBGRADER.parent), prepend=os.pathsep)
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "1")
    assert make_students.main(["homework", "timing"]) == 0
    course = build / "graders"

    def nbgrader(*words):
        command = [NBGRADER, *words]
        done = subprocess.run(
            command, cwd=course, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    for name in ("homework", "timing"):
        nbgrader("generate_assignment", name)
        text = (course / "release" / name / f"{name}.ipynb").read_text()
        assert "BEGIN SOLUTION" not in text and "default_rng(5)" not in text
        text = words(nbformat.reads(text, as_version=4))
        assert not [answer for answer in exercises(name) if answer in text]
    for version, says in (("source", "Success!"), ("release", "FAILED ON 10 CELL")):
        assert says in nbgrader("validate", f"{version}/homework/homework.ipynb")
