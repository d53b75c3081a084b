"""Break-even and the model of a step, worked by hand."""

import math

import pytest

from d2lpar.errors import RecordError
from d2lpar.scaling.model import StepModel, break_even, fit_step

BATCHES = [2**k for k in range(1, 14)]


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


def test_a_step_takes_the_longest_of_python_a_device_and_the_cores():
    gpus = StepModel(issue=4.0, fixed=1.0, per_sample=0.1, exchange=2.0)
    assert gpus.seconds(1, 10) == 4.0  # 1 + 1 of the device: Python decides
    assert gpus.seconds(1, 100) == 11.0
    assert gpus.seconds(2, 100) == 8.0  # 1 + 5 + 2 of a device, 2 x 4 of Python
    assert gpus.seconds(4, 1000) == 1.0 + 25.0 + 3 * 2.0
    cores = StepModel(issue=4.0, fixed=1.0, per_sample=0.1, exchange=2.0, cores=2)
    assert cores.seconds(1, 100) == 11.0  # (4 + 11) / 2 on two cores: no limit
    assert cores.seconds(2, 100) == 2 * (4.0 + 8.0) / 2
    assert cores.seconds(4, 100) == 4 * (4.0 + 1.0 + 2.5 + 6.0) / 2


@pytest.mark.parametrize("cores", [math.inf, 2])
@pytest.mark.parametrize("issue", [1e-5, 3e-3, 2e-2])
def test_the_fit_recovers_the_model_that_made_the_numbers(issue, cores):
    """Whether Python decides at no batch, at some, or at most of them."""
    true = StepModel(issue, 2e-3, 3e-4, 1e-3, cores)
    one = {batch: true.seconds(1, batch) for batch in BATCHES}
    fitted = fit_step(one, issue, 1e-3, cores)
    assert fitted.fixed == pytest.approx(2e-3)
    assert fitted.per_sample == pytest.approx(3e-4)
    assert fitted.seconds(2, 64) == pytest.approx(true.seconds(2, 64))


@pytest.mark.parametrize("cores", [math.inf, 16, 2])
@pytest.mark.parametrize("exchange", [0.0, 1e-3, 0.1])  # Python decides, or the sum
def test_the_models_break_even_is_where_its_speedup_is_one(exchange, cores):
    model = StepModel(3e-3, 2e-3, 3e-4, exchange, cores)
    for n in (2, 4, 16):
        at = model.break_even(n)
        if n > cores and cores == 2:
            continue  # they may pay, less than two
        assert model.speedup(n, at) == pytest.approx(1)
        assert model.speedup(n, 2 * at) > 1 > model.speedup(n, at / 2)


def test_no_batch_is_large_enough():
    assert StepModel(2.0, 1.0, 0.0).break_even(2) == math.inf
    assert StepModel(2.0, 1.0, 0.1, cores=1).break_even(2) == math.inf


def test_too_little_to_fit_is_an_error():
    with pytest.raises(RecordError):
        fit_step({8: 1.0}, issue=0.1)
