"""A subject that hangs, crashes, prints or returns nonsense gets one clear line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.command import d2lpar

from d2lpar.cli.main import d2lpar as command
from d2lpar.errors import SettingError
from d2lpar.verify import verify
from d2lpar.verify.process import FailedError, Process

HERE = Path(__file__).parent
RIGHT = """
import numpy

def init(seed):
    return [numpy.random.default_rng(seed).normal(size=3)]

def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=n)

def step(params, X, y, num_devices, lr):
    return [params[0] - lr * (X @ params[0] - y) @ X / len(X)]
"""


def step_file(folder, **changed):
    """A right subject, in which the bodies of some functions are others."""
    text = RIGHT
    for name, body in changed.items():
        head, start, rest = text.partition(f"def {name}(")
        signature, _, rest = rest.partition("\n")
        rest = rest[rest.find("\n\n") :] if "\n\n" in rest else ""
        text = f"{head}{start}{signature}\n    {body}\n{rest}"
    path = folder / "step_of_mine.py"
    path.write_text(text)
    return path


@pytest.fixture
def process():
    """Start the subject of a file; ends it after the test."""
    started = []

    def start(path, timeout=60):
        started.append(Process(str(path), sys.executable, timeout))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_what_no_step_should_do_gets_one_line(tmp_path, process):
    choice = """print("bye")
    if num_devices == 1: raise RuntimeError("two\\nlines")
    if num_devices == 6: import os; os._exit(3)
    return {2: params[0][:2], 3: params[0] * numpy.nan, 4: ["x"]}[num_devices]"""
    subject = process(step_file(tmp_path, step=choice))
    subject.begin(8, 0, 0.1)
    for num_devices, line in (
        (1, "RuntimeError: two$"),
        (2, r"ValueError: parameters of shapes \[\(\), \(\)\], which init does not"),
        (3, "ValueError: parameters of shapes"),
        (4, "ValueError: parameters of shapes"),
        (5, "KeyError: 5"),
        (6, "its process ended with status 3: bye$"),
        (7, "its process ended with status 3: bye$"),
    ):
        with pytest.raises(FailedError, match=line):
            subject.update(range(8), num_devices)


@pytest.mark.parametrize(
    "changed, line",
    [
        (
            {"batch": "return numpy.ones((3, 3)), numpy.ones(3)"},
            "batch(8, 0) has shapes",
        ),
        ({"init": "import no_framework"}, "No module named 'no_framework'"),
        ({"init": "return [numpy.full(3, numpy.nan)]"}, "are not finite floats"),
        ({"init": "exit('enough')"}, "its process ended with status 1: enough"),
        ({"init": "import time; time.sleep(60)"}, "no answer in 3 s"),
    ],
)
def test_a_file_that_does_not_begin_gets_one_line(changed, line, tmp_path, process):
    with pytest.raises(FailedError, match=re.escape(line)):
        timeout = 3 if "time" in changed.get("init", "") else 60
        process(step_file(tmp_path, **changed), timeout).begin(8, 0, 0.1)


def test_what_cannot_be_judged(tmp_path):
    path = step_file(tmp_path)
    path.write_text("x = (")
    (check,) = verify(path)
    assert check.verdict == "unjudged" and check.line.startswith("SyntaxError")
    with pytest.raises(SettingError, match=r"missing\.py: is no Python file"):
        verify(tmp_path / "missing.py")
    with pytest.raises(SettingError, match="1 devices"):
        verify(path, 1)


def test_what_several_devices_cannot_do_is_skipped_and_a_hang_is_wrong(tmp_path):
    refuses = "if len(X) % num_devices: raise ValueError('uneven')\n    "
    right = "return [params[0] - lr * (X @ params[0] - y) @ X / len(X)]"
    checks = verify(step_file(tmp_path, step=refuses + right))
    skipped = {c.what: c.line for c in checks if c.verdict == "skipped"}
    assert skipped["an uneven batch"] == "ValueError: uneven"
    assert checks[-1].verdict == "right"
    hangs = "if len(X) < num_devices: import time; time.sleep(60)\n    "
    check = verify(step_file(tmp_path, step=hangs + right), timeout=10)[-1]
    assert (check.verdict, check.mistake) == ("wrong", "hangs")


def test_the_command_prints_checks_and_its_status_is_the_verdict(tmp_path):
    noise = "print('noise'); import os; os.system('echo more noise')\n    "
    right = "return [params[0] - lr * (X @ params[0] - y) @ X / len(X)]"
    path = step_file(tmp_path, step=noise + right)
    done = d2lpar("verify", path)
    assert done.returncode == 0 and "noise" not in done.stdout + done.stderr
    assert done.stdout.startswith("right    2 devices against one: ")

    wrong = right.replace("len(X)", "(len(X) if num_devices == 1 else 1)")
    words = ["--json", "--devices", "3", "--batch", "12"]
    path = step_file(tmp_path, step=wrong)
    done = CliRunner().invoke(command, ["verify", str(path), *words])
    check = json.loads(done.stdout)[-1]
    assert done.exit_code == 1
    assert check["what"] == "3 devices against one"
    assert check["mistake"] == "not divided"

    path = step_file(tmp_path, step="return None")
    done = CliRunner().invoke(command, ["verify", str(path)])
    assert done.exit_code == 2 and done.stdout.count("\n") == 1


WITH_A_WORKER = """import subprocess, sys
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with open("pids", "a") as file:
        print(subprocess.Popen(command).pid, file=file)
    """


def running(pids):
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return [p for p in states if p.exists() and p.read_text().split()[2] != "Z"]


@pytest.mark.parametrize("ends", ["by itself", "killed"])
def test_a_subject_and_its_workers_end_with_the_tool(ends, tmp_path):
    last = "return None" if ends == "by itself" else "import time; time.sleep(60)"
    path = step_file(tmp_path, step=WITH_A_WORKER + last)
    code = f"from d2lpar.verify import verify; verify({str(path)!r})"
    tool = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    if ends == "by itself":
        assert tool.wait(60) == 0
    until = time.monotonic() + 30
    while not (tmp_path / "pids").exists() and time.monotonic() < until:
        time.sleep(0.1)
    if ends == "killed":
        os.kill(tool.pid, signal.SIGKILL)
        tool.wait()
    pids = (tmp_path / "pids").read_text().split()
    while running(pids) and time.monotonic() < until:
        time.sleep(0.1)
    assert pids and not running(pids)


def test_the_tool_imports_numpy_and_no_framework():
    code = """
import sys, d2lpar.verify
names = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(*sorted(name for name in names if name[0] != "_"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not {"mxnet", "matplotlib", "torch", "jax"} & set(done.stdout.split())
    tree = (HERE.parents[1] / "d2lpar" / "verify").glob("*.py")
    lines = [line for path in tree for line in path.read_text().splitlines()]
    imported = {
        line.split()[1] for line in lines if line.startswith(("import", "from"))
    }
    third = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert third == {"numpy", "d2lpar"}
