"""Scaling records as studies: break-even, speedups, and which all-reduce counts."""

from pathlib import Path

import msgspec
import pytest
from support.a_study import BATCHES, all_reduce, header, made, step

from d2lpar.records import files
from d2lpar.records.kinds import AllReduceRecord, Run, StepRecord
from d2lpar.scaling.model import break_even, studies
from d2lpar.scaling.result import result

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
        ({128: 1.9, 8: 0.9, 32: 1.0}, 32.0),
    ],
)
def test_break_even(table, expected):
    assert break_even(table) == pytest.approx(expected)
    assert break_even({8: 0.5, 32: 0.9}) is None


def test_a_study_knows_its_steps_and_speedups(run):
    (study,) = studies([run])
    assert study.counts == [1, 2] and study.batches == list(BATCHES)
    assert study.issue == pytest.approx(5e-3)
    assert study.speedups_of(2)[128] == pytest.approx(40.4 / 27.2)
    assert 32 < break_even(study.speedups_of(2)) < 128


ONE_ARRAY, EIGHT = 1e-4 + 100_000 * 2e-9, 8e-4 + 100_000 * 2e-9


@pytest.mark.parametrize(
    ("implementation", "kind", "version", "seconds"),
    [
        ("concise", "cpu", "0.2.0", EIGHT),
        ("concise", "cpu", "0.4.0", EIGHT),
        ("concise", "gpu", "0.2.0", EIGHT),  # before the trainer for GPUs
        ("concise", "gpu", "0.4.0", ONE_ARRAY),
        ("from scratch", "cpu", "0.4.0", ONE_ARRAY),
    ],
)
def test_an_old_record_has_the_all_reduce_of_its_version(
    run, implementation, kind, version, seconds
):
    head = msgspec.structs.replace(
        header(2, implementation=implementation),
        device_kind=kind,
        versions={"d2lpar": version},
    )
    to = {"kvstore local": "kvstore device"} if kind == "gpu" else {}
    lines = [
        msgspec.structs.replace(x, variant=to.get(x.variant, x.variant))
        if isinstance(x, AllReduceRecord)
        else x
        for x in run.lines
    ]
    (study,) = studies([Run(head, tuple(lines))])
    assert study.exchange == pytest.approx(seconds)


def test_a_record_states_the_all_reduce_of_its_steps(run):
    """Whatever the version: the upper end of the bracket has this one's time."""
    own = all_reduce("tree", 8, 100_000, seconds=[7e-3], in_steps=True)
    (study,) = studies([run])
    (marked,) = studies([Run(run.header, (*run.lines, own))])
    assert marked.exchange == pytest.approx(7e-3)
    for batch, (low, high) in study.bracket(2).items():
        expected = low, high - study.exchange + 7e-3
        assert marked.bracket(2)[batch] == pytest.approx(expected)


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
    assert study.speedups_of(2) == {8: pytest.approx(2, rel=0.03)}
    (study,) = studies(apart(run))
    assert study.speedups_of(2) == {8: pytest.approx(4.2 / 4.0)}
