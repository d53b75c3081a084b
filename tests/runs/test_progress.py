"""Progress on stderr: a line per epoch or method, and a clock between them."""

import io
import sys
import threading

import msgspec
import pytest
from support.a_study import step
from support.factories import epoch, gan_epoch, header, point

from d2lpar.runs import progress


def test_epochs_have_a_line_each_and_repeats_their_last(capsys):
    with progress.shown() as see:
        for repeat in (0, 1):
            for count in (1, 2):
                see(header(count, settings={"num_epochs": 2}))
                for k in (1, 2):
                    see(epoch(k, repeat=repeat))
    lines = capsys.readouterr().err.splitlines()
    words = [line.partition(", loss")[0] for line in lines]
    assert words == [
        *("1 device: epoch 1/2", "1 device: epoch 2/2"),
        *("2 devices: epoch 1/2", "2 devices: epoch 2/2"),
        *("1 device: epoch 2/2", "2 devices: epoch 2/2"),
    ]


def test_a_method_has_one_line_for_its_first_solve(capsys):
    with progress.shown() as see:
        for _ in range(2):  # turns
            for method in ("cgls", "tsqr"):
                see(header(variant=method))
                for number in range(1, 4):
                    see(point(number))
    lines = capsys.readouterr().err.splitlines()
    names = [line.split(": iteration 3")[0] for line in lines]
    assert names == ["cgls, 1 device", "tsqr, 1 device"]


def test_the_last_line_before_an_error_is_kept(capsys):
    with pytest.raises(ZeroDivisionError):
        with progress.shown() as see:
            see(header(variant="cgls"))
            see(point(1))
            raise ZeroDivisionError
    assert "iteration 1" in capsys.readouterr().err


def test_a_clock_breaks_the_silence(monkeypatch):
    """A screen that stands still for an epoch of minutes looks dead."""
    written = threading.Event()

    class Noted(io.StringIO):
        def write(self, text):
            if "starting ... " in text and "so far" in text:
                written.set()

    monkeypatch.setattr(sys, "stderr", Noted())
    monkeypatch.setattr(progress, "SILENCE", 0)
    with progress.shown():
        assert written.wait(60)


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
        with progress.shown() as see:
            see(header(chapter=chapter, settings={"num_epochs": 2}))
            see(line)
            assert contents, "shown as it arrives"
        for content in contents:
            assert words in content["text/plain"]
            assert ("image/png" in content) == is_drawn


def test_the_accuracy_of_guessing_is_named():
    for accuracy, words in ((0.1, "0.100 (guessing), "), (0.13, "0.130, ")):
        line = msgspec.structs.replace(epoch(1), test_acc=accuracy)
        assert f"accuracy {words}2 s" in progress.in_words(line, 3)


def test_epochs_of_a_checkpoint_are_said_to_be():
    """They may have run on another number of devices."""
    for line in (epoch(2, 17.8), gan_epoch(2, 17.8)):
        assert progress.in_words(line, 3).endswith(", 17.8 s")
        line = msgspec.structs.replace(line, resumed="elsewhere")
        assert progress.in_words(line, 3).endswith(", of the checkpoint")
