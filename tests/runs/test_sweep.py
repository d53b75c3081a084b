"""The runner: fresh processes, records that are kept or left alone, clean ends.

The workloads here are a few lines each, written to a module that the measuring process
imports too: what is tested is what becomes of their records.
"""

import importlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from d2lpar import datasets, devices, least_squares
from d2lpar._mxnet import mx
from d2lpar.datasets import uniform_file
from d2lpar.errors import DiedError, RunError, SettingError
from d2lpar.machine import cores as machine_cores
from d2lpar.records import files
from d2lpar.records.kinds import EpochRecord, Header, PointRecord
from d2lpar.runs import child, sweep
from d2lpar.runs import job as runs_job
from d2lpar.training import Workload

WORKLOADS = """
import os, sys, time
from d2lpar.errors import DivergedError
from d2lpar.records.kinds import EpochRecord

def epoch(n):
    return EpochRecord(epoch=n, seconds=0.5, samples_per_sec=20.0, train_loss=1.0,
                       test_acc=0.5)

def fine(num_devices, *, devices, seed, data, num_epochs):
    print("chatter on standard output")
    os.write(1, b"and from below Python\\n")
    for n in range(1, num_epochs + 1):
        yield epoch(n)

def diverges(num_devices, *, num_epochs, **_):
    yield epoch(1)
    raise DivergedError("training diverged: the loss of epoch 2 is nan")

def refuses(num_devices, **_):
    raise DivergedError("at once")
    yield

def is_killed(num_devices, **_):
    yield epoch(1)
    os.kill(os.getpid(), 9)

def crashes(num_devices, **_):
    yield epoch(1)
    raise KeyError("an error nobody thought of")

def out_of_memory(num_devices, **_):
    yield epoch(1)
    raise MemoryError

def mxnet_error(num_devices, **_):
    from d2lpar._mxnet import np
    yield epoch(1)
    np.dot(np.ones((2, 3)), np.ones((2, 3))).wait_to_read()

def endless(num_devices, **_):
    for n in range(1, 10_000):
        yield epoch(n)
        time.sleep(0.05)

def begins(num_devices, *, path, **_):
    open(path, "w").close()
    yield epoch(1)

def tells(num_devices, *, devices, seed, data, **_):
    names = ("OMP_NUM_THREADS", "MXNET_CPU_TEMP_COPY", "MALLOC_TRIM_THRESHOLD_",
             "NVIDIA_TF32_OVERRIDE", "MXNET_ENFORCE_DETERMINISM",
             "MXNET_CUDNN_AUTOTUNE_DEFAULT")
    facts = {name: os.environ.get(name) for name in names}
    yield EpochRecord(1, 1.0, 1.0, 1.0, 0.5, extra=dict(
        facts, devices=str(devices), seed=seed, data=data.name, pid=os.getpid()))
"""


@pytest.fixture(scope="module", autouse=True)
def workloads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "some_workloads.py").write_text(WORKLOADS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("some_workloads", None)


def swept(jobs, repeats, out):
    """The lines of a sweep whose records go to a folder."""
    return sweep.sweep([replace(job, folder=out) for job in jobs], repeats)


def job(function="fine", num_devices=1, num_epochs=2, **changes):
    train = getattr(importlib.import_module("some_workloads"), function)
    values = {
        "chapter": "test",
        "preset": "quick",
        "workload": Workload(train),
        "devices": "cpu:2",
        "num_devices": num_devices,
        "seed": 7,
        "settings": {"num_epochs": num_epochs},
        "data": {"name": "synthetic", "n_train": 10, "n_test": 5, "seed": 7},
        "command": "d2lpar run test",
        "folder": Path("absent"),
    }
    return runs_job.Job(**{**values, **changes})


def test_a_solvers_points_are_kept_under_the_methods_name(tmp_path):
    solver = job(
        chapter="least_squares",
        workload=least_squares.WORKLOAD,
        data={"rows": 50, "columns": 5, "seed": 7},
        settings={"method": "cgls", "num_epochs": 1},
        num_devices=2,
        variant="cgls",
    )
    header, *points = swept([solver], 1, tmp_path / "out")
    run = files.read(tmp_path / "out" / "quick-seed7-cgls-cpu2.jsonl")
    assert run.header.variant == header.variant == "cgls"
    assert run.of(PointRecord) == tuple(points) and run.epochs == ()
    assert points[-1].distance < 1e-9 and len(points[-1].device_residual_norms) == 2
    assert run.header.settings["rows"] == 50 and not run.header.synthetic


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_sweep_leaves_a_record_a_count(tmp_path, capfd):
    out = tmp_path / "figures" / "test"
    items = list(swept([job(num_devices=1), job(num_devices=2)], 1, out))
    assert [type(i) for i in items] == [Header, EpochRecord, EpochRecord] * 2
    stem = "quick-synthetic-seed7"
    assert names(out) == [f"{stem}-cpu1.jsonl", f"{stem}-cpu2.jsonl"]
    runs = [files.read(out / f"{stem}-cpu{n}.jsonl") for n in (1, 2)]
    assert [r.header.num_devices for r in runs] == [1, 2]
    assert [e.epoch for e in runs[1].epochs] == [1, 2]
    assert capfd.readouterr().out == ""  # a workload's chatter is no record's line


def test_the_header_says_where_the_record_comes_from(tmp_path):
    header = next(iter(swept([job(num_devices=2)], 1, tmp_path / "out")))
    cores = machine_cores.usable_cores()
    threads = machine_cores.threads_per_context(2)
    noun = "thread" if threads == 1 else "threads"
    assert header.devices[1].startswith(f"cpu(1) ({threads} {noun} of {cores} core")
    assert (header.device_kind, header.num_devices) == ("cpu", 2)
    assert header.threads_per_device == threads and header.cores == cores
    assert header.synthetic and header.dataset == "synthetic-fashion"
    assert len(header.dataset_sha256) == 64
    assert header.settings == {
        "num_epochs": 2, "n_train": 10, "n_test": 5, "threads": None,
    }  # fmt: skip
    assert header.command == "d2lpar run test" and header.seed == 7
    assert set(header.versions) == {"d2lpar", "mxnet", "numpy", "python"}
    assert header.versions["mxnet"].startswith("1.")
    assert header.cpu_model and header.date.endswith("+00:00")


def test_every_count_has_a_fresh_process_with_its_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_cores, "usable_cores", lambda: 6)
    monkeypatch.setattr(machine_cores, "USER_THREADS", None)
    jobs = [job("tells", n) for n in (1, 2)] + [job("tells", 1, threads=4)]
    items = list(swept(jobs, 1, tmp_path / "out"))
    seen = [item.extra for item in items if isinstance(item, EpochRecord)]
    assert [t["OMP_NUM_THREADS"] for t in seen] == ["6", "3", "4"]
    assert len({t["pid"] for t in seen} | {os.getpid()}) == 4
    assert {t["MXNET_CPU_TEMP_COPY"] for t in seen} == {"256"}
    assert {t["MALLOC_TRIM_THRESHOLD_"] for t in seen} == {str(2**32)}
    assert seen[1]["devices"] == "[cpu(0), cpu(1)]"
    assert {(t["seed"], t["data"]) for t in seen} == {(7, "synthetic-fashion")}


def test_work_that_goes_to_openblas_gets_a_thread_a_context(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_cores, "usable_cores", lambda: 6)
    monkeypatch.setattr(machine_cores, "USER_THREADS", None)
    jobs = [job("tells", n, one_thread_each=True) for n in (1, 2)]
    items = list(swept(jobs, 1, tmp_path / "out"))
    seen = [item.extra for item in items if isinstance(item, EpochRecord)]
    assert [t["OMP_NUM_THREADS"] for t in seen] == ["6", "1"]


def test_tf32_and_determinism_reach_the_measuring_process(tmp_path, monkeypatch):
    for name in ("NVIDIA_TF32_OVERRIDE", *runs_job.DETERMINISTIC):
        monkeypatch.delenv(name, raising=False)
    exact, changed = (
        list(swept([job("tells", tf32=on, deterministic=on)], 1, tmp_path))[-1].extra
        for on in (False, True)
    )
    assert exact["NVIDIA_TF32_OVERRIDE"] == "0"
    assert exact["MXNET_ENFORCE_DETERMINISM"] is None
    assert exact["MXNET_CUDNN_AUTOTUNE_DEFAULT"] is None
    assert changed["NVIDIA_TF32_OVERRIDE"] == "1"
    assert changed["MXNET_ENFORCE_DETERMINISM"] == "1"
    assert changed["MXNET_CUDNN_AUTOTUNE_DEFAULT"] == "0"


def test_a_header_on_gpus_says_what_computes_there(monkeypatch):
    """As the measuring process writes it: a context of a GPU needs no GPU."""
    for name, value in runs_job.DETERMINISTIC.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    data = datasets.load("synthetic", n_train=10, n_test=5)
    two = [mx.gpu(0), mx.gpu(1)]
    header = child.header_of(job(num_devices=2), two, data)
    assert header.device_kind == "gpu" and header.threads_per_device is None
    facts = header.gpu_build
    assert set(facts) == {
        *("build", "cuda", "cudnn", "driver", "autotune"),
        *("tf32", "peer_access", "deterministic"),
    }
    assert (facts["tf32"], facts["deterministic"]) == (False, True)
    assert facts["autotune"] == "0" and facts["build"]
    assert files.from_line(files.to_line(header)) == header
    on_cpu = child.header_of(job(), [mx.cpu(0)], data)
    assert on_cpu.gpu_build == {}


def test_gpus_get_peer_access_before_the_training(monkeypatch):
    events = []

    def train(num_devices, **_):
        events.append("trains")
        yield from ()

    monkeypatch.setattr(devices, "enable_peer_access", events.append)
    some = replace(job(num_devices=2), workload=Workload(train))
    list(child.measured(some, print))
    assert events == [[mx.cpu(0), mx.cpu(1)], "trains"]


def test_what_the_user_set_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("MXNET_CPU_TEMP_COPY", "64")
    monkeypatch.setattr(machine_cores, "USER_THREADS", 2)
    _, seen = swept([job("tells", 2)], 1, tmp_path / "out")
    assert seen.extra["MXNET_CPU_TEMP_COPY"] == "64"
    assert seen.extra["OMP_NUM_THREADS"] == "2"


def test_repeats_take_turns_and_share_a_record(tmp_path):
    jobs = [job(num_devices=1), job(num_devices=2)]
    items = list(swept(jobs, 2, tmp_path / "out"))
    headers = [item for item in items if isinstance(item, Header)]
    assert [h.num_devices for h in headers] == [1, 2, 1, 2]
    run = files.read(tmp_path / "out" / f"{files.run_name(headers[0])}.jsonl")
    assert [(e.repeat, e.epoch) for e in run.epochs] == [(0, 1), (0, 2), (1, 1), (1, 2)]


@pytest.fixture(scope="module")
def earlier_records(workloads, tmp_path_factory):
    """The folder of a finished sweep on one device and on two."""
    folder = tmp_path_factory.mktemp("earlier")
    list(swept([job(), job(num_devices=2)], 1, folder))
    return folder


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("diverges", "the loss of epoch 2 is nan"),
        ("is_killed", r"killed \(signal 9\), perhaps out of memory on cpu\(0\)"),
        ("crashes", "ended with status 1: KeyError: 'an error nobody thought of'"),
        ("out_of_memory", r"out of memory on cpu\(0\)"),
        ("mxnet_error", "^MXNet: [^\n]*$"),
    ],
)
def test_a_failure_keeps_its_epochs_and_leaves_the_earlier_record(
    tmp_path, caplog, earlier_records, function, says
):
    out = tmp_path / "out"
    shutil.copytree(earlier_records, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(RunError, match=says):
        list(swept([job(function), job(num_devices=2)], 1, out))
    partial = "quick-synthetic-seed7-cpu1.partial.jsonl"
    assert names(out) == sorted([*before, partial])
    assert {name: (out / name).read_bytes() for name in before} == before
    assert len(files.read(out / partial).epochs) == 1
    assert f"{partial} keeps the 1 finished epochs" in caplog.text


def test_a_failure_in_a_later_count_publishes_none(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RunError):
        list(swept([job(), job("diverges", 2)], 1, out))
    assert all(name.endswith(".partial.jsonl") for name in names(out))
    assert len(names(out)) == 2


def test_a_failure_before_any_epoch_leaves_nothing(tmp_path):
    with pytest.raises(RunError, match="at once"):
        list(swept([job("refuses")], 1, tmp_path / "out"))
    assert names(tmp_path / "out") == []


@pytest.mark.parametrize("flag", ["resume", "checkpoint_every"])
def test_a_workload_without_a_state_cannot_be_resumed(flag):
    words = f"^--{flag.replace('_', '-')} 1: test cannot be resumed"
    with pytest.raises(SettingError, match=words):
        job(**{flag: 1})


def test_a_device_that_is_not_there_is_said_by_the_process(tmp_path):
    with pytest.raises(RunError, match="devices 'gpu:1': "):
        list(swept([job(devices="gpu:1")], 1, tmp_path / "out"))
    assert names(tmp_path / "out") == []


# Two runs under one name, and what lies where a record is to go

RECORD = "quick-synthetic-seed7-cpu1"


def test_a_second_run_under_the_same_name_is_refused(tmp_path):
    out = tmp_path / "out"
    items = swept([job("endless")], 1, out)
    while not isinstance(next(items), EpochRecord):
        pass
    message = rf"^{out}/{RECORD}: another run writes to it \(process {os.getpid()} on "
    with pytest.raises(RunError, match=message):
        list(swept([job("fine")], 1, out))
    next(items)
    items.close()
    run = files.read(out / f"{RECORD}.partial.jsonl")
    assert [epoch.epoch for epoch in run.epochs] == [1, 2]
    assert names(out) == [f"{RECORD}.partial.jsonl"]  # and no lock
    list(swept([job("fine")], 1, out))


def test_the_process_works_only_when_its_name_is_locked(tmp_path):
    begun = tmp_path / "begun"
    items = sweep.measure(job("begins", settings={"path": str(begun)}))
    assert isinstance(next(items), Header)
    time.sleep(0.5)
    assert not begun.exists()
    assert isinstance(next(items), EpochRecord) and begun.exists()
    items.close()


def test_a_link_in_the_place_of_a_partial_record_is_not_followed(tmp_path):
    (tmp_path / "kept").write_text("precious")
    (tmp_path / f"{RECORD}.partial.jsonl").symlink_to(tmp_path / "kept")
    list(swept([job()], 1, tmp_path))
    assert (tmp_path / "kept").read_text() == "precious"
    assert names(tmp_path) == ["kept", f"{RECORD}.jsonl"]


def test_a_partial_record_that_is_deleted_is_not_begun_without_its_header(tmp_path):
    items, partial = swept([job("endless")], 1, tmp_path), f"{RECORD}.partial.jsonl"
    next(items)
    (tmp_path / partial).unlink()
    with pytest.raises(OSError, match=f"No such file .*{partial}"):
        list(items)
    assert names(tmp_path) == []


def test_what_is_no_file_is_not_replaced_by_a_record(tmp_path):
    for name in (f"{RECORD}.jsonl", f"{RECORD}.partial.jsonl"):
        path = tmp_path / name
        path.mkdir()
        with pytest.raises(OSError, match=f"Is a directory: '{path}'"):
            list(swept([job()], 1, tmp_path))
        path.rmdir()
    assert names(tmp_path) == []


def test_a_record_that_cannot_get_its_name_says_which(tmp_path):
    items, final = swept([job()], 1, tmp_path), tmp_path / f"{RECORD}.jsonl"
    next(items)
    final.mkdir()
    with pytest.raises(OSError, match=f"Is a directory: '{final}'"):
        list(items)
    assert len(files.read(tmp_path / f"{RECORD}.partial.jsonl").epochs) == 2


# Temporary files


@pytest.fixture
def with_file(tmp_path, monkeypatch):
    """A job whose matrix is in a file, and the folder of that."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    train = importlib.import_module("some_workloads").endless
    workload, data = Workload(train, uniform_file), {"rows": 100, "columns": 5}
    yield job(workload=workload, data=data), tmp_path / "tmp"
    tempfile.tempdir = None


def matrices(folder):
    return list(folder.rglob("A.npy"))


@pytest.mark.parametrize("how", ["is closed", "is killed"])
def test_a_process_that_is_ended_leaves_no_temporary_file(with_file, how):
    job, folder = with_file
    items = sweep.measure(job)
    while not isinstance(next(items), EpochRecord):
        pass
    (matrix,) = matrices(folder)
    if how == "is closed":
        items.close()
    else:
        os.kill(int(matrix.parent.name.split("-")[1]), 9)
        with pytest.raises(DiedError, match="was killed"):
            list(items)
    assert names(folder) == []


def test_nor_does_one_whose_parent_is_killed(with_file):
    job, folder = with_file
    words = [sys.executable, "-m", "d2lpar.runs.child"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as process:
        pickle.dump(job, process.stdin)
        process.stdin.flush()
        assert isinstance(pickle.load(process.stdout), Header)
        assert matrices(folder)
        process.stdin.close()
        assert process.wait(timeout=10) == 1
    assert names(folder) == []


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_sweep_that_is_closed_ends_its_process_and_keeps_its_epochs(tmp_path):
    """What Ctrl-C does, without the signal: test_cli has the signal."""
    out = tmp_path / "out"
    items = swept([job("endless")], 1, out)
    for item in items:
        if isinstance(item, EpochRecord) and item.epoch == 3:
            break
    begin = time.monotonic()
    items.close()
    assert time.monotonic() - begin < 2
    (name,) = names(out)
    assert name.endswith(".partial.jsonl")
    assert len(files.read(out / name).epochs) == 3


def test_the_process_does_not_outlive_the_one_that_started_it():
    process = subprocess.Popen(
        [sys.executable, "-m", "d2lpar.runs.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    pickle.dump(job("endless"), process.stdin)
    process.stdin.flush()
    assert isinstance(pickle.load(process.stdout), Header)
    process.stdin.close()
    assert process.wait(timeout=10) == 1
    process.stdout.close()
    assert not alive(process.pid)
