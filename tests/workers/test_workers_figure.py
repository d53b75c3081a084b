"""The picture of ways to share gradients: its data, not its words."""

import pytest
from support import factories
from support.drawn import medians

from d2lpar.records.kinds import Run
from d2lpar.workers import figure


def run(variant, sent, seed=0):
    header = factories.header(2, workers=2, variant=variant, seed=seed)
    # The first epoch warms up.
    epochs = [factories.epoch(1, 9.0)]
    epochs += [factories.epoch(k, 2.0 + seed, wire_bytes=sent) for k in (2, 3, 4)]
    return Run(header, tuple(epochs))


def test_a_row_per_way_of_all_its_seeds():
    runs = [run("async", None), run("2bit", 5_000_000), run("", 8_000_000)]
    runs += [run("", 8_000_000, seed) for seed in (1, 2)]
    sent, seconds, accuracy = figure.pictures(runs)["sharing"].axes
    assert medians(sent) == [8, 5]  # MB; the third has no counter
    assert medians(seconds) == [3.0, 2.0, 2.0]
    assert medians(accuracy) == pytest.approx([0.8] * 3)
    names = [label.get_text() for label in sent.get_yticklabels()]
    assert names == [figure.WAYS[way] for way in ("", "2bit", "async")]
