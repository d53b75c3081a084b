"""Medians, quartiles and ratios on numbers small enough to check by hand."""

import numpy as np
import pytest

from d2lpar.timing import Summary, efficiency, speedup, summarize


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([7.0], Summary(7.0, 7.0, 7.0, 1)),
        ([3.0, 1.0, 2.0], Summary(2.0, 1.5, 2.5, 3)),
        ([4.0, 1.0, 3.0, 2.0, 5.0], Summary(3.0, 2.0, 4.0, 5)),
        ((1, 2, 3, 4), Summary(2.5, 1.75, 3.25, 4)),
    ],
)
def test_summarize(samples, expected):
    assert summarize(samples) == expected


def test_one_outlier_does_not_move_the_median():
    assert summarize([1.0, 1.0, 1.0, 1.0, 100.0]).median == 1.0


def test_summary_holds_plain_floats():
    summary = summarize(np.array([1, 2, 3], dtype=np.float32))
    assert [type(v) for v in (summary.median, summary.q1, summary.q3)] == [float] * 3
    assert type(summary.n) is int


def test_summary_reads_well():
    assert str(Summary(1.23456, 1.0, 2.0, 5)) == "1.23 (1.00-2.00, n=5)"


@pytest.mark.parametrize("nothing", [[], (), np.array([])])
def test_summarize_refuses_no_samples(nothing):
    with pytest.raises(ValueError, match="no samples"):
        summarize(nothing)


def test_speedup():
    assert speedup(2.0, 1.0) == 2.0
    assert speedup(1.8, 2.5) == pytest.approx(0.72)  # the book's: slower on two GPUs


def test_efficiency():
    assert efficiency(2.0, 1, 1.0, 2) == 1.0
    assert efficiency(2.0, 1, 2.0, 2) == 0.5  # the second device bought nothing
    assert efficiency(8.0, 2, 4.0, 8) == 0.5  # the base itself may be a sweep's 2
    assert efficiency(3.0, 1, 3.0, 1) == 1.0
