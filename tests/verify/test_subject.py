"""A subject that hangs, crashes, prints or returns nonsense gets one clear line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.command import d2lpar

from d2lpar.errors import SettingError
from d2lpar.verify import verify

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


@pytest.mark.parametrize(
    "changed, line",
    [
        ({"step": "raise RuntimeError('two\\nlines')"}, "RuntimeError: two"),
        ({"step": "return [params[0][:2]]"}, "parameters of shapes [(2,)]"),
        ({"step": "return [params[0] * numpy.nan]"}, "are not finite floats"),
        ({"step": "return None"}, "TypeError: "),
        ({"step": "print('bye'); import os; os._exit(3)"}, "ended with status 3: bye"),
        ({"step": "exit('enough')"}, "ended with status 1: enough"),
        ({"step": "return params"}, "its step changes no parameter"),
        ({"batch": "return numpy.ones((3, 3)), numpy.ones(3)"}, "batch(65, 0) has sha"),
        ({"init": "return [numpy.random.normal(size=3)]"}, "draw them from the seed"),
        ({"init": "import no_framework"}, "No module named 'no_framework'"),
    ],
)
def test_what_cannot_be_judged_gets_one_line(changed, line, tmp_path):
    (check,) = verify(step_file(tmp_path, **changed))
    assert check.verdict == "unjudged" and line in check.line
    assert "\n" not in check.line


def test_a_file_without_functions_and_no_file(tmp_path):
    path = tmp_path / "nothing.py"
    path.write_text("x = (")
    assert "SyntaxError" in verify(path)[-1].line
    path.write_text("")
    assert "no attribute 'init'" in verify(path)[-1].line
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
    check = verify(step_file(tmp_path, step="import time; time.sleep(60)"), timeout=1)
    assert check[-1][1:] == ("unjudged", "no answer in 1 s", "")


def test_the_command_prints_checks_and_its_status_is_the_verdict(tmp_path):
    noise = "print('noise'); import os; os.system('echo more noise')\n    "
    right = "return [params[0] - lr * (X @ params[0] - y) @ X / len(X)]"
    path = step_file(tmp_path, step=noise + right)
    done = d2lpar("verify", path)
    assert done.returncode == 0 and "noise" not in done.stdout + done.stderr
    assert done.stdout.startswith("right    2 devices against one: ")

    wrong = right.replace("len(X)", "(len(X) if num_devices == 1 else 1)")
    path = step_file(tmp_path, step=wrong)
    done = d2lpar("verify", path, "--json", "--devices", "3", "--batch", "12")
    checks = json.loads(done.stdout)
    assert done.returncode == 1
    assert checks[-1]["mistake"] == "not divided"
    assert checks[-1]["what"] == "3 devices against one"

    done = d2lpar("verify", step_file(tmp_path, step="return None"))
    assert done.returncode == 2 and done.stdout.count("\n") == 1
    done = d2lpar("verify", tmp_path / "missing.py")
    assert done.returncode == 2 and "Traceback" not in done.stderr


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
    imported = {line.split()[1] for line in lines if line.startswith(("import", "from"))}
    third = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert third == {"numpy", "d2lpar"}
