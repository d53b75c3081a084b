"""Scaling records as studies: the model of their steps, and their speedups."""

import math

import msgspec
import pytest
from support.a_study import BATCHES, header, made, step

from d2lpar.records.kinds import AllReduceRecord, Run, StepRecord
from d2lpar.scaling.model import break_even, studies
from d2lpar.scaling.result import formula, result


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


def test_the_model_is_recovered(run):
    (study,) = studies([run])
    assert study.counts == [1, 2] and study.batches == list(BATCHES)
    expected = {"issue": 5e-3, "fixed": 2e-3, "per_sample": 3e-4, "exchange": 1e-3}
    expected["cores"] = 2
    assert vars(study.model) == pytest.approx(expected)
    for n in (1, 2):
        assert study.errors_of(n) == pytest.approx(dict.fromkeys(BATCHES, 0), abs=1e-9)
    # 10 ms of Python for two; 5 + 3 + 0.15 B of the cores against 2 + 0.3 B: 40
    assert study.model.break_even(2) == pytest.approx(40)
    assert study.speedups_of(2)[128] == pytest.approx(40.4 / 27.2)
    assert 32 < break_even(study.speedups_of(2)) < 128


def test_gpus_leave_the_cores_to_python(run):
    head = msgspec.structs.replace(header(2), device_kind="gpu")
    lines = [
        msgspec.structs.replace(x, variant="kvstore device")
        if isinstance(x, AllReduceRecord) and x.variant == "kvstore local"
        else x
        for x in run.lines
    ]
    (study,) = studies([Run(head, tuple(lines))])
    assert math.isinf(study.model.cores)
    assert study.model.exchange == pytest.approx(1e-3)
    assert "cores" not in formula(study)


def test_from_scratch_reduces_one_array(run):
    head = header(2, "scratch", "from scratch")
    (study,) = studies([Run(head, run.lines)])
    assert (study.name, study.variant) == ("from scratch", "scratch")
    assert study.model.exchange == pytest.approx(1e-4 + 100_000 * 2e-9)


def test_several_devices_without_an_all_reduce_have_no_model(run):
    steps = run.lines_of(StepRecord)
    (study,) = studies([Run(header(2, "ddp"), steps)])
    assert study.model is None
    alone = tuple(line for line in steps if line.num_devices == 1)
    (study,) = studies([Run(header(1), alone)])
    assert study.model.fixed == pytest.approx(2e-3)
    untold = tuple(msgspec.structs.replace(x, issue_seconds=[]) for x in alone)
    (study,) = studies([Run(header(1), untold)])
    assert study.model is None


def test_one_run_on_several_counts_is_read_like_several_runs(run):
    (one,), (several,) = studies([run]), studies(apart(run))
    assert one.steps == several.steps and one.model == several.model
    assert sorted(str(result([run]))) == sorted(str(result(apart(run))))


def test_a_speedup_is_of_neighbouring_samples():
    """While the machine is half as fast both are, and their ratio stays."""
    one = step(8, 1, [4.0, 8.0, 8.0, 4.2, 4.1])
    two = step(8, 2, [2.0, 4.0, 4.0, 4.0, 2.1])
    run = Run(header(2), (one, two))
    (study,) = studies([run])
    assert study.speedups_of(2) == {8: pytest.approx(2, rel=0.03)}
    (study,) = studies(apart(run))
    assert study.speedups_of(2) == {8: pytest.approx(4.2 / 4.0)}
