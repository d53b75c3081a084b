"""Scaling records as studies, and their pictures: from which numbers they are drawn."""

import statistics
from pathlib import Path

import msgspec
import pytest
from support.a_study import BATCHES, header, made, step

from d2lpar.records import files
from d2lpar.records.kinds import AllReduceRecord, Run, StepRecord
from d2lpar.scaling import figure
from d2lpar.scaling.model import all_reduces, break_even, studies
from d2lpar.scaling.result import result, speedups

FIGURES = Path(__file__).parents[2] / "figures"


@pytest.fixture
def run():
    return made()


def apart(run):
    """The same measured by one run per device count."""
    runs = []
    for n in (1, 2):
        lines = (x for x in run.lines if x.num_devices == n)
        alone = (msgspec.structs.replace(x, num_devices=0) for x in lines)
        runs.append(Run(header(n), tuple(alone)))
    return runs


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({8: 0.5, 32: 1.5}, 16.0),
        ({8: 1.2, 32: 1.5}, 8.0),
        ({8: 1.2, 32: 0.9, 128: 1.1}, 64.0),  # the last crossing counts
        ({8: 0.5, 32: 0.9}, None),
    ],
)
def test_break_even(table, expected):
    assert break_even(table) == (expected and pytest.approx(expected))


def test_a_study_knows_its_steps_and_speedups(run):
    (study,) = studies([run])
    assert study.counts == [1, 2] and study.batches == list(BATCHES)
    assert study.issue == pytest.approx(5e-3)
    assert study.exchange == pytest.approx(8e-4 + 100_000 * 2e-9)
    assert speedups(study, 2)[128] == pytest.approx(40.4 / 27.2)


@pytest.mark.parametrize(
    ("record", "size"),
    [
        ("scaling/book-1thread-concise-cpu2", ("kvstore local", 8)),
        ("scaling/book-1thread-scratch-cpu2", ("book", 1)),
        ("gpus/scaling/book-1thread-concise-gpu2", ("kvstore device", 1)),
        ("gpus/scaling/book-1thread-scratch-gpu2", ("book", 1)),
    ],
)
def test_the_committed_records_have_the_all_reduce_of_their_steps(record, size):
    run = files.read(FIGURES / f"{record}.jsonl")
    (study,) = studies([run])
    seconds = [
        second
        for line in run.lines_of(AllReduceRecord)  # one per process
        if (line.variant, line.num_arrays, line.num_bytes) == (*size, 516_272)
        for second in line.seconds
    ]
    assert study.exchange == statistics.median(seconds)


def test_without_an_all_reduce_there_is_no_bracket(run):
    (study,) = studies([Run(header(2, "ddp"), run.lines_of(StepRecord))])
    assert study.exchange is None and study.bracket(2) == {}


def test_one_run_on_several_counts_is_read_like_several_runs(run):
    (one,), (several,) = studies([run]), studies(apart(run))
    assert one.steps == several.steps and one.bracket(2) == several.bracket(2)
    assert sorted(str(result([run]))) == sorted(str(result(apart(run))))


def test_a_speedup_is_of_neighbouring_samples():
    """Pictures show the pairs; the rank test of the rule compares all samples."""
    one = step(8, 1, [4.0, 5.0, 5.0, 4.2, 4.1])
    two = step(8, 2, [2.0, 2.5, 2.5, 2.0, 2.1])
    (study,) = studies([Run(header(2), (one, two))])
    assert speedups(study, 2) == {8: pytest.approx(2, rel=0.05)}


# Pictures and text


def test_pictures_and_text(run):
    drawn = figure.pictures([run])
    assert set(drawn) == {"speedup", "steps", "parts", "all-reduce"}
    text = [" ".join(x.split()) for x in result([run]).full_text("").splitlines()]
    # 5 + 2 + 19.2 + 1 ms on two, 40.4 on one
    assert "concise 128 40.4 40.4-40.4 27.2 27.2-27.2 1.49" in text
    assert "concise 32 2 1.00 1.00 1.00 1.00 1.00" in text  # the parts of a step
    assert "100,000 8 2 1.00 1.00 -" in text  # kvstore local, the book's; no NCCL


def test_the_bracket_of_two_devices_is_of_steps_on_one(run):
    """Python's 10 ms for two, or the device's 2 ms + 0.3 ms per image; 1 ms to sum."""
    (study,) = studies([run])
    one = {batch: max(5, 2 + 0.3 * batch, (7 + 0.3 * batch) / 2) for batch in BATCHES}
    exchange = 1e3 * (8e-4 + 100_000 * 2e-9)
    bounds = study.bracket(2)
    assert list(bounds) == [2 * batch for batch in BATCHES]
    for batch, ms in one.items():
        low, high = bounds[2 * batch]
        assert 1e3 * low == pytest.approx(max(10, ms))
        assert 1e3 * high == pytest.approx(10 + ms + exchange)
    (axes,) = figure.pictures([run])["steps"].axes
    (band,) = axes.collections[-1:]
    assert band.get_paths()[0].get_extents().y1 == pytest.approx(1e3 * high)


def test_an_update_is_not_told_from_its_all_reduce(run):
    (axes,) = figure.pictures([run])["parts"].axes
    widths = [bars[1].get_width() for bars in axes.containers]  # of two contexts
    assert widths == pytest.approx([1, 1, 1, 2])


def test_an_all_reduce_is_drawn_in_bytes_per_second_of_the_bus(run):
    axes, below = figure.pictures([run])["all-reduce"].axes
    lines = [container.lines[0] for container in axes.containers]
    assert [list(line.get_xdata()) for line in lines] == [[4096, 100_000, 2**20]] * 2
    assert lines[0].get_ydata()[0] == pytest.approx(4096 / (1e-4 + 4096 * 2e-9) / 1e9)
    one, eight = below.containers  # bars of one array and of eight, a row for each way
    assert len(one) == len(eight) == 2
    assert eight[0].get_width() == pytest.approx(1e3 * (8e-4 + 100_000 * 2e-9))


def test_one_process_needs_the_factor_of_short_steps(run):
    def lasting(n, level):
        (step,) = (s for s in run.lines_of(StepRecord)
                   if (s.num_devices, s.global_batch_size) == (n, 128))  # fmt: skip
        seconds = [level + 0.001 * k for k in range(4)]
        return msgspec.structs.replace(step, seconds=seconds)

    for factor, told in ((1.25, False), (1.4, True)):
        lines = lasting(1, factor), lasting(2, 1.0)
        (study,) = studies([Run(run.header, lines)])
        assert (speedups(study, 2)[128] is not None) == told
        apart = [msgspec.structs.replace(x, repeat=k) for x in lines for k in range(4)]
        (study,) = studies([Run(run.header, tuple(apart))])
        assert speedups(study, 2)[128] == pytest.approx(factor, rel=0.01)


def test_all_reduces_of_two_processes_are_two(run):
    twice = Run(run.header, run.lines + run.lines)
    for by_way in all_reduces([twice]).values():
        for seconds in by_way.values():
            assert len(seconds.processes) == (2 if seconds.n else 0)


def test_one_device_alone(run):
    alone = Run(header(1), tuple(x for x in run.lines if x.num_devices == 1))
    assert set(figure.pictures([alone])) == {"steps", "parts"}
    assert "speedup of" not in result([alone]).full_text("")
