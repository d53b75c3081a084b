"""The GPU map: the records of what the peers print. The peers here are scripts."""

import importlib.util
import sys
from pathlib import Path

import pytest

from d2lpar import datasets
from d2lpar.figures import drawing
from d2lpar.records import files
from d2lpar.records.kinds import StepRecord

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gpu_scaling.py"
# An epoch that warms up, and then one for each of --num-epochs.
DDP = """
import json, sys
flags = dict(word[2:].split("=") for word in sys.argv[1:])
n, batch = int(flags["num-devices"]), int(flags["global-batch-size"])
steps = int(flags["steps"])
for epoch in range(int(flags["num-epochs"])):
    step = 9 if epoch == 0 else (0.001 + 0.0001 * n + 1e-5 * batch / n) * epoch
    print(json.dumps({"seconds": step * steps, "steps": steps}))
"""
D2L = """
import json, sys
if "--num-devices=2" in sys.argv:
    print(json.dumps({"error": "2 GPUs: PyTorch sees 1 here"}))
    sys.exit(2)
for seconds in (100, 2.35, 4.70):  # of an epoch of 60,000 images
    print(json.dumps({"seconds": seconds}))
"""


@pytest.fixture
def benchmark(tmp_path, monkeypatch):
    """Run the benchmark on this test's peers and flags; its records by name."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra peers)")
    spec = importlib.util.spec_from_file_location("gpu_scaling", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers" / "ddp.py").write_text(DDP)
    (tmp_path / "peers" / "d2l_pytorch.py").write_text(D2L)
    monkeypatch.setattr(module.in_turn, "peers_folder", lambda: tmp_path / "peers")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda k: f"GPU {k}")
    data = datasets.load("synthetic", n_train=9, n_test=9)
    monkeypatch.setattr(module.datasets, "load", lambda name: data)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", [str(BENCHMARK), f"--out={tmp_path}", *flags])
        module.main()
        return {path.stem: files.read(path) for path in tmp_path.glob("*.jsonl")}

    return run


def test_steps_are_epochs_divided_without_the_one_that_warms_up(benchmark):
    found = benchmark(
        "--num-devices=1,2", "--batch-sizes=32,64", "--epochs=2", "--steps=10",
        "--rounds=2", "--peers=ddp",
    )  # fmt: skip
    assert {run.header.num_devices for run in found.values()} == {1, 2}
    for run in found.values():
        n = run.header.num_devices
        assert run.header.variant == "ddp" and run.header.device_kind == "gpu"
        assert run.header.devices == [f"gpu({k}) GPU {k}" for k in range(n)]
        batches = [(step.global_batch_size, step.repeat) for step in run.of(StepRecord)]
        assert batches == [(32, 0), (64, 0), (32, 1), (64, 1)]
        for step in run.of(StepRecord):
            one = 0.001 + 0.0001 * n + 1e-5 * step.global_batch_size / n
            assert step.steps == 10
            assert step.seconds == pytest.approx([one, 2 * one])


def test_a_peer_that_does_not_run_is_reported_and_has_no_record(benchmark, capsys):
    found = benchmark(
        "--num-devices=1,2", "--batch-sizes=256", "--epochs=2", "--peers=d2l"
    )
    (run,) = found.values()
    assert run.header.num_devices == 1
    # The book's loop takes every step of an epoch: 235 of 256 images.
    assert run.of(StepRecord) == (StepRecord(256, 235, [0.01, 0.02], []),)
    said = capsys.readouterr().err
    assert "d2l_pytorch.py, 2 devices, batch 256" in said
    assert "2 GPUs: PyTorch sees 1 here" in said


def test_the_map_is_drawn_from_its_records(benchmark, tmp_path):
    found = benchmark("--num-devices=1,2", "--batch-sizes=32,64,128,4096",
                      "--epochs=2", "--steps=10", "--peers=ddp")  # fmt: skip
    drawn = drawing.draw(list(found.values()), tmp_path / "figures", "book")
    assert any(path.suffix == ".png" for path in drawn)
