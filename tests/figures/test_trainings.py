"""figures: medians and curves of records."""

import numpy as np
import pytest
from PIL import Image
from support.factories import epoch, header, training

from d2lpar import experiments
from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.lenet import figure
from d2lpar.records.kinds import Run

ONE = training(1)
TWO = training(2, seconds=(7.0, 1.25, 1.25, 1.25))


def test_accuracy_curves_are_medians_of_the_repeats():
    repeats = [
        epoch(k, repeat=r, test_acc=0.1 * k + 0.1 * r) for r in range(3) for k in (1, 2)
    ]
    run = Run(ONE.header, tuple(repeats), ONE.path)
    (axes,) = figure.pictures([run, TWO])["accuracy"].axes
    ours, other, guessing = axes.get_lines()
    assert list(ours.get_xdata()) == [1, 2]
    np.testing.assert_allclose(ours.get_ydata(), [0.2, 0.3])
    band = axes.collections[0].get_paths()[0].get_extents()
    assert (band.y0, band.y1) == pytest.approx((0.1, 0.4))
    # Equal curves, told apart in grey.
    assert ours.get_linestyle() != other.get_linestyle()
    assert (ours.get_label(), other.get_label()) == ("1 device", "2 devices")
    assert axes.get_ylabel() == "test accuracy" and axes.get_xlabel() == "epoch"
    assert set(guessing.get_ydata()) == {0.1}
    assert "guessing" in [text.get_text() for text in axes.texts]


def test_epochs_of_a_checkpoint_are_marked():
    epochs = [epoch(k, 9.0, resumed="elsewhere") for k in (1, 2)]
    epochs += [epoch(3, 2.0, resumed="here"), epoch(4, 1.0)]
    settings = {**ONE.header.settings, "resumed_at": 2}
    run = Run(header(settings=settings), tuple(epochs), ONE.path)
    (axes,) = figure.pictures([run])["accuracy"].axes
    assert list(axes.get_lines()[0].get_xdata()) == [1, 2, 3, 4]
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts == ["of the checkpoint", "guessing"]


@pytest.mark.parametrize(("n", "low", "high"), [(7, 0, 6), (8, 1.75, 5.25)])
def test_a_spread_is_the_range_of_seven_samples_and_the_quartiles_of_eight(
    n, low, high
):
    samples = [k / 1e3 for k in range(n)]
    (axes,) = page.new("title", "note", []).axes
    page.dots(axes, [page.Row("a row", samples)], "s")
    dots, spread, median = (list(line.get_xdata()) for line in axes.lines)
    assert dots == list(range(n)) and spread == pytest.approx([low, high])
    assert median == [(n - 1) / 2] and axes.get_xlabel() == "milliseconds"
    assert axes.texts[0].get_text() == f"{median[0]:.2f} ms"
    bars = page.quartiles(axes, [(1, samples), (2, samples)]).lines[2][0].get_segments()
    np.testing.assert_allclose(bars[1], [(2, low / 1e3), (2, high / 1e3)])


def test_a_row_says_its_own_unit_and_names_stand_at_their_values_and_apart():
    (axes,) = page.new("title", "note", []).axes
    page.dots(axes, [page.Row("long", [2.0]), page.Row("short", [4e-3])], "s")
    assert [text.get_text() for text in axes.texts] == ["2.00 s", "4.00 ms"]
    (axes,) = page.new("title", "note", []).axes
    axes.set_ylim(0, 4)
    page.name_beside(axes, {"three": 3, "one": 1, "two": 1})
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    assert heights == pytest.approx({"one": 0.25, "two": 0.305, "three": 0.75})


def test_a_run_without_epochs_has_no_picture():
    with pytest.raises(RecordError, match="book-cpu1.jsonl"):
        figure.pictures([Run(header(), (), ONE.path)])


def test_files_say_where_they_are_from(tmp_path):
    paths = experiments.draw([ONE], tmp_path)
    assert [path.name for path in paths] == ["accuracy.png", "seconds.png"]
    for path in paths:
        with Image.open(path) as picture:
            said = picture.info
        assert said["Title"] and ONE.header.git_commit[:7] in said["Description"]
