"""Pictures and text of scaling studies: which are drawn, and from which numbers."""

import pytest
from support.a_study import BATCHES, header, made

from d2lpar.records.kinds import Run
from d2lpar.scaling import figure
from d2lpar.scaling.model import studies
from d2lpar.scaling.result import result


@pytest.fixture
def run():
    return made()


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
    (axes,) = figure.pictures([run])["all-reduce"].axes
    whole = [c.lines[0] for c in axes.containers if len(c.lines[0].get_xdata()) > 1]
    assert [list(line.get_xdata()) for line in whole] == [[4096, 100_000, 2**20]] * 2
    assert whole[0].get_ydata()[0] == pytest.approx(4096 / (1e-4 + 4096 * 2e-9) / 1e9)
    hollow = [c for c in axes.containers if len(c.lines[0].get_xdata()) == 1]
    assert len(hollow) == 2  # of eight arrays


def test_one_device_alone(run):
    alone = Run(header(1), tuple(x for x in run.lines if x.num_devices == 1))
    assert set(figure.pictures([alone])) == {"steps", "parts"}
    assert "speedup of" not in result([alone]).full_text("")
