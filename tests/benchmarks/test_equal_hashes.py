"""The benchmark of equal bits: what it calls equal, and the committed hashes."""

from pathlib import Path

import pytest
import same_bits
from arms import record

from d2lpar.records import files
from d2lpar.records.kinds import ArmSample

RECORDS = Path(__file__).parents[2] / "figures" / "benchmarks"


def a_record(folder, hashes):
    lines = [
        ArmSample(
            arm=f"{contexts} contexts", round=seed, seconds=1.0, work="from scratch",
            epoch=epoch, params_sha256=f"{seed}{last if epoch == 2 else 'other'}",
        )
        for (seed, contexts), last in hashes.items()
        for epoch in (1, 2)
    ]  # fmt: skip
    return record(folder / "same_bits.jsonl", [], lines, work="an epoch")


@pytest.mark.parametrize(
    ("hashes", "equal"),
    [
        ({(0, 1): "a", (0, 2): "a", (1, 1): "b", (1, 2): "b"}, True),
        ({(0, 1): "a", (0, 2): "a", (1, 1): "b", (1, 2): "c"}, False),
        ({(0, 1): "a", (0, 2): "a", (1, 1): "b"}, False),  # one training is missing
        ({}, False),
    ],
)
def test_equal_is_said_of_the_last_parameters_of_all_trainings(hashes, equal, tmp_path):
    assert same_bits.report(a_record(tmp_path, hashes)) == equal


@pytest.mark.skipif(not RECORDS.is_dir(), reason="not a checkout")
@pytest.mark.parametrize(
    "name", ["same_bits.jsonl", "same_bits-book.jsonl", "same_bits-mxnet2.jsonl"]
)
def test_the_committed_trainings_are_equal(name):
    run = files.read(RECORDS / name)
    assert run.lines_of(ArmSample) and same_bits.report(run)
