"""Variables that would crash MXNet or Python: refused in one line each."""

import os
import subprocess
import sys

import pytest

from d2lpar.errors import SettingError
from d2lpar.machine import host
from d2lpar.machine.host import WHOLE_NUMBERS, WORDS

THREADS = "whole number, 1 to 1,024,"
REFUSED = [
    ("OMP_NUM_THREADS", "1.5", THREADS),
    ("OMP_NUM_THREADS", "2,1", "MXNet takes no list"),
    ("OMP_NUM_THREADS", "²", THREADS),
    ("MXNET_ENGINE_TYPE", "naiveengine", "ThreadedEngine or NaiveEngine"),
    *(("DMLC_ROLE", r, "unset DMLC_ROLE") for r in ("", "server", "scheduler")),
]


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch):
    for name in (*WHOLE_NUMBERS, *WORDS, "DMLC_ROLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "value", "remedy"), REFUSED)
def test_a_refused_variable_is_named_with_its_value(name, value, remedy, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=remedy) as refused:
        host.check_environment()
    assert str(refused.value).startswith(f"{name} {value!r}")


@pytest.mark.parametrize(
    "variables",
    [
        {"OMP_NUM_THREADS": ""},
        {"OMP_NUM_THREADS": " 2 ", "MXNET_ENGINE_TYPE": "NaiveEngine"},
        {"DMLC_ROLE": "worker"},
    ],
)
def test_what_mxnet_can_read_is_left_alone(variables, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    host.check_environment()


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_the_words_of_a_range_are_true(name, monkeypatch):
    most = WHOLE_NUMBERS[name]
    for value in ("1", str(most)):
        monkeypatch.setenv(name, value)
        host.check_environment()
    for value in ("0", str(most + 1)):
        monkeypatch.setenv(name, value)
        with pytest.raises(SettingError, match=f"1 to {most:,},"):
            host.check_environment()


def test_a_run_is_refused_in_one_line(tmp_path):
    command = [sys.executable, "-m", "d2lpar", "run", "multiple_gpus", "--out=runs"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONOPTIMIZE": "2"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("d2lpar: PYTHONOPTIMIZE 2 (python -OO) drops")
    assert done.stderr.count("\n") == 1 and not (tmp_path / "runs").exists()
