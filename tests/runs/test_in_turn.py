"""`d2lpar compare --peers`: which processes, in which order, and what comes of it."""

import csv
import importlib.util
import io
import sys

import pytest

from d2lpar import devices
from d2lpar.cli import compare, main
from d2lpar.errors import DeviceError, RunError, SettingError
from d2lpar.machine import builds, host
from d2lpar.records import files
from d2lpar.records.arms import arm_times
from d2lpar.records.kinds import ArmSample
from d2lpar.runs import in_turn
from d2lpar.runs import peers as runs_peers
from d2lpar.runs.in_turn import Arm
from d2lpar.runs.peers import Place, Recipe, kind_and_ids

H200 = builds.CudaDevice("NVIDIA H200", (9, 0))
T4 = builds.CudaDevice("NVIDIA T4", (7, 5))
DATA = {"name": "sample", "data_dir": None, "n_train": 500, "n_test": 100}
RECIPE = Recipe(DATA, num_epochs=2, global_batch_size=64, lr=0.2, seed=3)


@pytest.fixture
def cores(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 4)


# Names and devices


def test_names_of_peers():
    assert runs_peers.names_of("all") == list(runs_peers.PEERS)
    assert runs_peers.names_of("ddp,pytorch_loop,ddp") == ["ddp", "pytorch_loop"]
    with pytest.raises(SettingError, match="peer 'dpp': write all, or some of d2l_not"):
        runs_peers.names_of("ddp,dpp")


def test_a_gpu_that_only_pytorch_can_use_is_taken_where_it_is_named(monkeypatch, cores):
    monkeypatch.setattr(builds, "cuda_devices", lambda: [H200, H200])
    assert kind_and_ids("gpu:2") == ("gpu", [0, 1])
    assert kind_and_ids("gpu:1,") == ("gpu", [1])
    assert kind_and_ids("cpu:3") == ("cpu", [0, 1, 2])
    assert kind_and_ids("auto") == ("cpu", [0, 1, 2, 3])  # MXNet's are these
    with pytest.raises(DeviceError, match="'gpu:3': here is NVIDIA H200, NVIDIA H200"):
        kind_and_ids("gpu:3")
    monkeypatch.setattr(builds, "cuda_devices", lambda: [])
    with pytest.raises(DeviceError, match="here is no GPU"):
        kind_and_ids("gpu")


def test_auto_is_the_gpus_that_mxnet_can_use(monkeypatch, cores):
    monkeypatch.setattr(builds, "cuda_devices", lambda: [H200, T4])
    for build, expected in (
        ("mxnet-cu112", ("gpu", [1])),
        ("mxnet", ("cpu", [0, 1, 2, 3])),
    ):
        monkeypatch.setattr(builds, "installed_builds", lambda b=build: {b: "1"})
        assert kind_and_ids("auto") == expected


# Which processes


def arms(kind, ids, counts, peers=runs_peers.PEERS, threads=None, check=None):
    place = Place(kind, ids, counts, threads)
    found = runs_peers.arms(list(peers), RECIPE, place, check)
    return {arm.name: arm for arm in found}


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
            assert arm.call[-1] == "--job"
            wanted = {"check": "first.npz", "num_epochs": 3, "n_train": 500, "lr": 0.2}
            assert wanted.items() <= arm.job.items()
            assert arm.environment["CUDA_VISIBLE_DEVICES"] == ""
    assert found["PyTorch DDP, 2 processes, 2 threads each"].job["num_devices"] == 2


def test_threads_of_each_context_can_be_fixed(cores):
    found = arms("cpu", [0, 1], [1, 2], ["pytorch_loop", "ddp"], threads=1)
    threads = [arm.environment["OMP_NUM_THREADS"] for arm in found.values()]
    assert threads == ["1", "1", "1", "1", "2", "1", "1"]
    assert "PyTorch, plain loop, 2 threads" in found


def test_our_settings_reach_our_training(cores):
    found = arms("cpu", [0, 1], [2], [])
    arm = next(iter(found.values()))
    assert arm.call == "d2lpar.runs.ours:epochs"
    assert arm.job == {
        "training": "from scratch",
        "data": DATA,
        "num_epochs": 3,
        "global_batch_size": 64,
        "lr": 0.2,
        "seed": 3,
        "num_devices": 2,
        "devices": "cpu:0,1,",
    }
    assert devices.kind_and_numbers(arm.job["devices"]) == ("cpu", [0, 1])


def test_rows_on_gpus(monkeypatch, cores):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = arms("gpu", [0, 2, 3, 5], [1, 2, 4])
    theirs = {
        name: arm.environment["CUDA_VISIBLE_DEVICES"]
        for name, arm in found.items()
        if arm.is_peer
    }
    assert theirs == {
        "d2l's notebook loop, 1 GPU": "0",
        "d2l's notebook loop, 2 GPUs": "0,2",
        "d2l's notebook loop, 4 GPUs": "0,2,3,5",
        "d2l's PyTorch tab, 1 GPU": "0",
        "d2l's PyTorch tab, 2 GPUs": "0,2",
        "d2l's PyTorch tab, 4 GPUs": "0,2,3,5",
        "PyTorch, plain loop, 1 GPU": "0",
        "PyTorch DDP, 1 GPU": "0",
        "PyTorch DDP, 2 GPUs": "0,2",
        "PyTorch DDP, 4 GPUs": "0,2,3,5",
    }
    assert found["PyTorch DDP, 4 GPUs"].job["device"] == "cuda"
    assert "d2lpar concise, 4 GPUs" in found


def test_gpus_are_counted_among_the_visible(monkeypatch, cores):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,7")
    found = arms("gpu", [0, 2], [2], ["ddp"])
    assert found["PyTorch DDP, 2 GPUs"].environment["CUDA_VISIBLE_DEVICES"] == "4,7"


@pytest.mark.parametrize(("users", "expected"), [(None, "0"), ("1", "1")])
def test_all_arms_compute_float32_as_ours_do(monkeypatch, users, expected):
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if users:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", users)
    assert in_turn.exact_float32() == {"NVIDIA_TF32_OVERRIDE": expected}


# In turn, and what is made of it


@pytest.fixture
def record(tmp_path):
    """Write the record of these arms and lines."""

    def write(arms, lines):
        path = tmp_path / "test.jsonl"
        run = in_turn.record(path, arms, lines, work="nothing")
        assert files.read(path) == run
        return run

    return write


def program(name, text, is_peer=True):
    return Arm(name, [sys.executable, "-S", "-c", text], {}, {}, is_peer)


def says(folder, letter, code="print"):
    """An arm that notes its turn and prints a warm-up and two samples."""
    text = f"""
import json, sys
with open({str(folder / "turns")!r}, "a") as f:
    f.write({letter!r})
for seconds in (9.0, 1.0, 3.0):
    line = dict(seconds=seconds, samples_per_sec=500 / seconds, test_acc=0.5)
    print(json.dumps(line))
"""
    if code != "print":
        text += f"sys.exit({code!r})"
    return program(letter, text, letter == "B")


def test_arms_run_in_turn_and_the_first_line_of_each_process_warms_up(tmp_path, record):
    arms = [says(tmp_path, "A"), says(tmp_path, "B")]
    lines = in_turn.measure(arms, rounds=3)
    assert (tmp_path / "turns").read_text() == "ABABAB"
    times = arm_times(record(arms, lines))
    assert [(arm.name, arm.seconds) for arm in times] == [
        ("A", [1.0, 3.0] * 3),
        ("B", [1.0, 3.0] * 3),
    ]
    assert [arm.is_peer for arm in times] == [False, True]
    rounds = [line.round for line in lines if line.arm == "A"]
    assert rounds == [0] * 3 + [1] * 3 + [2] * 3


def test_what_did_not_run_says_why_and_the_others_run(tmp_path, record):
    base = Place("cpu", [0], [1], threads=2).base_name
    refuses = """print('{"error": "step 1: the loss is 2.5"}'); raise SystemExit(2)"""
    arms = [
        says(tmp_path, "A")._replace(name=base),
        program("B", refuses),
        program("C", "import d2l.no"),
        says(tmp_path, "D", "stopped"),
        program("E", ""),
    ]
    run = record(arms, in_turn.measure(arms, rounds=1))
    rows = runs_peers.rows(run, base)
    assert [row.name for row in rows if row.seconds] == [base]
    assert rows[0].seconds.median == 2.0 and rows[0].of_base == 1.0
    assert rows[0].samples_per_sec == pytest.approx(250)
    assert rows[1].why == "step 1: the loss is 2.5"
    assert rows[2].why == "d2l is not installed: pip install 'd2lpar[book]'"
    assert "stopped" in rows[3].why and rows[4].why == "printed no times"
    text = compare.table(rows)
    assert base == "PyTorch, plain loop, 2 threads"
    assert "B: not measured: step 1: the loss is 2.5" in text.splitlines()
    assert text.endswith("base: PyTorch, plain loop, 2 threads")


def test_where_nothing_could_be_measured_that_is_an_error(monkeypatch):
    fails = program("A", "import sys; sys.exit('no way')")
    monkeypatch.setattr(runs_peers, "arms", lambda *args: [fails])
    with pytest.raises(RunError, match="nothing could be measured: .*no way"):
        runs_peers.measure([], RECIPE, Place("cpu", [0], [1]), rounds=1)


def test_without_mxnet_the_peers_are_not_held_to_ours(monkeypatch, tmp_path):
    monkeypatch.setattr(builds, "installed_builds", dict)
    why = runs_peers.write_first_steps(RECIPE, tmp_path / "first.npz")
    assert why == "MXNet is not installed"


def test_a_batch_must_have_a_part_for_every_device():
    class Few:
        y_train = range(50)

    with pytest.raises(SettingError, match="global-batch-size 64: write 2"):
        RECIPE.check(Few, [1, 2])


# As people meet it


@pytest.fixture
def command(monkeypatch, capsys):
    """`d2lpar compare` in this process; its exit status and what it printed."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["d2lpar", "compare", *map(str, arguments)])
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        try:
            status = main.main()
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--peers", "nope"), "peer 'nope': write all"),
        (("--peers", "ddp", "a.jsonl"), "--peers and the record a.jsonl"),
        (("--rounds=2",), "--rounds=2"),
        ((), "name two records, or give --peers"),
        (("--peers", "--devices=cpu:2", "--num-devices=3"), "num-devices 3"),
        (
            ("--peers", "--data=sample", "--n-train=9", "--out={}"),
            "global-batch-size 256: write",
        ),
    ],
)
def test_errors_are_one_line(arguments, words, tmp_path, command):
    status, out, err = command(*(word.format(tmp_path) for word in arguments))
    assert status == 2 and out == ""
    (line,) = err.splitlines()
    assert line.startswith("d2lpar: ") and words in line
    assert not list(tmp_path.iterdir())


def test_ours_beside_pytorch(tmp_path, command, monkeypatch):
    """All of it, once: the record, the figure, and what is printed."""
    all_arms = runs_peers.arms

    def without_concise(*how):
        return [arm for arm in all_arms(*how) if "concise" not in arm.name]

    monkeypatch.setattr(runs_peers, "arms", without_concise)
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed: extra peers")
    status, out, err = command(
        "--peers=pytorch_loop", "--devices=cpu:1", "--data=sample", "--n-train=300",
        "--n-test=100", "--num-epochs=1", "--global-batch-size=50", "--threads=1",
        "--csv", f"--out={tmp_path}",
    )  # fmt: skip
    assert not status, err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["name"] for row in rows] == [
        "d2lpar from scratch, 1 context, 1 thread",
        "PyTorch, plain loop, 1 thread",
    ]
    for row in rows:
        assert row["n"] == "1" and row["why"] == ""
        samples = float(row["samples_per_sec"]) * float(row["median"])
        assert samples == pytest.approx(300)
    assert rows[1]["of_base"] == "1.0"

    (path,) = tmp_path.glob("*.jsonl")
    assert path.stem == "custom-sample-cpu1"
    run = files.read(path)
    assert run.header.first_losses_checked
    assert run.header.command.startswith("d2lpar compare --peers=pytorch_loop")
    assert run.header.peers == ["PyTorch, plain loop, 1 thread"]
    assert run.header.settings["global_batch_size"] == 50
    assert len(run.lines) == len(run.of(ArmSample)) == 4
    assert path.with_suffix(".png").stat().st_size > 10_000
