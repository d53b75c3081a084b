"""Several workers: parts of a batch, and W workers x D devices equal one device.

Where workers really communicate, each is a process of a launch on loopback.
"""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.command import d2lpar

from d2lpar import datasets, lenet, lenet_concise, lenet_workers
from d2lpar._mxnet import gluon
from d2lpar.errors import SettingError
from d2lpar.records import checkpoints, files
from d2lpar.runs import child
from d2lpar.workers import node, plan, supervisor
from d2lpar.workers.group import Workers
from d2lpar.workers.supervisor import Process, free_port, supervise

# 4 batches, the last of 2 samples: the third of three workers has none.
SETTINGS = {"num_epochs": 2, "global_batch_size": 50, "lr": 0.2}
DATA = {"n_train": 152, "n_test": 50}


def test_the_environment_says_which_worker_it_is(monkeypatch):
    planned = plan.plan(3, 2, ["run"], kvstore="dist_async", threshold=0.25)
    for name, value in planned[-1].environment.items():
        monkeypatch.setenv(name, value)
    info = node.worker_info()
    assert info == node.WorkerInfo(2, 3, 2, "dist_async", 0.25)
    assert info.variant == "async-2bit"
    assert info.launched_by == (
        "d2lpar launch --workers 3 --servers 2 --kvstore dist_async --compress 0.25 -- "
    )
    assert node.WorkerInfo(0, 1, 1).variant == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("D2LPAR_WORKER", "3"),
        ("D2LPAR_WORKER", "-1"),
        ("DMLC_NUM_WORKER", "0"),
        ("DMLC_NUM_SERVER", "0"),
        ("DMLC_ROLE", ""),
        ("D2LPAR_KVSTORE", "zzz"),
        ("D2LPAR_THRESHOLD", "nan"),
    ],
)
def test_variables_that_do_not_fit_are_named(monkeypatch, name, value):
    for known, planned in plan.plan(3, 1, ["run"])[-1].environment.items():
        monkeypatch.setenv(known, planned)
    monkeypatch.setenv(name, value)
    named = "D2LPAR_WORKER" if name == "DMLC_NUM_WORKER" else name
    with pytest.raises(SettingError, match=f"{named} .*does not fit worker"):
        node.worker_info()


LONELY = """
import logging, os
logging.basicConfig(format="%(message)s")
from d2lpar.workers import group, node
group.SECONDS_IN_SILENCE = 0.2
group.Workers(node.worker_info())
"""


def test_a_worker_that_waits_for_others_says_for_whom(tmp_path):
    (tmp_path / "lonely.py").write_text(LONELY)
    roles = plan.plan(2, 1, [sys.executable, str(tmp_path / "lonely.py")])[:-1]
    said, heard = [], threading.Event()

    def note(role, line):
        said.append(line)
        if "waits for" in line:
            heard.set()

    address = roles[0].environment["DMLC_PS_ROOT_URI"]
    port = {"DMLC_PS_ROOT_PORT": str(free_port(address))}
    for role in roles:
        role.environment.update(port)
    running = [Process(role, note) for role in roles]
    heard.wait(timeout=60)
    for process in running:
        process.popen.kill()
        process.popen.wait()
    assert any("worker 0 of 2 (DMLC_NUM_WORKER=2, DMLC" in line for line in said), said
    assert "waits for the scheduler, the servers and the other workers" in said[-1]


def test_a_restart_resumes_from_the_last_checkpoint_of_this_launch(
    monkeypatch, tmp_path
):
    path = tmp_path / "run.epoch000001.safetensors"
    path.write_bytes(b"")
    job = SimpleNamespace(folder=tmp_path, resume="mine")
    assert child.resume_of(job) == "mine"
    for seconds, expected in ((1, "mine"), (-1, "last")):
        since = str(path.stat().st_mtime + seconds)
        monkeypatch.setenv("D2LPAR_RESUME_SINCE", since)
        assert child.resume_of(job) == expected


@pytest.mark.parametrize(("now", "since"), [(1060, 1000), (460, 400), (9060, 1000)])
def test_files_of_a_launch_are_known_after_the_clock_was_set(monkeypatch, now, since):
    """After a minute, by the monotonic clock."""
    clocks = SimpleNamespace(time=lambda: now, monotonic=lambda: 65)
    monkeypatch.setattr(supervisor, "time", clocks)
    assert supervisor.begun(1000, 5) == since


# Workers that sum, solve and train

WORKER = f"""
import json, os, sys
import numpy
os.chdir(sys.argv[1])
from d2lpar import datasets, lenet, lenet_workers
from d2lpar._mxnet import np
from d2lpar.workers.group import Workers
from d2lpar.workers.node import worker_info

workers = Workers(worker_info())
count, number = workers.count, workers.number

# Gradients are pushed at once; values that are pulled must not be their sums.
values = [np.zeros(1000) for _ in range(100)]
for key, value in enumerate(values, 2_000_000):
    workers.kvstore.broadcast(key, np.full(1000, float(key)), value)
    gradient = np.full(1000, -1.0)
    workers.kvstore.pushpull(key, gradient, out=gradient)
    assert (gradient.asnumpy() == -count).all()
numpy.save(f"values-{{number}}.npy", [value.asnumpy() for value in values])

facts = [{{"a": [1, None]}}, "", 2]
assert workers.gather(facts[number]) == facts[:count]
rows_of_all = numpy.outer(1 + numpy.arange(count), [1e300, 0.1, 5e-324, numpy.pi])
assert (workers.total(rows_of_all[number]) == rows_of_all.sum(axis=0)).all()

data = datasets.load("sample", **{DATA})
state = lenet.start(number)  # worker 0's counts, as after a checkpoint
state = workers.state_of_first(state)
epochs = list(lenet_workers.train(
    devices="cpu:2", data=data, state=state, workers=workers, **{SETTINGS},
))
numpy.savez(
    f"trained-{{number}}.npz", *state.params, facts=json.dumps(state.facts()),
    loss=[e.train_loss for e in epochs], acc=[e.test_acc for e in epochs],
)

# What MXNet's server would unpickle: touch unpickled
workers.kvstore._send_command_to_servers(0, "cos\\nsystem\\n(S'touch unpickled'\\ntR.")
workers.leave()
"""


@pytest.fixture(scope="module", params=[3, pytest.param(1, marks=pytest.mark.slow)])
def launched(request, tmp_path_factory):
    """The number of workers on loopback, and the folder of what they have written."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "script.py").write_text(WORKER)
    program = [sys.executable, str(folder / "script.py"), str(folder)]
    supervise(plan.plan(request.param, 1, program), lambda role, line: None)
    return request.param, folder


def test_no_worker_takes_a_sum_for_the_parameter(launched):
    """A push may overtake the first pull: 4 to 46 of 100 were wrong on one worker."""
    count, folder = launched
    for number in range(count):
        values = np.load(folder / f"values-{number}.npy")
        np.testing.assert_array_equal(values.T, [np.arange(100) + 2_000_000] * 1000)


def test_a_server_runs_nothing_that_is_sent_to_it(launched):
    assert not (launched[1] / "unpickled").exists()


def test_workers_times_devices_equal_one_device(launched):
    count, folder = launched
    data, state = datasets.load("sample", **DATA), lenet.start(0)
    train = lenet_concise.train(1, devices="cpu:1", data=data, state=state, **SETTINGS)
    epochs = list(train)
    for number in range(count):
        with np.load(folder / f"trained-{number}.npz") as trained:
            assert json.loads(str(trained["facts"])) == state.facts()
            for k, array in enumerate(state.params):
                np.testing.assert_allclose(
                    trained[f"arr_{k}"], array, rtol=1e-4, atol=1e-6
                )
            losses = [epoch.train_loss for epoch in epochs]
            np.testing.assert_allclose(trained["loss"], losses, rtol=1e-5)
            np.testing.assert_allclose(trained["acc"], [e.test_acc for e in epochs])


class Alone(Workers):
    """Worker 0 of three, whose sums are inexact, without the other two."""

    def __init__(self):
        self.info = node.WorkerInfo(0, 3, 1, "dist_async")
        self.number, self.count, self.synchronous, self._divisor = 0, 3, False, None

    def trainer(self, params, lr):
        return gluon.Trainer(params, "sgd", {"learning_rate": lr}, kvstore=None)


def test_an_own_loss_is_the_mean_of_the_own_samples():
    """Worker 0 has 6 of 14 samples, not a third: its loss was 1.3 times as large."""
    data = datasets.load("sample", n_train=14, n_test=5)
    settings = {"devices": "cpu:1", "lr": 1e-9, "data": data, "global_batch_size": 7}
    state = lenet.start(0, scale=0.1)
    order = state.order(1, 14)
    (epoch,) = lenet_workers.train(
        num_epochs=1, state=state, workers=Alone(), **settings
    )
    rows = [*order[:3], *order[7:10]]
    own = replace(data, X_train=data.X_train[rows], y_train=data.y_train[rows])
    (alone,) = lenet_concise.train(
        num_epochs=1, state=lenet.start(0, scale=0.1), **{**settings, "data": own}
    )
    assert epoch.train_loss == pytest.approx(alone.train_loss, rel=1e-5)


# Whole launches


RUN = ["run", "multiple_gpus_concise", "--data=sample", "--dry-run", "--num-epochs=2"]


def test_a_launch_keeps_the_record_and_the_checkpoints_of_one_training(tmp_path):
    done = d2lpar("launch", "--devices=cpu:1", "--", *RUN, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    state = lenet.start(0)
    data = datasets.load("sample", n_train=128, n_test=64)
    settings = {"num_epochs": 2, "global_batch_size": 64, "lr": 0.3}
    train = lenet_concise.train(1, devices="cpu:1", data=data, state=state, **settings)
    epochs = list(train)
    recipe = "dry-run,num_epochs=2,sample,workers=2"
    path = Path("runs", "multiple_gpus_concise", recipe, "cpu2.jsonl")
    last = path.with_suffix(".epoch000002.safetensors")
    assert checkpoints.load(tmp_path / last).facts == state.facts()
    run = files.read(tmp_path / path)
    assert (run.header.workers, run.header.servers) == (2, 1)
    assert run.header.command.startswith("d2lpar launch --workers 2 --servers 1 -- run")
    for ours, expected in zip(run.epochs, epochs):
        assert ours.train_loss == pytest.approx(expected.train_loss, rel=1e-5)
        # Two steps, in which each worker pushes and pulls 129,068 numbers of 4 bytes.
        # The counter is read while the last pulls may still be on their way.
        assert ours.wire_bytes > 2 * 2 * 129_068 * 4
    assert len(run.epochs) == 2


@pytest.mark.slow
def test_workers_with_other_data_are_refused(tmp_path):
    """Worker 1's seed is another: so is its part of the sample."""
    roles = plan.plan(2, 1, [*plan.PROGRAM, *RUN, f"--out={tmp_path}"])
    roles[-1].command.append("--seed=1")
    with pytest.raises(SettingError, match="worker 1 has another .* than worker 0"):
        supervise(roles, lambda role, line: None)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--kvstore=dist_async", "--compress=0.5"])
def test_other_ways_to_share_train_and_stop_together(tmp_path, flag):
    done = d2lpar("launch", flag, "--devices=cpu:1", "--", *RUN, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("runs/*/*/*.jsonl")
    run = files.read(path)
    assert run.header.variant == ("async" if "async" in flag else "2bit")
    assert len(run.epochs) == 2
