"""Progress on stderr: a bar on a terminal, lines elsewhere."""

import io
import sys

import pytest

from d2lpar.cli import progress
from d2lpar.records.kinds import EpochRecord, PointRecord


def epoch(number):
    return EpochRecord(number, 2.0, 6_000.0, train_loss=0.51, test_acc=0.8)


def point(number):
    return PointRecord(number, 0.1, 1 / number, [])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_file_gets_one_line_per_epoch(capsys):
    with progress.shown("epoch", 3) as shown:
        for run, epochs in (("lenet, 1 device(s)", 1), ("lenet, 2 device(s)", 2)):
            shown.start(run)
            for number in range(epochs):
                shown.advance(epoch(number + 1))
    assert capsys.readouterr().err.splitlines() == [
        "lenet, 1 device(s): epoch 1/3, loss=0.510, acc=0.800, samples_per_sec=6,000",
        "lenet, 2 device(s): epoch 2/3, loss=0.510, acc=0.800, samples_per_sec=6,000",
        "lenet, 2 device(s): epoch 3/3, loss=0.510, acc=0.800, samples_per_sec=6,000",
    ]


def test_of_many_points_a_log_file_gets_each_runs_last_and_one_in_ten_seconds(
    capsys, monkeypatch
):
    now = 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.shown("point", None) as shown:
        for run in ("cgls", "tsqr"):
            shown.start(run)
            for number in range(1, 6):
                now += 3
                shown.advance(point(number))
    assert capsys.readouterr().err.splitlines() == [
        "cgls: point 4, residual=0.25",
        "cgls: point 5, residual=0.2",
        "tsqr: point 9, residual=0.25",
        "tsqr: point 10, residual=0.2",
    ]


def test_the_last_line_before_an_error_is_kept(capsys):
    with pytest.raises(ZeroDivisionError), progress.shown("point", None) as shown:
        shown.start("cgls")
        shown.advance(point(1))
        raise ZeroDivisionError
    assert capsys.readouterr().err == "cgls: point 1, residual=1\n"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown("epoch", 1) as shown:
        shown.start("lenet, 1 device(s)")
        shown.advance(epoch(1))
    text = sys.stderr.getvalue()
    assert "\rlenet, 1 device(s): 100%|" in text and "acc=0.800" in text
