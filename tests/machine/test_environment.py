"""Variables that would crash MXNet, Python or Matplotlib: refused in one line each."""

import os
import subprocess
import sys

import pytest

from d2lpar.errors import SettingError
from d2lpar.machine import environment
from d2lpar.machine.environment import OF_A_NODE, WHOLE_NUMBERS, WORDS

THREADS = "whole number, 1 to 1,024,"
REFUSED = [
    ("OMP_NUM_THREADS", "abc", THREADS),
    ("OMP_NUM_THREADS", "1.5", THREADS),
    ("OMP_NUM_THREADS", "2,1", "MXNet takes no list"),
    ("OMP_NUM_THREADS", "0", THREADS),
    ("OMP_NUM_THREADS", "-1", THREADS),
    ("OMP_NUM_THREADS", "100000", THREADS),
    ("OMP_NUM_THREADS", "²", THREADS),
    ("MXNET_OMP_MAX_THREADS", "many", THREADS),
    ("MXNET_GPU_WORKER_NTHREADS", "0", THREADS),
    ("MXNET_CPU_TEMP_COPY", "1e3", "1 to 65,536"),
    ("MXNET_ENGINE_TYPE", "naiveengine", "ThreadedEngine or NaiveEngine"),
    ("DMLC_ROLE", "Worker", "worker, server or scheduler"),
    ("DMLC_ROLE", "server", "without DMLC_PS_ROOT_URI: .* launch"),
]


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in (*WHOLE_NUMBERS, *WORDS, *OF_A_NODE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "value", "remedy"), REFUSED)
def test_a_refused_variable_is_named_with_its_value(name, value, remedy, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=remedy) as refused:
        environment.check_environment()
    assert str(refused.value).startswith(f"{name} {value!r}")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMP_NUM_THREADS": ""},
        {"OMP_NUM_THREADS": " 2 "},
        {"OMP_NUM_THREADS": "1024", "MXNET_CPU_TEMP_COPY": "4"},
        {"MXNET_ENGINE_TYPE": "NaiveEngine"},
        {"DMLC_ROLE": "worker"},
        {"DMLC_ROLE": "server", **dict.fromkeys(OF_A_NODE, "1")},
    ],
)
def test_what_mxnet_can_read_is_left_alone(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment.check_environment()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PYTHONOPTIMIZE", "2", "d2lpar: PYTHONOPTIMIZE 2 (python -OO) drops"),
        ("MPLBACKEND", "nonsense", "d2lpar: MPLBACKEND 'nonsense': Matplotlib has"),
    ],
)
def test_a_run_is_refused_in_one_line(name, value, says, tmp_path):
    command = [sys.executable, "-m", "d2lpar", "run", "multiple_gpus", "--out=runs"]
    done = subprocess.run(
        command, env={**os.environ, name: value}, cwd=tmp_path, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith(says)
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()


def test_what_is_opened_does_not_become_a_closed_standard_error(tmp_path):
    code = """
import os, sys
from d2lpar.cli.error_lines import guard
from d2lpar.errors import SettingError
def command():
    with open("record", "w") as file:
        print("to the terminal", file=sys.stderr)
        os.write(2, b"from C++")
        file.write("kept")
        file.flush()
    raise SettingError("refused")
guard(command)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, timeout=60,
        preexec_fn=lambda: [os.close(number) for number in (0, 1, 2)],
    )  # fmt: skip
    assert done.returncode == 2
    assert (tmp_path / "record").read_text() == "kept"
