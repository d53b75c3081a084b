"""Break-even and the model of a step, worked by hand."""

import math

import numpy
import pytest

from d2lpar.errors import RecordError
from d2lpar.scaling.model import (
    AllReduceModel,
    StepModel,
    break_even,
    fit_all_reduce,
    fit_step,
)

ALL_REDUCE = AllReduceModel(latency=1e-4, bandwidth=1e9)
EXCHANGE = 8e-4 + 516_272 / 1e9  # of LeNet's 8 gradients


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({8: 0.5, 32: 1.5}, 16.0),
        ({8: 1.2, 32: 1.5}, 8.0),
        ({8: 1.2, 32: 0.9, 128: 1.1}, 64.0),  # the last crossing counts
        ({128: 1.9, 8: 0.9, 32: 1.0}, 32.0),
    ],
)
def test_break_even(table, expected):
    assert break_even(table) == pytest.approx(expected)
    assert break_even({8: 0.5, 32: 0.9}) is None


@pytest.mark.parametrize("one_python", (True, False))
def test_the_fit_recovers_the_model_that_made_the_numbers(one_python):
    true = StepModel(2e-3, 3e-4, EXCHANGE, one_python)
    by_hand = (4 if one_python else 1) * 2e-3 + 3e-4 * 256 / 4 + 3 * EXCHANGE
    assert true.seconds(4, 256) == pytest.approx(by_hand)
    steps = {(n, b): true.seconds(n, b) for n in (1, 2, 4) for b in (4, 32, 256, 2048)}
    for without in ((), (2, 4)):
        fitted = fit_step(
            steps, ALL_REDUCE, 8, 516_272, without=without, one_python=one_python
        )
        assert fitted.fixed == pytest.approx(2e-3)
        assert fitted.per_sample == pytest.approx(3e-4)
        assert fitted.exchange == pytest.approx(EXCHANGE)


def test_small_batches_count_as_much_as_large_ones():
    batches = numpy.array([2, 8, 32, 128, 512, 2048])
    noise = numpy.random.default_rng(0).uniform(0.95, 1.05, len(batches))
    seconds = (2e-3 + 3e-4 * batches) * noise
    fitted = fit_step({(1, int(b)): s for b, s in zip(batches, seconds)})
    line = numpy.polyfit(batches, seconds, 1, w=1 / seconds)
    assert [fitted.per_sample, fitted.fixed] == pytest.approx(list(line))


def test_all_reduce_depends_on_arrays_bytes_and_devices():
    shapes = ((1, 4096), (1, 2**24), (8, 5e5))
    sizes = [(a, b, ALL_REDUCE.seconds(4, a, b)) for a, b in shapes]
    fitted = fit_all_reduce(4, sizes)
    assert fitted.latency == pytest.approx(1e-4)
    assert fitted.bandwidth == pytest.approx(1e9)
    assert ALL_REDUCE.seconds(3, 8, 10**6) == pytest.approx(2 * (8e-4 + 1e-3))


def test_the_models_break_even_is_where_its_speedup_is_one():
    model = StepModel(2e-3, 3e-4, EXCHANGE)
    for n in (2, 4, 16):
        at = model.break_even(n)
        assert model.speedup(n, at) == pytest.approx(1)
        assert model.speedup(n, 2 * at) > 1 > model.speedup(n, at / 2)
    assert StepModel(1.0, 0.0, 2.0).break_even(2) == math.inf


def test_too_little_to_fit_is_an_error():
    with pytest.raises(RecordError):
        fit_step({(1, 8): 1.0})
    with pytest.raises(RecordError):
        fit_all_reduce(2, [(1, 8, 1.0)])
    with pytest.raises(RecordError):
        fit_all_reduce(1, [(1, 8, 1.0), (1, 16, 2.0)])
