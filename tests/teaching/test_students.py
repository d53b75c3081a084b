"""What the homework's tests refuse, and what students and nbgrader get."""

import importlib.util
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import make_students
import nbformat
import pytest
from make_notebooks import ANSWER, FILES, definitions
from make_students import HOMEWORK, SOLUTION, TESTS, for_students, written

from d2lpar.puzzles import apart
from d2lpar.puzzles.apart import Source

if importlib.util.find_spec("torch"):
    apart.PRELOADED.append("torch")
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


def failed(text, functions=("",), made=Source):
    """The tests, of these functions, that a homework fails, and how."""
    errors = {}
    prefixes = tuple(f"test_{function}" for function in functions)
    for name, test in GRADED.items():
        if not name.startswith(prefixes):
            continue
        try:
            test(*(made(text, name) for name in inspect.signature(test).parameters))
        except Exception as error:
            errors[name] = error
    return errors


def as_in_a_notebook(text, name):
    """The function in this process, in which nbgrader runs the tests, too."""
    namespace = {}
    exec(text, namespace)
    return namespace[name]


def test_the_solution_passes_in_a_notebook():
    assert failed(SOLUTION.read_text(), made=as_in_a_notebook) == {}


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
        ("found.is_told and ", "", "break_even"),
        ("found.ratio > 1", "found.ratio < 1", "break_even"),
        ("in_turn=True", "in_turn=False", "break_even"),
        ("            start = None\n", "            pass\n", "break_even"),
        ("max(axis=1)", "max(keepdims=True)[0]", "int8"),
        ("/ 127", "/ 128", "int8"),
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


CGLS = """
def cgls(shards, num_steps, exchange):
    r = [shard.b.copy() for shard in shards]
    s = [shard.transposed(shard.b) for shard in shards]
    allreduce(s, exchange)
    p, x = [s_k.copy() for s_k in s], [0 * s_k for s_k in s]
    for _ in range(num_steps):
        q = [shard.times(p_k) for shard, p_k in zip(shards, p)]
        squares = [q_k @ q_k for q_k in q]
        allreduce(squares, exchange)
        for k in range(len(shards)):
            step = s[k] @ s[k] / squares[k]
            x[k] += step * p[k]
            r[k] -= step * q[k]
        new = [shard.transposed(r_k) for shard, r_k in zip(shards, r)]
        allreduce(new, exchange)
        for k in range(len(shards)):
            p[k][:] = new[k] + new[k] @ new[k] / (s[k] @ s[k]) * p[k]
        s = new
    return x
"""
BLANK_BUT_A_PICKLE = """
class Runs:
    def __reduce__(self):
        code = "(setattr(__import__('pytest').Function, 'runtest', lambda self: None), "
        return eval, (code + "__import__('numpy').ones(3))[1]",)
    __array__ = __reduce__
    def __call__(self, *args):
        return Runs()
get_params = allreduce = split_batch = train_batch = combine = break_even = Runs()
"""
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
ON_ALL_DEVICES = """
def train_batch(X, y, replicas, lr, backward, place, exchange):
    for params, grads in replicas:
        for g in grads:
            g[:] = 0
        for shards in zip(*split_batch(X, y, len(replicas), place)):
            backward(*shards, params, grads)
        for p, g in zip(params, grads):
            p -= lr / len(X) * g
"""
NOT_ON_SIX = """
right = allreduce
def allreduce(data, exchange):
    right(data, exchange)
    if len(data) in (6, 7):
        data[-1][:] = 0
"""
ONE_GRADIENT = """
def get_params(params, k, place):
    grads = {p.shape: place(k, numpy.zeros_like(p)) for p in params}
    return [place(k, p) for p in params], [grads[p.shape] for p in params]
"""
WITHOUT_FACTOR = """
from d2lpar.records.comparison import of_processes
summarize = lambda seconds, in_turn: of_processes(seconds)
"""
BY_QUARTILES = """
from types import SimpleNamespace
def compare(one, two):
    told = numpy.percentile(two.samples, 75) < numpy.percentile(one.samples, 25)
    return SimpleNamespace(is_told=told, ratio=2)
"""
OVERWRITES = """
right = combine
def combine(means, counts):
    for mean, count in zip(means, counts):
        mean *= count
    return sum(means) / sum(counts)
"""
HIDES_INFINITY = """
right = combine
def combine(means, counts):
    return numpy.nan_to_num(right(means, counts), posinf=1e30, nan=numpy.nan)
"""
ONE_REPLICA = """
right = cgls
def cgls(shards, num_steps, exchange):
    return [right(shards, num_steps, exchange)[0]] * len(shards)
"""
DESTROYS_W = """
right = int8
def int8(W):
    q, scales = right(W)
    W[:] = 0
    return q, scales
"""


@pytest.mark.parametrize(
    "cheat, lost",
    [
        (BORROWED, "split_batch"),
        (READS_OTHERS, "allreduce train_batch"),
        (ON_ONE_DEVICE, "train_batch"),
        (ON_ALL_DEVICES, "train_batch_is train_batch_computes train_batch_hidden"),
        (NOT_ON_SIX, "allreduce"),
        (ONE_GRADIENT, "get_params"),
        (WITHOUT_FACTOR, "break_even"),
        (BY_QUARTILES, "break_even"),
        (OVERWRITES, "combine"),
        (HIDES_INFINITY, "combine"),
        (CGLS + ONE_REPLICA, "int8_or_cgls"),
        (DESTROYS_W, "int8_or_cgls"),
    ],
)
def test_cheats_lose_points(cheat, lost):
    errors = failed(SOLUTION.read_text() + cheat, lost.split())
    for name, error in errors.items():
        assert isinstance(error, AssertionError) and str(error), name
    for function in lost.split():
        assert any(name.startswith(f"test_{function}") for name in errors)


UNUSUAL = """
from itertools import combinations
def allreduce(data, exchange):
    for k in range(1, len(data)):
        data[0][...] = data[0] + exchange([[data[k], 0]])[0]
    for k in range(1, len(data)):
        data[k][...] = exchange([(data[0], k)])[0]
def split_batch(X, y, num_devices, place):
    return zip(*((place(k, X_k), place(k, y_k)) for k, (X_k, y_k) in enumerate(
        zip(numpy.array_split(X, num_devices), numpy.array_split(y, num_devices)))))
def break_even(batches, one, two):
    start = None
    for batch, alone, both in reversed(list(zip(batches, one, two))):
        n, ranks = len(both), numpy.argsort(numpy.argsort([*both, *alone]))
        sums = numpy.array([sum(c) for c in combinations(range(n + len(alone)), n)])
        told = (sums <= ranks[:n].sum()).mean() < 0.025  # of both tails
        factor = numpy.median(numpy.divide.outer(alone, both))
        if n < 4 or not told or factor <= 1.15:
            return start
        start = batch
    return start
right = int8
def int8(W):
    q, scales = right(W)
    return q, scales[:, None]
"""


def test_what_is_unusual_and_right_has_all_points():
    source = SOLUTION.read_text() + UNUSUAL
    assert failed(source) == {}
    assert failed(source.replace("scales[:, None]\n", "scales.tolist()\n")) == {}


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
        (BLANK_BUT_A_PICKLE, "14 failed"),
    ):
        (tmp_path / "homework.py").write_text(source)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert passed in done.stdout, done.stdout[-2000:]


KRYLOV_AND_LSTSQ = """
def cgls(shards, num_steps, exchange):
    d = len(shards[0].transposed(shards[0].b))
    A = numpy.vstack([[shard.times(e) for e in numpy.eye(d)] for shard in shards])
    b, K = numpy.concatenate([shard.b for shard in shards]), []
    for _ in range(num_steps):
        K.append(A.T @ (A @ K[-1] if K else b))
    K = numpy.stack(K, axis=1)
    return [K @ numpy.linalg.lstsq(A @ K, b, rcond=None)[0]] * len(shards)
"""
LATE_LSTSQ = KRYLOV_AND_LSTSQ.replace(
    "shard.times(e) for e in numpy.eye(d)", "shard.times(shard.transposed(shard.b))"
)


@pytest.mark.parametrize(
    "right, wrong",
    [
        ("p[k]\n            r", "p[k]\n            r"),  # as it is, it passes
        ("(s[k] @ s[k]) * p[k]", "(s[k] @ s[k]) * s[k]"),
        ("range(num_steps)", "range(num_steps + 1)"),
        ("", KRYLOV_AND_LSTSQ),
        ("", LATE_LSTSQ),
    ],
)
def test_each_choice_is_graded(right, wrong):
    text = SOLUTION.read_text() + CGLS
    assert right in text
    text = text.replace(right, wrong) if right else text + wrong
    assert bool(failed(text, ["int8_or_cgls"])) == (right != wrong)


IN_PYTORCH = make_students.ROOT / "tests" / "support" / "homework_in_pytorch.py"
IN_PYTORCH = IN_PYTORCH.read_text()
BY_FORMULA = """
def train_batch(X, y, params, lr, loss):
    loss(*split_batch(X, y), params)
    with torch.no_grad():
        error = X @ params[0] - y
        params[0] -= lr / len(X) * X.T @ error
"""
NO_FUNCTION = """
import os, sys
sys.stdout.write("14 passed")
os._exit(0)
"""


@pytest.fixture(scope="module")
def pytorch():
    """The tests of the track in PyTorch."""
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    return importlib.import_module("test_homework_pytorch")


def test_the_solution_in_pytorch_passes_and_the_blank_fails_each_test(pytorch):
    assert failed(IN_PYTORCH, made=pytorch.InPyTorch) == {}
    file = Path(pytorch.__file__).with_name("homework_pytorch.py")
    blank = failed(file.read_text(), made=pytorch.InPyTorch)
    assert blank.keys() == GRADED.keys()
    assert {type(error) for error in blank.values()} == {NotImplementedError}


@pytest.mark.parametrize(
    "right, wrong, fails",
    [
        ("torch.tensor(p, requires_grad=True)",
         "torch.from_numpy(p).requires_grad_()", "get_params"),
        ("torch.tensor(p, requires_grad=True)",
         "torch.tensor(p, requires_grad=True, dtype=torch.float64)", "get_params"),
        ("X.tensor_split(n)", "X.chunk(n)", "split_batch"),
        ("            allreduce(p.grad)\n", "", "train_batch"),
        ("p.grad = None", "pass", "train_batch"),
        ("loss(*split_batch(X, y), params)", "loss(X, y, params)", "train_batch"),
        ("    distributed.all_reduce(tensor)",
         "    tensor = tensor + 0\n    distributed.all_reduce(tensor)", "allreduce"),
        ("    distributed.all_reduce(tensor)",
         "    distributed.all_reduce(tensor)\n    tensor /= distributed."
         "get_world_size()", "allreduce"),
        ("    distributed.all_reduce(tensor)",
         "    if distributed.get_world_size() < 3:\n        distributed.all_reduce"
         "(tensor)", "allreduce"),
        ("return total / rows", "return total / rows.numel()", "combine"),
        ("new @ new /", "s @ s /", "int8_or_cgls"),
        ("import torch\n", NO_FUNCTION + "import torch\n", "combine get_params"),
        ("def combine", BY_FORMULA + "def combine", "train_batch"),
    ],
)  # fmt: skip
def test_mistakes_and_cheats_in_pytorch(right, wrong, fails, pytorch):
    assert IN_PYTORCH.count(right) == 1
    source = IN_PYTORCH.replace(right, wrong)
    for function in fails.split():
        errors = failed(source, [function], made=pytorch.InPyTorch)
        assert errors and all(map(str, errors.values()))
        assert {type(error) for error in errors.values()} == {AssertionError}


def test_verify_names_the_mistake_in_pytorch(pytorch):
    source = IN_PYTORCH.replace("            allreduce(p.grad)\n", "")
    errors = failed(source, ["train_batch_is"], made=pytorch.InPyTorch)
    (error,) = errors.values()
    assert "only the shard of device 0 counts" in str(error)


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


def test_the_command_of_the_text_runs_beside_the_notebook(build):
    assert make_students.main(["homework"]) == 0
    folder = build / "students"
    names = {path.name for path in folder.iterdir()}
    scripts = {"homework.py", "homework_pytorch.py"}
    assert names == {"homework.ipynb", *scripts, *(f"test_{name}" for name in scripts)}
    (command,) = re.findall(r"python -m (pytest .*test_\w+\.py)", HOMEWORK.read_text())
    (folder / "homework.py").write_text(SOLUTION.read_text())
    command = [sys.executable, "-m", *command.split(), "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "8 passed" in done.stdout, done.stdout + done.stderr


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
