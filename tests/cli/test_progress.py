"""Progress on stderr: a bar on a terminal, lines elsewhere, with what they count."""

import io
import sys

import pytest
from support.factories import epoch, header, point

from d2lpar.cli import progress
from d2lpar.runs.job import Job


def jobs(chapter, **settings):
    one = [("cpu", 0)]
    return [Job(chapter, "quick", one, 0, settings, {}, "d2lpar run", "runs")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_file_gets_one_line_per_epoch_of_each_count(capsys):
    with progress.shown(jobs("multiple_gpus", num_epochs=2), 1) as shown:
        for count in (1, 2):
            shown.start(header(count, settings={"num_epochs": 2}))
            shown.advance(epoch(1))
            shown.advance(epoch(2))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(", loss")[0] for line in lines] == [
        f"{count}: epoch {k}/2" for count in ("1 device", "2 devices") for k in (1, 2)
    ]


def test_of_many_points_a_log_gets_the_last_and_one_in_ten_seconds(capsys, monkeypatch):
    now = 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.shown(jobs("least_squares"), 1) as shown:
        for method in ("cgls", "tsqr"):
            shown.start(header(variant=method))
            for number in range(1, 6):
                now += 3
                shown.advance(point(number))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("iteration ")[1][0] for line in lines] == ["4", "5", "4", "5"]


def test_the_last_line_before_an_error_is_kept(capsys):
    with pytest.raises(ZeroDivisionError):
        with progress.shown(jobs("least_squares"), 1) as shown:
            shown.start(header(variant="cgls"))
            shown.advance(point(1))
            raise ZeroDivisionError
    assert "iteration 1" in capsys.readouterr().err


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.shown(jobs("multiple_gpus", num_epochs=1), 1) as shown:
        shown.start(header())
        shown.advance(epoch(1))
    assert "100%|" in sys.stderr.getvalue()


def test_no_silence_in_a_log(capsys, monkeypatch):
    now = 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    lines = progress.Lines("epoch")
    lines.begin("2 devices")
    for now in (5, 11, 15, 22):  # noqa: B007  (the clock reads it)
        lines.tick()
    assert capsys.readouterr().err.splitlines() == [
        "2 devices: 11 s so far",
        "2 devices: 22 s so far",
    ]
