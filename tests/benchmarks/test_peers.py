"""benchmarks/peers.py: the processes it starts, and what it makes of their answers."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import peers
import pytest
from arms import Arm
from peers import DeviceChoice, Recipe, kind_and_ids

from d2lpar.cli.main import guard
from d2lpar.errors import DeviceError, RunError
from d2lpar.machine import builds, host
from d2lpar.machine.gpus import CudaDevice
from d2lpar.records import files
from d2lpar.records.kinds import ArmSample

H200 = CudaDevice("NVIDIA H200", (9, 0))
T4 = CudaDevice("NVIDIA T4", (7, 5))
DATA = {"name": "sample", "data_dir": None, "n_train": 500, "n_test": 100}
RECIPE = Recipe(DATA, num_epochs=2, global_batch_size=64, lr=0.2, seed=3)


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 4)


def test_a_gpu_that_only_pytorch_can_use_is_taken_where_it_is_named(monkeypatch, cores):
    monkeypatch.setattr(peers, "cuda_devices", lambda: [H200, H200])
    assert kind_and_ids("gpu:2") == ("gpu", [0, 1])
    assert kind_and_ids("gpu:1,") == ("gpu", [1])
    assert kind_and_ids("cpu:3") == ("cpu", [0, 1, 2])
    with pytest.raises(DeviceError, match="'gpu:3': here is NVIDIA H200, NVIDIA H200"):
        kind_and_ids("gpu:3")


def test_auto_is_the_gpus_that_mxnet_can_use(monkeypatch, cores):
    monkeypatch.setattr(peers, "cuda_devices", lambda: [H200, T4])
    for build, expected in (
        ("mxnet-cu112", ("gpu", [1])),
        ("mxnet", ("cpu", [0, 1, 2, 3])),
    ):
        monkeypatch.setattr(builds, "installed_builds", lambda b=build: {b: "1"})
        assert kind_and_ids("auto") == expected


# Which processes


def arms(kind, ids, counts, names=peers.PEERS, threads=None, check=None):
    chosen = DeviceChoice(kind, ids, counts, threads)
    return {arm.name: arm for arm in peers.arms_of(names, RECIPE, chosen, check)}


def test_rows_on_a_cpu_have_the_same_threads_in_all(cores):
    found = arms("cpu", [0, 1], [1, 2], check="first.npz")
    assert {
        name: arm.environment["OMP_NUM_THREADS"] for name, arm in found.items()
    } == {
        "d2lpar from scratch, 1 context, 4 threads": "4",
        "d2lpar from scratch, 2 contexts, 2 threads each": "2",
        "d2lpar concise, 1 context, 4 threads": "4",
        "d2lpar concise, 2 contexts, 2 threads each": "2",
        "d2l's notebook loop, 4 threads": "4",
        "d2l's notebook loop, as the book has it": None,
        "d2l's PyTorch tab, 4 threads": "4",
        "PyTorch, plain loop, 4 threads": "4",
        "PyTorch DDP, 1 process, 4 threads": "4",
        "PyTorch DDP, 2 processes, 2 threads each": "2",
    }
    for name, arm in found.items():
        assert arm.is_peer == (not name.startswith("d2lpar"))
        if arm.is_peer:
            wanted = {"check": "first.npz", "num_epochs": 3, "n_train": 500, "lr": 0.2}
            assert wanted.items() <= arm.job.items()
            assert arm.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert found["PyTorch DDP, 2 processes, 2 threads each"].job["num_devices"] == 2
    ours = found["d2lpar from scratch, 2 contexts, 2 threads each"].job
    assert {"data": DATA, "num_epochs": 3, "seed": 3}.items() <= ours.items()
    assert (ours["num_devices"], ours["devices"]) == (2, "cpu:0,1,")
    found = arms("cpu", [0, 1], [1, 2], ["pytorch_loop", "ddp"], threads=1)
    threads = [arm.environment["OMP_NUM_THREADS"] for arm in found.values()]
    assert threads == ["1", "1", "1", "1", "2", "1", "1"]


def test_rows_on_gpus(monkeypatch, cores):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = arms("gpu", [0, 2, 3], [1, 2])
    theirs = {
        name: arm.environment["CUDA_VISIBLE_DEVICES"]
        for name, arm in found.items()
        if arm.is_peer
    }
    assert theirs == {
        "d2l's notebook loop, 1 GPU": "0",
        "d2l's notebook loop, 2 GPUs": "0,2",
        "d2l's PyTorch tab, 1 GPU": "0",
        "d2l's PyTorch tab, 2 GPUs": "0,2",
        "PyTorch, plain loop, 1 GPU": "0",
        "PyTorch DDP, 1 GPU": "0",
        "PyTorch DDP, 2 GPUs": "0,2",
    }
    assert found["PyTorch DDP, 2 GPUs"].job["device"] == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,7")  # counted among these
    (ddp,) = (a for a in arms("gpu", [0, 2], [2], ["ddp"]).values() if a.is_peer)
    assert ddp.environment["CUDA_VISIBLE_DEVICES"] == "4,7"


# What is made of it


def test_where_nothing_could_be_measured_that_is_an_error(monkeypatch):
    fails = Arm("A", [sys.executable, "-c", "import sys; sys.exit('no way')"], {}, {})
    monkeypatch.setattr(peers, "arms_of", lambda *args: [fails])
    with pytest.raises(RunError, match="nothing could be measured: .*no way"):
        peers.measure([], RECIPE, DeviceChoice("cpu", [0], [1]), rounds=1)


def test_without_mxnet_the_peers_are_not_held_to_ours(monkeypatch, tmp_path):
    monkeypatch.setattr(builds, "installed_builds", dict)
    why = peers.write_first_steps(RECIPE, tmp_path / "first.npz")
    assert why == "MXNet is not installed"


# As people meet it


@pytest.fixture
def command(monkeypatch, capsys):
    """The script in this process; its exit status and what it printed."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["peers.py", *map(str, arguments)])
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        try:
            status = guard(lambda: peers.main(standalone_mode=False))
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peers=nope",), "peer 'nope': write all"),
        (("--peers=",), "--peers"),
        (("--rounds=0",), "--rounds"),
        (("--lr=nan",), "--lr"),
        (("--devices=cpu:2", "--num-devices=3"), "num-devices 3"),
        (
            ("--data=sample", "--n-train=9", "--out={}/out"),
            "global-batch-size 256: write",
        ),
        (("--data=sample", "--out=/dev/null"), "/dev/null"),
    ],
)
def test_errors_are_one_line(arguments, words, tmp_path, command):
    status, out, err = command(*(word.format(tmp_path) for word in arguments))
    assert status == 2 and out == ""
    (line,) = err.splitlines()
    assert line.startswith("d2lpar: ") and words in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("page", ["docs/peers.md", "docs/usage.md"])
def test_the_flags_on_the_pages_exist(page):
    text = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    lines = re.findall(r"^python benchmarks/peers\.py(.*?)(?:#|$)", text, re.MULTILINE)
    known = {flag for option in peers.main.params for flag in option.opts}
    assert lines and set(re.findall(r"--[\w-]+", " ".join(lines))) <= known


def test_ours_beside_pytorch(tmp_path, command, monkeypatch):
    """All of it, once: the record, the figure, and what is printed."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: extra peers")
    all_arms = peers.arms_of

    def without_concise(*how):
        return [arm for arm in all_arms(*how) if "concise" not in arm.name]

    monkeypatch.setattr(peers, "arms_of", without_concise)
    status, out, err = command(
        "--peers=pytorch_loop", "--devices=cpu:1", "--data=sample", "--n-train=300",
        "--n-test=100", "--num-epochs=1", "--global-batch-size=50", "--threads=1",
        "--json", f"--out={tmp_path}",
    )  # fmt: skip
    assert not status, err
    rows = json.loads(out)
    assert [row["name"] for row in rows] == [
        "d2lpar from scratch, 1 context, 1 thread",
        "PyTorch, plain loop, 1 thread",
    ]
    for row in rows:
        assert row["seconds"]["n"] == 1 and row["why"] is None
        samples = row["samples_per_sec"] * row["seconds"]["median"]
        assert samples == pytest.approx(300)
        assert row["of_base"] is None  # of a single sample there is no ratio

    (path,) = tmp_path.glob("*.jsonl")
    assert path.stem == "custom-sample-cpu1"
    run = files.read(path)
    assert run.header.first_losses_checked
    assert run.header.command.startswith("python benchmarks/peers.py --peers=pytorch")
    assert run.header.peers == ["PyTorch, plain loop, 1 thread"]
    assert run.header.settings["global_batch_size"] == 50
    assert len(run.lines) == len(run.lines_of(ArmSample)) == 4
    assert path.with_suffix(".png").stat().st_size > 10_000
