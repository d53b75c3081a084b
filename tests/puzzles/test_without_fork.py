"""Puzzles where no process can fork, as in a browser: checked in this process."""

from __future__ import annotations

import os
import sys

import numpy
import pytest
from support import puzzle_solutions as solutions

from d2lpar import puzzles
from d2lpar.puzzles import apart, tasks
from d2lpar.puzzles.cases import PUZZLES, SCORED


def forbid_fork(monkeypatch, platform="emscripten"):
    def refused(*_):
        raise OSError(52, "Function not implemented")

    if platform == "emscripten":  # a browser
        monkeypatch.setattr(os, "fork", refused)
        monkeypatch.setattr(sys, "platform", platform)
    else:
        monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(apart.Apart, "__init__", refused)
    apart._say_what_is_lost.cache_clear()


@pytest.mark.parametrize("platform", ["emscripten", "win32"])
def test_every_puzzle_is_checked_and_what_is_lost_is_said_once(
    platform, monkeypatch, capsys
):
    forbid_fork(monkeypatch, platform)
    for name in PUZZLES:
        assert puzzles.check(getattr(solutions, name))
        assert not puzzles.check(getattr(tasks, name))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("This Python cannot fork, so checks run in this process: ")
    assert len(lines) == 2 * len(PUZZLES)
    for name, right, wrong in zip(PUZZLES, lines[::2], lines[1::2]):
        assert right.startswith(f"{name}: right")
        assert (" of " in right) == (name in SCORED)
        assert wrong.startswith((f"{name}: not solved yet", f"{name}: wrong with "))


def reads_a_number(arrays, exchange):
    arrays[0][:] = numpy.asarray(arrays[1])


def writes_an_argument(counts, means, variances):
    means[0][...] = 1


def sends_to_a_text(arrays, exchange):
    exchange([(arrays[0], "a")])


def ends_the_program(arrays, exchange):
    raise SystemExit(3)


def returns_no_data(n, num_devices):
    return [object()] * num_devices


WRONG = {
    reads_a_number: "central",
    writes_an_argument: "batch_norm",
    sends_to_a_text: "central",
    ends_the_program: "ring",
}


@pytest.mark.parametrize("solution", WRONG)
def test_what_is_wrong_is_said_as_by_a_process_apart(solution, monkeypatch, capsys):
    monkeypatch.setattr(solution, "__name__", WRONG[solution])
    seeded = numpy.random.default_rng
    monkeypatch.setattr(numpy.random, "default_rng", lambda: seeded(0))
    assert not puzzles.check(solution)
    by_a_process = capsys.readouterr().out
    assert ": line " in by_a_process
    forbid_fork(monkeypatch)
    assert not puzzles.check(solution)
    assert capsys.readouterr().out.splitlines()[1:] == by_a_process.splitlines()


def test_an_answer_that_is_no_data_is_refused(monkeypatch, capsys):
    forbid_fork(monkeypatch)
    monkeypatch.setattr(returns_no_data, "__name__", "split_unevenly")
    assert not puzzles.check(returns_no_data)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("split_unevenly: wrong with n = 5, num_devices = 2: ")
    assert "is no number, list, slice or array of numbers" in said
