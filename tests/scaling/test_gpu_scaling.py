"""The GPU map: the records of what the peers print. The peers here are scripts."""

import importlib.util
import sys
from pathlib import Path

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


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Run the benchmark on this test's peers and flags; its records."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra peers)")
    spec = importlib.util.spec_from_file_location("gpu_scaling", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "ddp.py").write_text(DDP)
    (tmp_path / "peers" / "d2l_pytorch.py").write_text(D2L)
    monkeypatch.setattr(module.in_turn, "peers_folder", lambda: tmp_path / "peers")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"GPU {k}")
    X, y = numpy.zeros((9, 28, 28), "uint8"), numpy.zeros(9, "uint8")
    data = datasets.ImageData(X, y, X, y, name="zeros")
    monkeypatch.setattr(module.datasets, "load", lambda name: data)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", [str(BENCHMARK), f"--out={tmp_path}", *flags])
        module.main()
        return [files.read(path) for path in sorted(tmp_path.glob("*.jsonl"))]

    return run


def test_steps_are_epochs_divided_without_the_one_that_warms_up(benchmark):
    runs = benchmark(
        "--num-devices=1,2", "--batch-sizes=32,4096", "--epochs=2", "--steps=10",
        "--rounds=2", "--peers=ddp",
    )  # fmt: skip
    assert [run.header.num_devices for run in runs] == [1, 2]
    for n, run in enumerate(runs, 1):
        assert run.header.variant == "ddp" and run.header.device_kind == "gpu"
        assert run.header.devices == [f"gpu({k}) GPU {k}" for k in range(n)]
        batches = [(step.global_batch_size, step.repeat) for step in run.of(StepRecord)]
        assert batches == [(32, 0), (4096, 0), (32, 1), (4096, 1)]
        for step in run.of(StepRecord):
            one = 0.001 + 0.0001 * n + 1e-5 * step.global_batch_size / n
            assert step.steps == 10
            assert step.seconds == pytest.approx([one, 2 * one])
    assert set(figure.pictures(runs)) == {"map-ddp", "steps-ddp"}


def test_a_peer_that_does_not_run_is_reported_and_has_no_record(benchmark, capsys):
    (run,) = benchmark(
        "--num-devices=1,2", "--batch-sizes=256", "--epochs=2", "--peers=d2l"
    )
    assert run.header.num_devices == 1
    # The book's loop takes every step of an epoch: 235 of 256 images.
    (step,) = run.of(StepRecord)
    assert (step.steps, step.seconds) == (235, [0.01, 0.02])
    assert "2 GPUs: PyTorch sees 1 here" in capsys.readouterr().err
