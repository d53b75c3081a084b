"""The benchmark of a reader's own loop compares the same trainings."""

import first_steps
import numpy
import own_loop
import pytest

from d2lpar.errors import RunError

SIZES = {"data": "sample", "global_batch_size": 16, "steps": 2, "passes": 2}


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    """A file of our first steps."""
    path = tmp_path_factory.mktemp("check") / "first_steps.npz"
    data = {"name": "sample"}
    first_steps.write_first_steps(str(path), data, seed=0, global_batch_size=16)
    return path


@pytest.mark.parametrize("waiting", [True, False])
def test_the_reader_repeats_our_first_steps(check, waiting):
    lines = list(own_loop.reader_loop("cpu:2", check=check, waiting=waiting, **SIZES))
    assert [set(line) for line in lines] == [{"seconds"}] * 2
    assert all(line["seconds"] > 0 for line in lines)


def test_a_reader_who_trains_otherwise_is_not_timed(check, tmp_path):
    with numpy.load(check) as file:
        changed = dict(file)
    changed["losses"] = changed["losses"] * 1.001
    numpy.savez(tmp_path / "changed.npz", **changed)
    loop = own_loop.reader_loop(
        "cpu:1", check=tmp_path / "changed.npz", waiting=True, **SIZES
    )
    with pytest.raises(RunError, match="the reader's loss is"):
        next(loop)
