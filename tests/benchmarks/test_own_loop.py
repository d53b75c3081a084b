"""The benchmark of a reader's own loop runs, and compares the same trainings."""

import os
import subprocess
import sys
from pathlib import Path

import first_steps
import numpy
import own_loop
import pytest

from d2lpar.errors import RunError
from d2lpar.records import files
from d2lpar.records.comparison import arm_times

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_a_tiny_run_writes_a_record(tmp_path):
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in SIZES.items()]
    command = [sys.executable, str(ROOT / "benchmarks" / "own_loop.py"), *flags]
    command += ["--devices=cpu:2", "--rounds=1", f"--out={tmp_path}"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    timed = arm_times(files.read(tmp_path / "own_loop.jsonl"))
    names = [own_loop.READER, own_loop.NEVER, own_loop.D2L]
    assert [arm.name for arm in timed] == names * 2
    assert all(len(arm.seconds) == SIZES["passes"] - 1 for arm in timed)
    assert own_loop.READER in done.stdout
    assert {p.suffix for p in tmp_path.iterdir()} == {".jsonl", ".png"}
