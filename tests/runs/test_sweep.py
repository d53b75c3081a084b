"""Measurements in fresh processes: records, repeats, locks, failures, interrupts."""

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from d2lpar import experiments
from d2lpar.errors import DiedError, RunError, SettingError
from d2lpar.records import files
from d2lpar.records.kinds import EpochRecord, Header
from d2lpar.runs import sweep
from d2lpar.runs.job import Job

# A module that measuring processes import: an experiment's functions, without MXNet's
# time. Each `how` is a setting of the job.
WORK = """
import os, signal, time
from d2lpar import datasets
from d2lpar.errors import SettingError
from d2lpar.records.kinds import EpochRecord

def load(n=60, **_):
    return datasets.load("sample", n_train=n, n_test=20)

def measure(num_devices, *, devices, seed, data, num_epochs=2, how=""):
    for epoch in range(1, num_epochs + 1):
        if epoch == 2:
            if how == "refuses": raise SettingError("lr nan: write a number")
            if how == "dies": os.kill(os.getpid(), signal.SIGKILL)
            if how == "crashes": raise KeyError("x")
            if how == "sleeps": time.sleep(60)
            if how == "memory": raise MemoryError("bad_alloc")
        print("printed by a library")
        yield EpochRecord(
            epoch=epoch, seconds=1.0, samples_per_sec=float(os.getpid()),
            train_loss=1.0, test_acc=0.5,
            eval_seconds=float(os.environ["OMP_NUM_THREADS"]),
        )
"""


@pytest.fixture(scope="module", autouse=True)
def work(tmp_path_factory):
    """The experiment "work", here and in measuring processes."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "toy_work.py").write_text(WORK)
    site = (
        "from d2lpar import experiments\n"
        "experiments.EXPERIMENTS['work'] = experiments.Experiment('work', 0, '', '', "
        "presets={}, measure='toy_work:measure', load='toy_work:load')\n"
    )
    (folder / "sitecustomize.py").write_text(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        exec(site, {})
        yield
    del experiments.EXPERIMENTS["work"]


def job(folder, num_devices=1, **changes):
    made = Job(
        experiment="work",
        preset="quick",
        devices="cpu:2",
        num_devices=num_devices,
        seed=0,
        settings={"num_epochs": 2},
        data={},
        command="d2lpar run work",
        folder=str(folder),
    )
    return replace(made, **changes)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")


def test_a_sweep_leaves_a_record_per_count_as_the_lines_came(tmp_path, capfd):
    lines = list(sweep.sweep([job(tmp_path, 1), job(tmp_path, 2)]))
    assert names(tmp_path) == ["quick-sample-cpu1.jsonl", "quick-sample-cpu2.jsonl"]
    runs = [files.read(tmp_path / name) for name in names(tmp_path)]
    assert lines == [item for run in runs for item in (run.header, *run.lines)]
    assert "printed by a library" not in capfd.readouterr().out
    one, two = (run.lines[0] for run in runs)
    assert one.samples_per_sec != two.samples_per_sec  # processes of their own
    assert (one.eval_seconds, two.eval_seconds) == (2.0, 1.0)  # cores shared out


def test_the_header_says_where_the_record_comes_from(tmp_path):
    header = next(iter(sweep.sweep([job(tmp_path, 2, threads=3)])))
    assert (header.chapter, header.num_devices, header.seed) == ("work", 2, 0)
    assert header.settings == {
        "num_epochs": 2,
        "n_train": 60,
        "n_test": 20,
        "threads": 3,
    }
    assert header.dataset == "fashion-mnist-sample" and not header.synthetic
    assert {"d2lpar", "mxnet", "numpy", "python"} <= header.versions.keys()


def test_repeats_take_turns_and_share_a_record(tmp_path):
    lines = list(sweep.sweep([job(tmp_path, 1), job(tmp_path, 2)], repeats=2))
    headers = [line.num_devices for line in lines if isinstance(line, Header)]
    assert headers == [1, 2, 1, 2]
    run = files.read(tmp_path / "quick-sample-cpu1.jsonl")
    assert [(e.repeat, e.epoch) for e in run.epochs] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_environment_of_a_measuring_process(monkeypatch, tmp_path):
    variables = job(tmp_path, 2).variables()
    assert variables["OMP_NUM_THREADS"] == "1"
    assert {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} <= variables.keys()
    both = job(tmp_path, tf32=True, deterministic=True).variables()
    assert both["NVIDIA_TF32_OVERRIDE"] == both["MXNET_ENFORCE_DETERMINISM"] == "1"
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "7")  # what the user set stays
    assert job(tmp_path).variables()["MALLOC_MMAP_THRESHOLD_"] == "7"
    solver = replace(job(tmp_path, 2), experiment="least_squares")
    assert solver.variables()["OMP_NUM_THREADS"] == "1"  # OpenBLAS deadlocks with more


@pytest.mark.parametrize(
    "how, error, words",
    [
        ("refuses", RunError, "lr nan"),
        ("dies", DiedError, "2 devices was killed .signal 9.*are free now"),
        ("crashes", DiedError, "KeyError: 'x'"),
        ("memory", RunError, "out of memory"),
    ],
)
def test_a_failure_keeps_its_epochs_and_the_earlier_record(tmp_path, how, error, words):
    earlier = tmp_path / "quick-sample-cpu2.jsonl"
    earlier.write_text("earlier")
    failing = job(tmp_path, 2, settings={"num_epochs": 2, "how": how})
    with pytest.raises(error, match=words) as caught:
        list(sweep.sweep([failing]))
    assert "\n" not in str(caught.value)
    assert earlier.read_text() == "earlier"
    partial = files.read(tmp_path / "quick-sample-cpu2.partial.jsonl")
    assert [e.epoch for e in partial.epochs] == [1]


def test_a_failure_in_a_later_count_publishes_none(tmp_path):
    failing = job(tmp_path, 2, settings={"num_epochs": 2, "how": "refuses"})
    with pytest.raises(RunError):
        list(sweep.sweep([job(tmp_path, 1), failing]))
    assert names(tmp_path) == [
        "quick-sample-cpu1.partial.jsonl",
        "quick-sample-cpu2.partial.jsonl",
    ]


def test_a_failure_before_any_epoch_leaves_nothing(tmp_path):
    with pytest.raises(RunError, match="9,999|9999"):
        list(sweep.sweep([job(tmp_path, data={"n": 9_999})]))
    assert names(tmp_path) == []


@pytest.mark.parametrize("flag", ["resume", "checkpoint_every"])
def test_what_has_no_state_cannot_be_resumed(tmp_path, flag):
    with pytest.raises(SettingError, match="cannot be resumed"):
        job(tmp_path, **{flag: 1})


def test_a_second_run_under_the_same_name_is_refused(tmp_path):
    slow = job(tmp_path, settings={"num_epochs": 2, "how": "sleeps"})
    with closing(sweep.sweep([slow])) as first:
        assert isinstance(next(first), Header)
        with pytest.raises(RunError, match="another run writes to it"):
            list(sweep.sweep([job(tmp_path)]))
        next(first)
    list(sweep.sweep([job(tmp_path)]))  # released with the first


def test_links_devices_and_folders_in_the_place_of_records_stay(tmp_path):
    (tmp_path / "elsewhere").write_text("not ours")
    partial = tmp_path / "quick-sample-cpu1.partial.jsonl"
    os.mkfifo(partial)
    with pytest.raises(OSError, match=partial.name):
        list(sweep.sweep([job(tmp_path)]))
    partial.unlink()
    (tmp_path / "quick-sample-cpu1.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        list(sweep.sweep([job(tmp_path)]))


def test_a_partial_record_that_is_deleted_is_not_begun_without_its_header(tmp_path):
    lines = sweep.sweep([job(tmp_path)])
    next(lines)
    next(lines)
    (tmp_path / "quick-sample-cpu1.partial.jsonl").unlink()
    with pytest.raises(OSError) as caught:
        list(lines)
    assert caught.value.errno == errno.ENOENT and names(tmp_path) == []


def test_a_sweep_that_is_closed_ends_its_process_and_keeps_its_epochs(tmp_path):
    slow = job(tmp_path, settings={"num_epochs": 2, "how": "sleeps"})
    with closing(sweep.sweep([slow])) as lines:
        epoch = next(itertools.dropwhile(lambda x: isinstance(x, Header), lines))
    assert isinstance(epoch, EpochRecord)
    with pytest.raises(ProcessLookupError):
        os.kill(int(epoch.samples_per_sec), 0)
    assert names(tmp_path) == ["quick-sample-cpu1.partial.jsonl"]


def test_ctrl_c_stops_a_training_with_a_checkpoint_that_resumes(real_run, tmp_path):
    """The command as a user interrupts it; then --resume last, bit for bit."""
    words = [
        sys.executable, "-m", "d2lpar", "run", "multiple_gpus", "--data=sample",
        "--devices=cpu:2", "--num-devices=2", "--num-epochs=3",
        "--global-batch-size=500", f"--out={tmp_path}",
    ]  # fmt: skip
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        # An epoch is remembered after its line: the second line says the first is.
        if "epoch 2/3" in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.stderr.read()
    assert process.wait(60) == 130, said
    assert "--resume last" in said
    assert len(list((tmp_path / "multiple_gpus").glob("*.safetensors"))) == 1
    done = subprocess.run([*words, "--resume=last"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, whole = (
        files.read(folder / "multiple_gpus" / "custom-sample-cpu2.jsonl")
        for folder in (tmp_path, real_run.folder)
    )
    assert [e.train_loss for e in ours.epochs] == [e.train_loss for e in whole.epochs]
    assert [e.test_acc for e in ours.epochs] == [e.test_acc for e in whole.epochs]
    assert ours.header.settings["resumed_at"] in (1, 2)


def test_a_job_travels_as_json(tmp_path):
    made = job(tmp_path, resume=None, settings={"num_epochs": 1, "a": [1, 2]})
    assert Job(**json.loads(json.dumps(made.as_json()))) == made
