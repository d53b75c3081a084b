"""Measurements in fresh processes: records, repeats, failures, interrupts."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest
from support.factories import epoch, header

from d2lpar import devices, experiments, process
from d2lpar.devices import Device
from d2lpar.errors import DiedError, RunError
from d2lpar.experiments import Experiment
from d2lpar.machine import host
from d2lpar.records import checkpoints, files
from d2lpar.records.kinds import Header
from d2lpar.runs import sweep
from d2lpar.runs.plan import Job

# A module that measuring processes import: an experiment's functions, without MXNet's
# time.
WORK = """
import os
from d2lpar import datasets
from d2lpar.records.kinds import EpochRecord

def load(n=60, **_):
    return datasets.load("sample", n_train=n, n_test=20)

def measure(num_devices, *, devices, seed, data, num_epochs=2):
    for epoch in range(1, num_epochs + 1):
        print("printed by a library")
        yield EpochRecord(
            epoch=epoch, seconds=1.0, samples_per_sec=float(os.getpid()),
            train_loss=1.0, test_acc=0.5,
            eval_seconds=float(os.environ["OMP_NUM_THREADS"]),
        )
"""


TOY = Experiment("work", 0, "", "", presets={}, measure="toy_work:measure",
                 load="toy_work:load")  # fmt: skip


@pytest.fixture(autouse=True)
def work(tmp_path_factory, monkeypatch):
    """The experiment "work", here and in measuring processes, which get this path."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "toy_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(folder))


def job(folder, num_devices=1, chapter="", **changes):
    made = Job(
        experiment=experiments.get(chapter) if chapter else TOY,
        preset="quick",
        devices=devices.names(f"cpu:{num_devices}"),
        seeds=(0,),
        settings={"num_epochs": 2},
        data={},
        command="d2lpar run work",
        folder=folder,
    )
    return replace(made, **changes)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def test_a_job_has_a_process_and_a_header(tmp_path, capfd):
    (run,) = sweep.sweep([job(tmp_path, 2, threads=3)])
    assert names(tmp_path) == ["cpu2.jsonl"]
    assert files.read(run.path) == run  # as it was written
    first, second = run.lines
    assert first.samples_per_sec == second.samples_per_sec != os.getpid()
    assert first.eval_seconds == 3  # threads
    assert "printed by a library" not in capfd.readouterr().out
    header = run.header
    assert (header.chapter, header.num_devices, header.seed) == ("work", 2, 0)
    sizes = {"n_train": 60, "n_test": 20}
    assert header.settings == {"num_epochs": 2, **sizes, "threads": 3}
    assert header.dataset == "fashion-mnist-sample" and not header.synthetic
    assert {"d2lpar", "mxnet", "numpy", "python"} <= header.versions.keys()


@pytest.fixture
def no_process(monkeypatch):
    """Measurements that answer with a header and two epochs at once."""

    def run_job(job):
        turn = [process.TURN] if job.turns else []
        yield from turn
        yield header(len(job.devices), preset="quick")
        for number in (1, 2):
            yield epoch(number, repeat=job.repeat)
            yield from turn

    monkeypatch.setattr(sweep, "run_job", run_job)


def test_repeats_take_turns_and_share_a_record(tmp_path, no_process):
    lines = []
    sweep.sweep([job(tmp_path, n, seeds=(0, 0)) for n in (1, 2)], lines.append)
    headers = [line.num_devices for line in lines if isinstance(line, Header)]
    # Before each turn: an epoch of one context, an epoch of two, ...; then reversed.
    epochs = [line.epoch for line in lines if not isinstance(line, Header)]
    assert headers == [1, 2] * 3 + [2, 1] * 3 and epochs == [1, 1, 2, 2] * 2
    assert names(tmp_path) == ["cpu1.jsonl", "cpu2.jsonl"]
    for name in names(tmp_path):
        counts = [(e.repeat, e.epoch) for e in files.read(tmp_path / name).epochs]
        assert counts == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert [job(tmp_path, seeds=(5, 7), repeat=k).seed for k in (0, 1)] == [5, 7]


# The user's OMP_NUM_THREADS, --threads, and the threads of each context: of one that
# shares 8 cores with another, and of one of least squares, where OpenBLAS deadlocks
# with more than one.
THREADS = [
    (None, None, "4", "1"),
    ("3", None, "3", "3"),
    (None, 2, "2", "2"),
    ("3", 2, "2", "2"),
]


@pytest.mark.parametrize(("users", "flag", "shared", "one_each"), THREADS)
def test_threads_of_a_measuring_process(
    monkeypatch, tmp_path, users, flag, shared, one_each
):
    """The parent has imported MXNet, and set a default."""
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    monkeypatch.setattr(host, "set_by_us", set())
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if users:
        monkeypatch.setenv("OMP_NUM_THREADS", users)
    host.set_defaults({"OMP_NUM_THREADS": "1"})
    for chapter, threads in {"": shared, "least_squares": one_each}.items():
        made = job(tmp_path, 2, chapter=chapter, threads=flag)
        assert made.variables()["OMP_NUM_THREADS"] == threads
    one = job(tmp_path, 1, chapter="least_squares", threads=flag)
    assert one.variables()["OMP_NUM_THREADS"] == str(flag or users or 8)


def test_our_variables_give_way_to_the_users(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "set_by_us", set())
    users = {"MXNET_CPU_TEMP_COPY": "4", "MALLOC_MMAP_THRESHOLD_": "7"}
    for name in users:
        monkeypatch.delenv(name, raising=False)
    host.set_defaults({"MXNET_CPU_TEMP_COPY": "256"})  # ours, before MXNet's import
    variables = job(tmp_path, chapter="gan").variables()
    assert variables["MXNET_CPU_TEMP_COPY"] == "16"
    assert variables["MALLOC_MMAP_THRESHOLD_"] == str(2**30)
    monkeypatch.setattr(host, "set_by_us", set())
    for name, value in users.items():
        monkeypatch.setenv(name, value)
    assert not users.keys() & job(tmp_path, chapter="gan").variables().keys()


def test_gpus_launch_a_compiled_lenet_as_cuda_graphs(monkeypatch, tmp_path):
    monkeypatch.delenv("MXNET_ENABLE_CUDA_GRAPHS", raising=False)
    for chapter, kind, asked in (
        ("multiple_gpus_concise", "gpu", True),
        ("scaling", "gpu", True),
        ("multiple_gpus_concise", "cpu", False),
        ("gan", "gpu", False),
    ):
        made = job(tmp_path, chapter=chapter, devices=[Device(kind, 0)])
        assert ("MXNET_ENABLE_CUDA_GRAPHS" in made.variables()) == asked


def test_a_record_that_is_replaced_is_named_and_a_longer_one_kept(
    tmp_path, monkeypatch, caplog
):
    epochs = [epoch(1), epoch(2), epoch(3)]

    def run_of(count):
        lines = [header(), *epochs[:count]]
        monkeypatch.setattr(sweep, "run_job", lambda job: (yield from lines))
        sweep.sweep([job(tmp_path)])

    run_of(2)
    assert not caplog.text
    run_of(3)
    path = tmp_path / "cpu1.jsonl"
    assert f"this replaces cpu1.jsonl of {sweep.date_of(path)}\n" in caplog.text
    run_of(1)
    kept = next(name for name in names(tmp_path) if ".of-20" in name)
    assert f"was longer, and is kept as {kept}" in caplog.text
    assert [len(files.read(tmp_path / n).lines) for n in (kept, "cpu1.jsonl")] == [3, 1]
    assert files.found(tmp_path) == [tmp_path / "cpu1.jsonl"]


def test_a_failure_keeps_its_epochs_and_the_earlier_record(tmp_path, monkeypatch):
    def dies(*arguments, **how):
        yield from [header(2, preset="quick"), epoch(1)]
        raise DiedError("killed (signal 9)")

    monkeypatch.setattr(sweep.process, "results", dies)
    earlier = tmp_path / "cpu2.jsonl"
    earlier.write_text("earlier")
    words = "2 devices: killed"
    with pytest.raises(DiedError, match=words) as caught:
        sweep.sweep([job(tmp_path, 2)])
    assert "\n" not in str(caught.value)
    assert earlier.read_text() == "earlier"
    partial = tmp_path / "cpu2.partial.jsonl"
    assert [e.epoch for e in files.read(partial).epochs] == [1]
    # The next run renames it.
    lines = [header(2, preset="quick"), epoch(1)]
    monkeypatch.setattr(sweep.process, "results", lambda *a, **how: (yield from lines))
    sweep.sweep([job(tmp_path, 2)])
    final, former = names(tmp_path)
    assert final == "cpu2.jsonl" and former.startswith("cpu2.of-20")


def test_a_second_run_under_the_same_name_is_refused(tmp_path, no_process):
    def begin_another(line):
        with pytest.raises(RunError, match="another run writes to it"):
            sweep.sweep([job(tmp_path)])

    sweep.sweep([job(tmp_path)], begin_another)
    sweep.sweep([job(tmp_path)])  # released with the first


@pytest.mark.slow
def test_ctrl_c_stops_a_training_with_a_checkpoint(tmp_path):
    """The command as a user interrupts it."""
    words = [
        sys.executable, "-m", "d2lpar", "run", "multiple_gpus", "--dry-run",
        "--data=sample", "--devices=cpu:2", "--num-devices=2", "--num-epochs=500",
        f"--out={tmp_path}",
    ]  # fmt: skip
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "epoch 1/500" in line:
            break
    measuring = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130, said
    assert measuring
    limit = time.monotonic() + 20
    for child in measuring:
        with suppress(psutil.NoSuchProcess):  # or it has ended, and is not yet reaped
            while child.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < limit
                time.sleep(0.05)
    (record,) = tmp_path.glob("multiple_gpus/*/cpu2.partial.jsonl")
    run = files.read(record)
    (path,) = record.parent.glob("*.safetensors")
    assert f"continue with the same flags and --resume={path}\n" in said
    saved = checkpoints.load(path)
    assert saved.lines[: 1 + len(run.lines)] == (run.header, *run.lines)
