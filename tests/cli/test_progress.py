"""Progress on stderr: a bar on a terminal, lines elsewhere, with what they count."""

import io
import sys

import pytest
from factories import epoch, gan_epoch, header, point, training

from d2lpar.cli import progress
from d2lpar.records.kinds import FrameRecord, Run, TimingRecord
from d2lpar.runs.job import Job


def jobs(experiment, **settings):
    return [Job(experiment, "quick", "cpu:2", 1, 0, settings, {}, "d2lpar run", "runs")]


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
        f"multiple_gpus, {count}: epoch {k}/2"
        for count in ("1 device", "2 devices")
        for k in (1, 2)
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


TIMING = TimingRecord(
    operation="x2",
    library="MXNet",
    version="1.9.1",
    form="in place",
    dtype="float32",
    shape=[8],
    num_bytes=32,
    flops=8,
    seconds=[0.002],
    naive_seconds=[0.001],
    warmup_seconds=[],
    devices=["cpu(0)"],
    threads=1,
)


@pytest.mark.parametrize(
    "lines, words",
    [
        (training().lines, "test accuracy 0.800, 2.00 (1.90-2.10, n=3) s per epoch"),
        ([point(1), point(3)], "residual 10 in 0.300 s"),
        ([gan_epoch(1), gan_epoch(2)], "2.00 (2.00-2.00, n=1) s per epoch"),
        (
            [
                FrameRecord(epoch=0, fixed="", quality=0.5),
                gan_epoch(1),
                FrameRecord(epoch=1, fixed="", quality=0.2),
            ],
            "distance to the data's faces 0.500 to 0.200",
        ),
        ([TIMING], "1 operations timed"),
        ([], "nothing measured"),
    ],
)
def test_a_runs_result_is_said_in_one_line(lines, words):
    text = progress.summary(Run(header(), tuple(lines)))
    assert words in text and text.endswith("on cpu(0) (1 thread of 2 cores)")


def test_a_sample_of_the_data_is_said():
    run = Run(header(dataset="fashion-mnist-sample"), (epoch(1),))
    assert progress.summary(run).endswith("[a sample of the data]")
    assert progress.curves(epoch(1)).keys() == {
        "epoch",
        "training loss",
        "test accuracy",
    }
    assert progress.curves(TIMING) == {} and progress.in_words(TIMING)
