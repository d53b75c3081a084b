"""The picture of ways to share gradients: its data, not its words."""

import factories
import numpy as np
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


def test_a_line_and_a_bar_per_way(drawn, tmp_path):
    runs = [run("async", None), run("2bit", 5_000_000), run("", 8_000_000)]
    figure.draw(runs, tmp_path, "book-2workers")
    accuracy, seconds = drawn["sharing"].axes
    lines = accuracy.get_lines()
    assert len(lines) == 3
    np.testing.assert_allclose(lines[0].get_ydata(), [0.2, 0.4, 0.6, 0.8])
    assert [bar.get_width() for bar in seconds.patches] == [2.0] * 3
    names = [label.get_text() for label in seconds.get_yticklabels()]
    assert names == [figure.WAYS[way] for way in ("", "2bit", "async")]
    notes = [text.get_text() for text in seconds.texts]
    assert ["MB" in note for note in notes] == [True, True, False]
    assert "8.00 MB" in notes[0]


def test_seeds_of_one_way_are_one_line(drawn, tmp_path):
    runs = [run(way, None, seed) for way in ("", "async") for seed in range(3)]
    figure.draw(runs, tmp_path, "book-2workers")
    accuracy, seconds = drawn["sharing"].axes
    assert len(accuracy.get_lines()) == len(accuracy.collections) == 2
    assert [bar.get_width() for bar in seconds.patches] == [3.0] * 2


def test_a_run_without_epochs_is_refused(tmp_path):
    with pytest.raises(RecordError, match="epochs"):
        figure.draw([Run(factories.header(), ())], tmp_path, "s")
