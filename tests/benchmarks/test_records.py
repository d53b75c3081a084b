"""Tiny runs of benchmarks whose records hold no times of interest; their pictures."""

import subprocess
import sys
from pathlib import Path

import figure
from support.drawn import medians, words
from support.factories import benchmark_header

from d2lpar.records import files
from d2lpar.records.kinds import ArmAbsent, ArmSample, Run

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "figures"


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


def test_memory_grows_with_the_batch(tmp_path):
    run = record_of(
        "memory", tmp_path, "--data=sample", "--rounds=1", "--devices=cpu:1",
        "--batches=64,1024", "--images=1024",
    )  # fmt: skip
    small, large = run.lines
    assert (small.batch_size, large.batch_size) == (64, 1024)
    more = large.peak_bytes - small.peak_bytes
    kept = 4 * 40_370 * (1024 - 64)  # bytes of all layers' outputs
    assert 0.8 * kept < more < 3 * kept


def test_a_benchmark_has_a_panel_per_work_and_says_what_is_absent():
    def sample(arm, seconds, work="small", **fields):
        return ArmSample(arm=arm, round=0, seconds=seconds, work=work, **fields)

    lines = [
        sample("slow", 3.0),
        sample("fast", 9.0, warm_up=True),
        sample("fast", 1.0),
        sample("fast", 20.0, "large"),
        ArmAbsent(arm="PyTorch", round=0, why_not="no GPU", work="large"),
    ]
    run = Run(benchmark_header(peers=["PyTorch"]), tuple(lines))
    picture = figure.drawn(run)
    small, large = picture.axes
    assert medians(small) == [3.0, 1.0]  # in the order they ran
    assert medians(large) == [20.0]
    assert any("no GPU" in text for text in words(picture))
