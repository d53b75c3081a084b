"""`d2lpar verify --run`: a whole program of PyTorch, as it is."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy
import programs
import pytest

from d2lpar.errors import RunError
from d2lpar.verify.torch.program import (
    check_program,
    check_rows,
    judge_program,
    with_arguments,
)

TRAIN = "whole_torch.py --batch-size 64"


def test_arguments_are_replaced_or_added():
    given = ["train.py", "--batch", "64", "--lr=0.1"]
    assert with_arguments(given, ["--batch", "32", "--lr=0.2", "--fast"]) == [
        "train.py", "--batch", "32", "--lr=0.2", "--fast"
    ]  # fmt: skip
    assert with_arguments(given, []) == given


def recorded(gradient, lr=0.1, rows=(0, 1, 2, 3)):
    """What a process records of three steps of plain SGD."""
    g = numpy.asarray(gradient, float)
    return {
        "params": [numpy.ones(3) - k * lr * g for k in range(4)],
        "grads": [g] * 3,
        "lr": [[lr]] * 3,
        "calls": [[numpy.asarray(rows, float).reshape(-1, 1)]] * 3,
        "calls_before": [1, 2, 3],
        "flags": set(),
    }


@pytest.mark.parametrize("many, mistake", [
    ([recorded([1, 2, 3])] * 2, ""),
    ([recorded([2, 4, 6])] * 2, "N times"),
    ([recorded([0.5, 1, 1.5])] * 2, "divided by N"),
    ([recorded([1.1, 2.2, 3.3])] * 2, "factor"),
    ([recorded([1, 2, 3], lr=0.2)] * 2, "N times"),
    ([recorded([1, 2, 3]), recorded([1, 2, 4])], "apart"),
])  # fmt: skip
def test_a_factor_of_the_program_names_itself(many, mistake):
    checks = check_program(recorded([1, 2, 3]), many, many)
    wrong = [check.mistake for check in checks if check.verdict == "wrong"]
    assert (wrong or [""])[0] == mistake
    assert {check.verdict for check in checks} <= {"right", "wrong", "skipped"}


@pytest.mark.parametrize("rows, verdict, mistake", [
    (([0, 1], [2, 3]), "right", ""),
    (([0, 1], [0, 1]), "wrong", "same rows"),
    (([0, 1, 2], [3, 0]), "wrong", "repeated rows"),
    (([0, 1], [2]), "wrong", "dropped rows"),
    (([0, 1], [1, 2]), "wrong", "repeated rows"),
    (([0, 1], [5, 6]), "skipped", ""),
    (([0, 1, 2, 3], [4, 5, 6, 7]), "skipped", ""),
])  # fmt: skip
def test_the_rows_of_the_first_step_are_compared(rows, verdict, mistake):
    (check,) = check_rows(recorded([1]), [recorded([1], rows=own) for own in rows])
    assert (check.verdict, check.mistake) == (verdict, mistake)


def test_noise_of_its_own_is_given_to_the_single_process():
    one, *many = (recorded([1], rows=rows) for rows in ([0, 1, 2, 3], [0, 1], [2, 3]))
    for k, file in enumerate((one, *many)):
        rows = file["calls"][0][0]
        file["calls"] = [[rows, rows + 0.5 * k]]
        file["calls_before"] = [1]
    assert check_rows(one, many)[0].verdict == "skipped"


@pytest.mark.parametrize("call, leaf, size, split, first", [
    (0, 0, (4, 6), False, 0), (1, 0, (4,), False, 10), (1, 1, (3,), False, 1),
    (1, 0, (2,), True, 10), (2, 0, (2, 6), True, 1), (3, 0, (2,), True, 11),
    (5, 0, (2,), True, 30), (6, 0, (2, 6), True, 21),
])  # fmt: skip
def test_a_single_process_gets_what_all_had(call, leaf, size, split, first):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from d2lpar.verify.torch.prelude import Recorder

    def calls(k):  # of process k: two steps, each of a model and a loss with weights
        return [
            [numpy.full((2, 6), k)], [numpy.full(2, 10 + k), numpy.ones(3)],
            [numpy.full((2, 6), 20 + k)], [numpy.full(2, 30 + k), numpy.ones(3)],
        ]  # fmt: skip

    recorder = SimpleNamespace(replayed=[calls(0), calls(1)], split=split, each=2)
    new = Recorder.recorded(recorder, torch.ones(size), call, leaf)
    assert (new.shape, new.flatten()[0]) == (size, first)


@pytest.mark.slow
@pytest.mark.parametrize("flag, what, said", [
    ("", "summary", "8 of 8 checks right"),
    ("--own-rows", "summary", "7 of 7 checks right; skipped: rows"),
    ("--same-rows", "rows", "each process gets the same rows"),
    ("--scale-rate", "the learning rate", "2 times as large on 2 processes"),
    ("--closure", "summary", "8 of 8 checks right"),
    ("--compile", "summary", "8 of 8 checks right"),
    ("--scale-rate", "step 1", "2 move 2.0000 times as far as 1"),
    ("--around", "replicas", "is the wrapped module called?"),
])  # fmt: skip
def test_a_program_is_judged_as_it_is(flag, what, said, monkeypatch):
    programs.needs("torch")
    monkeypatch.chdir(programs.SUBJECTS)
    checks = judge_program(f"{TRAIN} {flag}", 2, "--batch-size 32")
    (line,) = [check.line for check in checks if check.what == what]
    assert said in line


@pytest.mark.slow
def test_a_program_that_fails_has_one_line(tmp_path, monkeypatch):
    programs.needs("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise ValueError('no data')")
    with pytest.raises(RunError, match="no step of an optimizer: ValueError: no data"):
        judge_program("train.py")
    command = [sys.executable, "-m", "d2lpar", "verify", "--run", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
