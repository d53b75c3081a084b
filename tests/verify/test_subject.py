"""A subject that hangs, crashes, prints or returns nonsense gets one clear line."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from support.command import d2lpar

from d2lpar.cli.main import d2lpar as command
from d2lpar.errors import SettingError
from d2lpar.verify import verify

STEP = """
import multiprocessing, numpy, os, subprocess, sys, time

def init(seed):
    {init}
    return [numpy.random.default_rng(seed).normal(size=3)]

def batch(n, seed):
    {batch}
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 3)), rng.normal(size=n)

def step(params, X, y, num_devices, lr):
    right = [params[0] - lr * (X @ params[0] - y) @ X / len(X)]
    {step}
    return right
"""


def step_file(folder, init="pass", batch="pass", step="pass"):
    """A right subject with some lines before its functions return."""
    path = folder / "step_of_mine.py"
    path.write_text(STEP.format(init=init, batch=batch, step=step))
    return path


@pytest.mark.parametrize("where, lines, said", [
    ("init", "time.sleep(60)", "no answer in 1.5 s"),
    ("init", "os.fork() or time.sleep(60); exit('enough')", "SystemExit: enough"),
    ("init", "return [numpy.full(3, numpy.nan)]", "one device are not finite"),
    ("init", "x = (", "SyntaxError: "),
    ("batch", "return numpy.ones((3, 3)), numpy.ones(3)", "has shapes [(3, 3), "),
    ("step", "print('bye', file=sys.stderr); os._exit(3)", "with status 3: bye"),
    ("step", "return params", "its step changes no parameter"),
    ("step", "return None", "'NoneType' object is not iterable"),
    ("step", "return right[0][:2]", "parameters of shapes [(), ()], which init"),
    ("step", "if num_devices == 2: raise NotImplementedError('one only')",
     "NotImplementedError: one only"),
])  # fmt: skip
def test_what_cannot_be_judged_has_one_line(where, lines, said, tmp_path):
    path = step_file(tmp_path, **{where: lines})
    *rest, check, summary = verify(path, timeout=1.5 if "sleep" in lines else 60)
    assert check.verdict == "unjudged" and {c.verdict for c in rest} <= {"skipped"}
    assert summary.verdict == "unjudged"
    assert said in check.line and "\n" not in check.line and len(check.line) < 350


@pytest.mark.parametrize("lines", [
    "print('noise' * 10**5)",
    "X *= 0; params[0] *= 0",
    "multiprocessing.Process(target=time.sleep, args=(60,)).start()",
])  # fmt: skip
def test_what_does_no_harm(lines, tmp_path):
    assert verify(step_file(tmp_path, step=lines))[-1].verdict == "right"


FEW, ODD = "len(X) < num_devices", "len(X) % num_devices"


@pytest.mark.parametrize("rows, lines, mistake, said", [
    (FEW, "time.sleep(60)", "hangs", "no answer in 1.5 s"),
    (FEW, "right[0][0] = numpy.nan", "not finite", ""),
    (FEW, "os.abort()", "", ""),
    (ODD, "raise ValueError('x' * 999)", "raises", "raises on 2 devices only: Val"),
    (ODD, "raise RuntimeError('\\n\\nuneven\\n')", "raises", "raises on 2 devices"),
    (ODD, "raise NotImplementedError('uneven')", None, "NotImplementedError: uneven"),
])  # fmt: skip
def test_what_several_devices_do_to_some_batches(rows, lines, mistake, said, tmp_path):
    """Their error is wrong, unless they refuse what they have not implemented."""
    path = step_file(tmp_path, step=f"if {rows}: {lines}")
    *checks, summary = verify(path, timeout=1.5 if mistake == "hangs" else 60)
    what = "fewer samples than devices" if rows == FEW else "an uneven batch"
    (check,) = [check for check in checks if check.what == what]
    assert summary.verdict == ("right" if mistake is None else "wrong")
    assert check.mistake == (mistake or "") and said in check.line
    assert "\n" not in check.line and len(check.line) < 350


def test_a_name_of_pythons_is_refused(tmp_path):
    path = step_file(tmp_path).rename(tmp_path / "queue.py")
    with pytest.raises(SettingError, match="rename the file"):
        CliRunner().invoke(command, ["verify", str(path)], catch_exceptions=False)


def test_the_command_prints_checks_and_its_status_is_the_verdict(tmp_path):
    noise = "print('noise'); os.system('echo more noise')"
    done = d2lpar("verify", step_file(tmp_path, step=noise))
    assert done.returncode == 0 and "noise" not in done.stdout + done.stderr
    assert done.stdout.startswith("right    2 devices against one: ")
    assert "a missing set_epoch or unscale_" in done.stdout.replace("\n", " ")

    wrong = "if num_devices > 1: right = [len(X) * (right[0] - params[0]) + params[0]]"
    words = ["--json", "--devices", "3", "--batch", "12"]
    path = step_file(tmp_path, step=wrong)
    done = CliRunner().invoke(command, ["verify", str(path), *words])
    check, *_ = json.loads(done.stdout)
    assert done.exit_code == 1
    assert check["what"] == "3 devices against one"
    assert check["mistake"] == "not divided"

    path = step_file(tmp_path, step="return None")
    done = CliRunner().invoke(command, ["verify", str(path)])
    assert done.exit_code == 2 and done.stdout.count("\n") == 2


def test_the_tool_needs_numpy_alone(tmp_path):
    code = """
import sys
for name in "lazy_loader loky click msgspec mxnet torch jax matplotlib scipy".split():
    sys.modules[name] = None  # as if it were not installed
import runpy
if __name__ == "__main__":
    runpy.run_module("d2lpar.verify", run_name="__main__")
"""
    main = tmp_path / "main.py"
    main.write_text(code)
    command = [sys.executable, str(main), str(step_file(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "right    summary: " in done.stdout
