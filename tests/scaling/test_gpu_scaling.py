"""The GPU map: the records of what the peers print. The peers here are scripts."""

import runpy
import sys
from pathlib import Path

import arms
import numpy
import pytest

from d2lpar import datasets
from d2lpar.records import files
from d2lpar.records.kinds import StepRecord
from d2lpar.scaling import figure

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu_scaling.py"
# An epoch that warms up, and then one for each of --epochs.
DDP = """
import json, sys
job = json.loads(sys.stdin.readline())
n, batch, steps = job["num_devices"], job["global_batch_size"], job["steps"]
for epoch in range(job["num_epochs"]):
    step = 9 if epoch == 0 else (0.001 + 0.0001 * n + 1e-5 * batch / n) * epoch
    print(json.dumps({"seconds": step * steps, "steps": steps}))
"""
D2L = """
import json, sys
if json.loads(sys.stdin.readline())["num_devices"] == 2:
    print(json.dumps({"error": "2 GPUs: PyTorch sees 1 here"}))
    sys.exit(2)
for seconds in (100, 2.35, 4.70):  # of an epoch of 60,000 images
    print(json.dumps({"seconds": seconds}))
"""


def test_the_records_of_what_peers_print(tmp_path, monkeypatch, capsys):
    """Steps are epochs divided, without the one that warms up."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra peers)")
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "ddp.py").write_text(DDP)
    (tmp_path / "peers" / "d2l_pytorch.py").write_text(D2L)
    X, y = numpy.zeros((9, 28, 28), "uint8"), numpy.zeros(9, "uint8")
    data = datasets.ImageData(X, y, X, y, name="zeros")
    monkeypatch.setattr(arms, "PEERS", tmp_path / "peers")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"GPU {k}")
    monkeypatch.setattr(datasets, "load", lambda name: data)
    flags = ["--num-devices=1,2", "--batch-sizes=256", "--epochs=2", "--steps=10"]
    argv = [str(BENCHMARK), f"--out={tmp_path}", "--rounds=2", *flags]
    monkeypatch.setattr(sys, "argv", argv)
    runpy.run_path(str(BENCHMARK), run_name="__main__")

    d2l, *ddp = runs = [files.read(path) for path in sorted(tmp_path.glob("*.jsonl"))]
    for n, run in enumerate(ddp, 1):
        assert (run.header.variant, run.header.num_devices) == ("ddp", n)
        assert run.header.devices == [f"gpu({k}) GPU {k}" for k in range(n)]
        one = 0.001 + 0.0001 * n + 1e-5 * 256 / n
        for repeat, step in enumerate(run.lines_of(StepRecord)):
            assert (step.global_batch_size, step.repeat) == (256, repeat)
            assert step.steps == 10 and step.seconds == pytest.approx([one, 2 * one])
    assert set(figure.pictures(ddp)) == {"speedup", "steps"}
    # A peer that does not run has no record; the book's loop takes all 235 steps.
    assert d2l.header.num_devices == 1 and len(runs) == 3
    steps = [(step.steps, step.seconds) for step in d2l.lines_of(StepRecord)]
    assert steps == [(235, [0.01, 0.02])] * 2
    assert "2 GPUs: PyTorch sees 1 here" in capsys.readouterr().err
