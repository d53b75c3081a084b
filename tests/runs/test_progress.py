"""Progress on stderr: a line per epoch, and on a terminal a bar below them."""

import io
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from support.a_study import step
from support.factories import epoch, gan_epoch, header, point

from d2lpar.devices import Device
from d2lpar.runs import progress
from d2lpar.runs.job import Job


def jobs(chapter, **settings):
    one = [Device("cpu", 0)]
    return [
        Job(chapter, "quick", "quick", one, 0, settings, {}, "d2lpar run", Path("runs"))
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_log_file_gets_one_line_per_epoch_of_each_count(capsys):
    with progress.shown(jobs("multiple_gpus", num_epochs=2), 1) as shown:
        for count in (1, 2):
            shown.see(header(count, settings={"num_epochs": 2}))
            shown.see(epoch(1))
            shown.see(epoch(2))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(", loss")[0] for line in lines] == [
        f"{count}: epoch {k}/2" for count in ("1 device", "2 devices") for k in (1, 2)
    ]


def test_of_many_points_a_log_gets_the_last_and_one_in_ten_seconds(capsys, monkeypatch):
    now = 0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.shown(jobs("least_squares"), 1) as shown:
        for method in ("cgls", "tsqr"):
            shown.see(header(variant=method))
            for number in range(1, 6):
                now += 3
                shown.see(point(number))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("iteration ")[1][0] for line in lines] == ["4", "5", "4", "5"]


def test_the_last_line_before_an_error_is_kept(capsys):
    with pytest.raises(ZeroDivisionError):
        with progress.shown(jobs("least_squares"), 1) as shown:
            shown.see(header(variant="cgls"))
            shown.see(point(1))
            raise ZeroDivisionError
    assert "iteration 1" in capsys.readouterr().err


def test_a_notebook_shows_curves_or_words_alone(monkeypatch):
    pytest.importorskip("IPython", reason="no IPython: extra notebook")
    contents = []

    class Output:
        def update(self, content, raw):
            contents.append(content)

    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: Output())
    for chapter, line, words, is_drawn in (
        ("scaling", step(8, 1, [0.2]), "a step of 8 images on 1 device: 200 ms", False),
        ("multiple_gpus", epoch(1), "epoch 1/2", True),
    ):
        contents.clear()
        with progress.shown(jobs(chapter, num_epochs=2), 1) as shown:
            shown.see(header(chapter=chapter, settings={"num_epochs": 2}))
            shown.see(line)
            assert contents, "shown as it arrives"
        for content in contents:
            assert words in content["text/plain"]
            assert ("image/png" in content) == is_drawn


def test_a_terminal_shows_accuracy_and_time_left(monkeypatch):
    columns = 80
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", str(columns))
    with progress.shown(jobs("multiple_gpus", num_epochs=10), 1) as shown:
        shown.bar.ncols, shown.bar.dynamic_ncols = columns, None
        shown.see(header(2, settings={"num_epochs": 10}))
        shown.see(epoch(1))
        shown.bar.refresh()
    lines = sys.stderr.getvalue().replace("\r", "\n").splitlines()
    (done,) = [line for line in lines if "accuracy" in line]
    assert done == "2 devices: epoch 1/10, loss 1.000, accuracy 0.200, 2 s"
    bars = [line for line in lines if "1/10 epochs" in line]
    assert bars and all(" left" in line and len(line) <= columns for line in bars)


def test_the_clock_of_the_bar_moves_between_two_epochs(monkeypatch):
    """A screen that stands still for an epoch of minutes looks dead."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    shown, moved = progress.Progress(2), threading.Event()
    monkeypatch.setattr(shown.bar, "refresh", moved.set)
    assert moved.wait(60)
    shown.close()
    moved.clear()
    assert shown.closed.is_set()


def test_the_accuracy_of_guessing_is_named():
    for accuracy, words in ((0.1, "0.100 (guessing), "), (0.42, "0.420, ")):
        line = msgspec.structs.replace(epoch(1), test_acc=accuracy)
        assert f"accuracy {words}2 s" in progress.in_words(line, 3)


def test_epochs_of_a_checkpoint_are_said_to_be():
    """They may have run on another number of devices."""
    for line in (epoch(2, 17.8), gan_epoch(2, 17.8)):
        assert progress.in_words(line, 3).endswith(", 17.8 s")
        line = msgspec.structs.replace(line, resumed="elsewhere")
        assert progress.in_words(line, 3).endswith(", of the checkpoint")
