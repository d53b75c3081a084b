"""Tiny runs of the benchmarks whose records hold no times of interest."""

import subprocess
import sys
from pathlib import Path

import pytest

from d2lpar.records import files

ROOT = Path(__file__).parents[2]


def record_of(name: str, folder: Path, *flags: str):
    command = [sys.executable, f"benchmarks/{name}.py", f"--out={folder}", *flags]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return files.read(folder / f"{name}.jsonl")


def test_two_devices_stay_near_one_in_float64(tmp_path):
    run = record_of(
        "equivalence", tmp_path, "--data=sample", "--rounds=1",
        "--batch-size=32", "--steps=6",
    )  # fmt: skip
    errors = {(line.arm, line.steps): line.error for line in run.lines}
    steps = (1, 2, 5, 6)
    assert list(errors) == [
        (f"lr {lr}", s)
        for lr in ("0.02, float32", "0.2, float32", "0.2, float64")
        for s in steps
    ]
    assert 0 < errors["lr 0.2, float64", 6] < 1e-13 < errors["lr 0.2, float32", 6]


def test_memory_grows_with_the_batch_and_halves_on_two(tmp_path):
    run = record_of(
        "memory", tmp_path, "--data=sample", "--rounds=1",
        "--batches=64,1024", "--images=1024",
    )  # fmt: skip
    found = {(line.arm, line.batch_size): line for line in run.lines}
    assert list(found) == [
        (arm, batch) for arm in ("1 context", "2 contexts") for batch in (64, 1024)
    ]
    more = found["1 context", 1024].peak_bytes - found["1 context", 64].peak_bytes
    kept = 4 * 40_370 * (1024 - 64)  # bytes of all layers' outputs
    assert 0.8 * kept < more < 3 * kept


@pytest.mark.parametrize("total", [2_000])
def test_averaging_after_fewer_steps_ends_nearer(tmp_path, total):
    run = record_of("local_steps", tmp_path, "--rounds=1", f"--total={total}")
    errors = {(line.arm, line.steps): line.error for line in run.lines}
    assert min(errors.values()) > 0  # nothing is below LAPACK's optimum
    assert errors["2 devices", 20] < errors["2 devices", 2_000]
