"""The zip for Gradescope: run as its container does, on honest and hostile homework."""

import json
import os
import re
import subprocess
import sys
import zipfile

import jupytext
import make_students
import pytest
from make_students import HOMEWORK, ROOT, SOLUTION

HOSTILE = """
import os, signal

for name in ("source/test_homework.py", "results/results.json"):
    try:
        open({folder!r} + "/" + name, "r+").write("def test_nothing(): pass")
    except OSError:
        continue
parents = os.popen("ps -o ppid= -p %d" % os.getppid()).read().split()
for process in (os.getppid(), *map(int, parents)):
    try:
        os.kill(process, signal.SIGKILL)
    except OSError:
        continue
"""


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A folder like Gradescope's, into which the zip is unpacked."""
    monkeypatch.setattr(make_students, "GRADER", tmp_path / "grader")
    with zipfile.ZipFile(make_students.grader()) as file:
        file.extractall(tmp_path / "source")
        modes = {info.filename: info.external_attr >> 16 for info in file.infolist()}
    assert modes["run_autograder"] == modes["setup.sh"] == 0o755
    (tmp_path / "run_autograder").write_bytes(
        (tmp_path / "source" / "run_autograder").read_bytes()
    )
    (tmp_path / "submission").mkdir()
    return tmp_path


IMPORTED = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None  # importing it fails
before = {*sys.modules}
import homework, test_homework
new = {name: sys.modules[name] for name in {*sys.modules} - before}
files = {name: getattr(new[name], "__file__", None) or "" for name in new}
print(*{name.split(".")[0] for name in new if "site-packages" in files[name]})
"""


def imported(*missing):
    """The packages that homework and tests import, on a machine without some."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *missing],
        cwd=HOMEWORK.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return {*done.stdout.split()} - {"d2lpar"}


def test_the_zip_brings_all_packages_that_homework_and_tests_need():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (line,) = re.findall(r"-d build/grader/wheels \\\n(.*)\n", makefile)
    wheels = {*line.split()}
    assert imported(*imported() - wheels) == wheels


def grade(folder, name, text):
    """The points of a homework, and what results.json says about each test."""
    file = folder / "submission" / name
    file.write_text(text, encoding="utf-8")
    environment = {**os.environ, "AUTOGRADER": str(folder), "PYTHONPATH": str(ROOT)}
    bin = os.path.dirname(sys.executable)
    environment["PATH"] = f"{bin}:{environment['PATH']}"
    command = ["sh", str(folder / "run_autograder")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    file.unlink()
    report = json.loads((folder / "results" / "results.json").read_text())
    assert report["score"] == sum(test["score"] for test in report["tests"])
    return report


def test_the_solution_has_70_points_and_the_blank_none(container):
    report = grade(container, "homework.py", SOLUTION.read_text())
    assert report["score"] == 70 and len(report["tests"]) == 14
    assert sum(test["visibility"] == "hidden" for test in report["tests"]) == 6
    report = grade(container, "homework.py", HOMEWORK.read_text())
    assert report["score"] == 0 and "write allreduce" in str(report)
    report = grade(container, "homework.py", "def f(:")
    assert report["score"] == 0 and "SyntaxError" in str(report)


def test_a_notebook_is_graded(container):
    notebook = make_students.for_students(make_students.written(HOMEWORK))
    for cell in notebook.cells:
        if cell.source.startswith("def combine"):
            solved = make_students.definitions(SOLUTION)["combine"]
            cell.source = solved
    report = grade(container, "homework.ipynb", jupytext.writes(notebook, "ipynb"))
    assert report["score"] == 10


def test_no_file_is_said(container):
    report = grade(container, "mine.py", "")
    assert report["score"] == 0 and "hand in one of" in report["output"]


def test_the_track_in_pytorch_is_graded(container):
    pytest.importorskip("torch", reason="no PyTorch: extra peers")
    solution = ROOT / "tests" / "support" / "homework_in_pytorch.py"
    assert grade(container, "homework_pytorch.py", solution.read_text())["score"] == 70


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_as_root_a_hostile_homework_reads_and_ends_nothing(container):
    code = HOSTILE.format(folder=str(container))
    report = grade(container, "homework.py", code + SOLUTION.read_text())
    assert report["score"] == 70 and len(report["tests"]) == 14, report
    source = (container / "source" / "test_homework.py").read_text()
    assert source == (HOMEWORK.with_name("test_homework.py")).read_text()
