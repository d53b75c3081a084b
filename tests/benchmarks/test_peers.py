"""benchmarks/peers.py: the processes it starts, and what it makes of their answers."""

import importlib.util

import peers
import pytest
from arms import table

from d2lpar.machine import host
from d2lpar.records import files
from d2lpar.records.kinds import ArmSample

DATA = {"name": "sample", "n_train": 500, "n_test": 100}
RECIPE = {"num_epochs": 3, "global_batch_size": 64, "lr": 0.2, "seed": 3}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def arms(*chosen, names=peers.PEERS, check=""):
    chosen = peers.Choice(*chosen)
    return {arm.name: arm for arm in peers.arms_of(names, chosen, DATA, RECIPE, check)}


def test_rows_on_a_cpu_have_the_same_threads_in_all():
    for name, arm in arms("cpu", [1, 2], check="first.npz").items():
        wanted = {"num_epochs": 3, "global_batch_size": 64, "lr": 0.2}
        threads = "2" if "2 threads each" in name else "4"
        if "JAX" in name:
            wanted, threads = {**wanted, "threads": 4}, None  # as many as its job names
        if "as the book has it" in name:
            threads = None
        assert arm.environment["OMP_NUM_THREADS"] == threads, name
        assert arm.is_peer == (not name.startswith("d2lpar"))
        if arm.is_peer:
            wanted |= {"check": "first.npz", "data": "sample", "n_train": 500}
            assert arm.environment["CUDA_VISIBLE_DEVICES"] == ""
        assert wanted.items() <= arm.job.items()
    found = arms("cpu", [1, 2], 1, names=["pytorch_loop", "ddp"])
    threads = [arm.environment["OMP_NUM_THREADS"] for arm in found.values()]
    assert threads == ["1", "1", "1", "1", "2", "1", "1"]


def test_rows_on_gpus_see_as_many_gpus_as_they_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    found = arms("gpu", [1, 2])
    for name, arm in found.items():
        if arm.is_peer:
            seen = "4,6" if "2 GPUs" in name else "4"
            assert arm.environment["CUDA_VISIBLE_DEVICES"] == seen, name
    assert sum(arm.is_peer for arm in found.values()) == 16
    captured = found["PyTorch DDP, CUDA graph, 2 GPUs"]
    assert captured.job["device"] == "cuda" and captured.job["form"] == "graph"


@pytest.mark.slow
def test_ours_beside_pytorch(tmp_path, capsys, monkeypatch):
    """All of it, once: the record, the figure, and what is printed."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: extra peers")
    monkeypatch.setattr(peers, "CHAPTERS", {"scratch": "multiple_gpus"})
    peers.main([
        "--peers=pytorch_loop", "--devices=cpu:1", "--threads=1", "--data=sample",
        "--n-train=300", "--n-test=100", "--num-epochs=1", "--global-batch-size=50",
        f"--out={tmp_path}",
    ])  # fmt: skip
    (path,) = tmp_path.glob("*.jsonl")
    assert path.stem == "custom-sample-cpu1"
    run = files.read(path)
    assert run.header.first_losses_checked
    assert run.header.peers == ["PyTorch, plain loop, 1 thread"]
    assert run.header.settings["global_batch_size"] == 50
    assert len(run.lines) == len(run.lines_of(ArmSample)) == 4
    for line in run.lines:
        assert line.samples_per_sec * line.seconds == pytest.approx(300)
    assert table(run) in capsys.readouterr().out
    assert path.with_suffix(".png").stat().st_size > 10_000
