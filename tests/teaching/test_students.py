"""What the homework's tests refuse, and what students and nbgrader get."""

import os
import re
import runpy
import subprocess
from pathlib import Path

import jupytext
import make_students
import nbformat
import pytest
from make_notebooks import ANSWER, FILES, definitions
from make_students import HOMEWORK, SOLUTION, TESTS, for_students, written

SCRIPTS = {**FILES, "homework": HOMEWORK}
EVERY = pytest.mark.parametrize("name", SCRIPTS)
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


def failed(source):
    """The tests that functions of this source fail, and how."""
    namespace, errors = {}, {}
    exec(source, namespace)
    for name, test in GRADED.items():
        function = test.__code__.co_varnames[0]
        try:
            test(namespace[function])
        except Exception as error:
            errors[name] = error
    return errors


def test_the_solution_passes_and_the_blank_fails_each_test():
    assert failed(SOLUTION.read_text()) == {}
    blank = failed(HOMEWORK.read_text())
    assert blank.keys() == GRADED.keys() and len(blank) == 15
    assert sum(make_students.points(test.__doc__) for test in GRADED.values()) == 70
    for name, error in blank.items():
        assert isinstance(error, NotImplementedError)
        assert str(error).startswith("write ") and str(error)[6:] in name


@pytest.mark.parametrize(
    "right, wrong, fails",
    [
        ("data[0][:] +=", "data[0] = data[0] +", "allreduce train_batch"),
        ("data[0].copyto(other)", "other = data[0]", "allreduce train_batch"),
        ("y[start:stop]", "y[: stop - start]", "split_batch train_batch"),
        ("p.copyto(device)", "p.as_in_ctx(device)", "get_params"),
        ("allreduce(list(grads))", "pass", "train_batch"),
        ("/ len(X) *", "/ len(X) / len(devices) *", "train_batch"),
        ("/ len(X) *", "/ len(losses[0]) *", "train_batch"),
        ("for params in device_params:\n", "for params in device_params[:1]:\n",
         "train_batch"),
        ("sum(sums) / sum(counts)", "sum(sums) / len(sums)", "combine"),
        ("if count > 0", "", "combine"),
        ("numpy.percentile(both, 75)", "numpy.percentile(both, 50)", "break_even"),
        ("            start = None\n", "            pass\n", "break_even"),
        ("max(axis=1)", "max(keepdims=True)[0]", "chosen"),
        ("numpy.round(", "numpy.floor(", "chosen"),
    ],
)  # fmt: skip
def test_typical_mistakes_fail_the_tests_of_their_function(right, wrong, fails):
    text = SOLUTION.read_text()
    assert text.count(right) == 1
    errors = failed(text.replace(right, wrong))
    functions = {
        function
        for function in definitions(HOMEWORK)
        if any(name.startswith(f"test_{function}") for name in errors)
    }
    assert functions == set(fails.split())
    assert all(str(error) for error in errors.values())


WHOLE_BATCH = """
def train_batch(X, y, device_params, devices, lr, net, loss):
    for params, device in zip(device_params, devices):
        with autograd.record():
            l = loss(net(X.as_in_ctx(device), params), y.as_in_ctx(device))
        l.backward()
        for p in params:
            p -= lr / len(X) * p.grad
"""
SHARDS_FOR_SHOW = WHOLE_BATCH.replace("X.as_in", "every(X, X_k, params).as_in").replace(
    "    for params, device in zip(device_params, devices):\n",
    "    def every(X, X_k, params):\n        with autograd.record():\n"
    "            net(X_k, params)\n        with autograd.pause():\n"
    "            allreduce([q[0].copy() for q in device_params])\n        return X\n\n"
    "    shards = split_batch(X, y, devices)[0]\n"
    "    for params, device, X_k in zip(device_params, devices, shards):\n",
)
BORROWED = """
import d2lpar
def get_params(params, device):
    return d2lpar.get_params(params, device)
def allreduce(data):
    d2lpar.allreduce(data)
def split_batch(X, y, devices):
    return d2lpar.split_batch(X, y, devices)
def train_batch(X, y, device_params, devices, lr, net, loss):
    d2lpar.train_batch(X, y, device_params, devices, lr, net=net, loss=loss)
"""


@pytest.mark.parametrize(
    "cheat, lost",
    [
        (WHOLE_BATCH, {"train_batch_computes_each_row_once", "train_batch_hidden"}),
        (SHARDS_FOR_SHOW, {"train_batch_computes_each_row_once", "train_batch_hidden"}),
        (BORROWED, {name[5:] for name in GRADED if not re.search(
            "combine|break_even|chosen", name)}),
    ],
)  # fmt: skip
def test_cheats_lose_points(cheat, lost):
    errors = failed(SOLUTION.read_text() + cheat)
    assert {name.removeprefix("test_") for name in errors} == lost
    for name, error in errors.items():
        assert isinstance(error, AssertionError) and str(error), name


CGLS = """
def chosen():
    def cgls(shards, num_steps):
        r = [shard.b for shard in shards]
        s = p = sum(shard.transposed(r_k) for shard, r_k in zip(shards, r))
        x = 0 * s
        for _ in range(num_steps):
            q = [shard.times(p) for shard in shards]
            alpha = s @ s / sum(q_k @ q_k for q_k in q)
            x, r = x + alpha * p, [r_k - alpha * q_k for r_k, q_k in zip(r, q)]
            new = sum(shard.transposed(r_k) for shard, r_k in zip(shards, r))
            p, s = new + new @ new / (s @ s) * p, new
        return x
    return cgls
"""
GATHERS_THE_ROWS = """
def chosen():
    import numpy
    def cgls(shards, num_steps):
        d = len(shards[0].transposed(shards[0].b))
        A = numpy.vstack([[shard.times(e) for e in numpy.eye(d)] for shard in shards])
        A = numpy.vstack([a.T for a in numpy.split(A, len(shards))])
        b, K = numpy.concatenate([shard.b for shard in shards]), []
        for _ in range(num_steps):
            K.append(A.T @ (A @ K[-1] if K else b))
        K = numpy.stack(K, axis=1)
        return K @ numpy.linalg.lstsq(A @ K, b, rcond=None)[0]
    return cgls
"""
LOCAL_SGD = """
def chosen():
    def local_sgd(ws, gradients, lr, num_steps, steps_between, average):
        for step in range(1, num_steps + 1):
            for w, gradient in zip(ws, gradients):
                w -= lr * gradient(w)
            if step % steps_between == 0 or step == num_steps:
                average(ws)
    return local_sgd
"""


@pytest.mark.parametrize(
    "choice, right, wrong",
    [
        (CGLS, "* p, new", "* s, new"),
        (LOCAL_SGD, " or step == num_steps", ""),
        (LOCAL_SGD, "            if step", "            mean = sum(ws) / len(ws)\n"
         "            for w in ws:\n                w[:] = mean\n            if step"),
        (CGLS, CGLS, GATHERS_THE_ROWS),
    ],
)  # fmt: skip
def test_each_choice_is_graded(choice, right, wrong):
    assert failed(SOLUTION.read_text() + choice) == {}
    assert right in choice
    errors = failed(SOLUTION.read_text() + choice.replace(right, wrong))
    assert errors and errors.keys() <= {"test_chosen_is_right", "test_chosen_hidden"}


@EVERY
def test_a_solution_stands_in_its_region_only(name):
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


@EVERY
def test_the_metadata_of_nbgrader(name):
    cells = written(SCRIPTS[name]).cells
    data = [c.metadata.nbgrader for c in cells if "nbgrader" in c.metadata]
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
    assert out.count("not solved yet") == 16 + 9  # nine of them are drawn, too
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
    for version, says in (("source", "Success!"), ("release", "FAILED ON 11 CELL")):
        assert says in nbgrader("validate", f"{version}/homework/homework.ipynb")
