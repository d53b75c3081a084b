"""Scaling records as studies: break-even, speedups, and which all-reduce counts."""

from pathlib import Path

import msgspec
import pytest
from support.a_study import BATCHES, header, made, step

from d2lpar.records import files
from d2lpar.records.kinds import AllReduceRecord, Run, StepRecord
from d2lpar.scaling.model import break_even, studies
from d2lpar.scaling.result import pairs_of, result, speedups

FIGURES = Path(__file__).parents[2] / "figures"


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


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({8: 0.5, 32: 1.5}, 16.0),
        ({8: 1.2, 32: 1.5}, 8.0),
        ({8: 1.2, 32: 0.9, 128: 1.1}, 64.0),  # the last crossing counts
        ({8: 0.5, 32: 0.9}, None),
    ],
)
def test_break_even(table, expected):
    assert break_even(table) == (expected and pytest.approx(expected))


def test_a_study_knows_its_steps_and_speedups(run):
    (study,) = studies([run])
    assert study.counts == [1, 2] and study.batches == list(BATCHES)
    assert study.issue == pytest.approx(5e-3)
    assert study.exchange == pytest.approx(8e-4 + 100_000 * 2e-9)
    assert speedups(study, 2)[128] == pytest.approx(40.4 / 27.2)


@pytest.mark.parametrize(
    ("record", "size"),
    [
        ("scaling/book-1thread-concise-cpu2", ("kvstore local", 8)),
        ("scaling/book-1thread-scratch-cpu2", ("book", 1)),
        ("h200/scaling/book-1thread-concise-gpu2", ("kvstore device", 1)),
        ("h200/scaling/book-1thread-scratch-gpu2", ("book", 1)),
    ],
)
def test_the_committed_records_have_the_all_reduce_of_their_steps(record, size):
    run = files.read(FIGURES / f"{record}.jsonl")
    (study,) = studies([run])
    (line,) = (
        line
        for line in run.lines_of(AllReduceRecord)
        if (line.variant, line.num_arrays, line.num_bytes) == (*size, 516_272)
    )
    assert study.exchange == sorted(line.seconds)[len(line.seconds) // 2]


def test_without_an_all_reduce_there_is_no_bracket(run):
    (study,) = studies([Run(header(2, "ddp"), run.lines_of(StepRecord))])
    assert study.exchange is None and study.bracket(2) == {}


def test_one_run_on_several_counts_is_read_like_several_runs(run):
    (one,), (several,) = studies([run]), studies(apart(run))
    assert one.steps == several.steps and one.bracket(2) == several.bracket(2)
    assert sorted(str(result([run]))) == sorted(str(result(apart(run))))


def test_a_speedup_is_of_neighbouring_samples():
    """While the machine is half as fast both are, and their ratio stays."""
    one = step(8, 1, [4.0, 8.0, 8.0, 4.2, 4.1])
    two = step(8, 2, [2.0, 4.0, 4.0, 4.0, 2.1])
    run = Run(header(2), (one, two))
    (study,) = studies([run])
    assert pairs_of(study, 2) == {8: [2.0, 2.0, 2.0, 1.05, 4.1 / 2.1]}
    assert speedups(study, 2) == {8: pytest.approx(2, rel=0.03)}
    (study,) = studies(apart(run))
    assert speedups(study, 2) == {8: pytest.approx(4.2 / 4.0)}
