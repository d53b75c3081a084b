"""Scaling records as studies, and their pictures: from which numbers they are drawn."""

import msgspec
import pytest
from support.a_study import BATCHES, header, made, step

from d2lpar.records.kinds import AllReduceRecord, Run, StepRecord
from d2lpar.scaling import figure
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import comparisons, result


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


def test_without_an_all_reduce_there_is_no_bracket(run):
    (study,) = studies([Run(header(2, "ddp"), run.lines_of(StepRecord))])
    assert study.exchange is None and study.bracket(2) == {}


def test_an_all_reduce_of_four_devices_is_of_three_beyond_the_first(run):
    lines = run.lines_of(AllReduceRecord)
    on_four = (msgspec.structs.replace(line, num_devices=4) for line in lines)
    (study,) = studies([Run(header(4), tuple(on_four))])
    assert study.exchange == pytest.approx((8e-4 + 100_000 * 2e-9) / 3)


def test_one_run_on_several_counts_is_read_like_several_runs(run):
    (one,), (several,) = studies([run]), studies(apart(run))
    assert one.steps == several.steps and one.bracket(2) == several.bracket(2)
    alone = (found.turns for found in comparisons(several, 2).values())
    assert set(alone) == {0}  # they did not take turns


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
    assert study.counts == [1, 2] and study.batches == list(BATCHES)
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
    (axes,) = figure.pictures([run])["all-reduce"].axes
    lines = [container.lines[0] for container in axes.containers]
    assert [list(line.get_xdata()) for line in lines] == [[4096, 100_000, 2**20]] * 2
    assert lines[0].get_ydata()[0] == pytest.approx(4096 / (1e-4 + 4096 * 2e-9) / 1e9)


def test_turns_are_processes_or_the_samples_of_one(run):
    """Two processes are two turns, however many samples they take."""
    lines = step(8, 1, [1.3, 1.31, 1.3, 1.32]), step(8, 2, [1.0, 1.0, 1.01, 1.0])
    for processes, turns in ((1, 4), (2, 2), (4, 4)):
        every = [
            msgspec.structs.replace(x, repeat=k)
            for x in lines for k in range(processes)
        ]  # fmt: skip
        (study,) = studies([Run(run.header, tuple(every))])
        found = comparisons(study, 2)[8]
        assert (found.turns, found.is_told) == (turns, turns >= 4)
        assert found.ratio == pytest.approx(1.3, rel=0.01)
    other = Run(header(4), (step(8, 1, [5.0] * 4), step(8, 4, [1.0] * 4)))
    (study,) = studies([Run(header(2), lines), other])  # of another sitting
    assert comparisons(study, 2)[8].turns == comparisons(study, 4)[8].turns == 1


def test_one_device_alone(run):
    alone = Run(header(1), tuple(x for x in run.lines if x.num_devices == 1))
    assert set(figure.pictures([alone])) == {"steps", "parts"}
    assert "speedup of" not in result([alone]).full_text("")
