"""The picture of ways to share gradients: its data, not its words."""

import factories
import pytest

from d2lpar.errors import RecordError
from d2lpar.figures import page
from d2lpar.records.kinds import Run
from d2lpar.workers import figure


def run(variant, sent, seed=0):
    header = factories.header(2, workers=2, variant=variant, seed=seed)
    # The first epoch warms up.
    epochs = [factories.epoch(1, 9.0)]
    epochs += [factories.epoch(k, 2.0 + seed, wire_bytes=sent) for k in (2, 3, 4)]
    return Run(header, tuple(epochs))


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn, by name."""
    figures = {}
    monkeypatch.setattr(page, "save", lambda drawn, *_: figures.update(drawn) or [])
    return figures


def medians(axes):
    large = [line for line in axes.lines if line.get_marker() == "o"]
    return [float(line.get_xdata()[0]) for line in large]


def test_bytes_seconds_and_accuracy_of_each_way(drawn, tmp_path):
    runs = [run("async", None), run("2bit", 5_000_000), run("", 8_000_000)]
    figure.draw(runs, tmp_path, "book-2workers")
    sent, seconds, accuracy = drawn["sharing"].axes
    assert medians(sent) == [8, 5]  # MB; the third has no counter
    assert medians(seconds) == [2.0] * 3
    assert medians(accuracy) == pytest.approx([0.8] * 3)
    names = [label.get_text() for label in sent.get_yticklabels()]
    assert names == [figure.WAYS[way] for way in ("", "2bit", "async")]


def test_seeds_of_one_way_are_one_row(drawn, tmp_path):
    runs = [run(way, None, seed) for way in ("", "async") for seed in range(3)]
    figure.draw(runs, tmp_path, "book-2workers")
    _, seconds, _ = drawn["sharing"].axes
    assert medians(seconds) == [3.0] * 2


def test_a_run_without_epochs_is_refused(tmp_path):
    with pytest.raises(RecordError, match="epochs"):
        figure.draw([Run(factories.header(), ())], tmp_path, "s")
