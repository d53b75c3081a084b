"""Several workers: parts of a batch, and W workers x D devices equal one device."""

import os
import sys
import threading
import time

import numpy as np
import psutil
import pytest
from support.command import d2lpar

from d2lpar import datasets, get_params, lenet, lenet_concise, train_batch
from d2lpar.errors import DiedError, SettingError
from d2lpar.records import checkpoints, files
from d2lpar.workers import group
from d2lpar.workers.group import Workers
from d2lpar.workers.launch import launch


@pytest.mark.slow
def test_a_launch_keeps_the_record_and_the_checkpoint_of_one_training(tmp_path):
    """Two workers with two contexts each end where one context does."""
    run = (
        "run multiple_machines --data=sample --dry-run --num-epochs=2 --lr=0.3".split()
    )
    run += ["--devices=cpu:2", "--global-batch-size=65", "--checkpoint-every=1"]
    done = d2lpar("launch", "--workers=2", "--", *run, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    state = lenet.start(0, scale=0.1)
    data = datasets.load("sample", n_train=130, n_test=64)
    settings = {"num_epochs": 2, "global_batch_size": 65, "lr": 0.3}
    expected, params = [], []
    for epoch in lenet_concise.train(
        1, devices="cpu", data=data, state=state, **settings
    ):
        expected.append(epoch)
        params.append(state.tensors())
    (path,) = tmp_path.glob("runs/multiple_machines/*/cpu4.jsonl")
    found = files.read(path)
    assert (found.header.workers, found.header.servers) == (2, 1)
    assert found.header.command.startswith("d2lpar launch --workers 2 -- run multiple")
    losses = [epoch.train_loss for epoch in expected]
    assert [e.train_loss for e in found.epochs] == pytest.approx(losses, rel=1e-5)
    accuracies = [epoch.test_acc for epoch in expected]
    assert [e.test_acc for e in found.epochs] == accuracies
    # In step 3 one input of a ReLU is 5e-7 from 0: rounding decides its sign.
    for epoch, atol in ((1, 1e-6), (2, 3e-4)):
        saved = checkpoints.load(path.with_suffix(f".epoch{epoch:06}.safetensors"))
        for ours, array in zip(saved.tensors.values(), params[epoch - 1].values()):
            np.testing.assert_allclose(ours, array, rtol=1e-5, atol=atol)
    assert saved.facts == state.facts()


# Without MXNet: worker 0 or 1 fails, ends or waits for ever, as the words say.
PROGRAM = """
import os, sys, time
role = os.environ["DMLC_ROLE"]
assert os.environ["DMLC_PS_ROOT_URI"] == "127.0.0.1" and "PS_VERBOSE" not in os.environ
open(f"{role}-{os.getpid()}", "w").close()
if role != "worker" or sys.argv[1] == "waits":
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function: launch two workers that end as the word says; their processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PS_VERBOSE", "2")  # of another cluster

    def started(word):
        program = [sys.executable, "-S", "-c", PROGRAM, word]
        launch(program, workers=2, serving=program)

    yield started
    ids = [int(path.name.partition("-")[2]) for path in tmp_path.iterdir()]
    assert len(ids) >= 1 and not any(map(psutil.pid_exists, ids))


def test_scheduler_and_server_end_with_the_workers(started):
    started("0")


def test_one_that_fails_ends_the_others(started):
    with pytest.raises(DiedError, match="worker [01] ended with status 7"):
        started("7")


def test_ctrl_c_ends_all_of_them(started):
    limit = time.monotonic() + 20

    def interrupt():
        while len(os.listdir()) < 4 and time.monotonic() < limit:
            time.sleep(0.02)
        os.kill(os.getpid(), 2)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        started("waits")


class Store:
    """The key-value store of two workers; the other one always sends `others`."""

    rank, num_workers, others = 1, 2, 0.0

    def init(self, key, value):
        pass

    def pushpull(self, key, values, out):
        out[0][:] = values[0].asnumpy() + self.others


def test_a_worker_divides_its_gradient_by_the_whole_batch(monkeypatch):
    """Where the other's is 0: a step of half the rate on its own half."""
    monkeypatch.setattr(group.mx.kv, "create", lambda name: Store())
    data, state = datasets.load("sample", n_train=10), lenet.start(0, scale=0.1)
    how = {"data": data, "state": state, "lr": 0.2, "global_batch_size": 10}
    next(lenet.workers.train(1, workers=Workers(), devices="cpu", **how))
    own = np.random.default_rng([0, 1]).permutation(10)[5:]
    X, one = datasets.to_float(data.X_train[own]), [group.mx.cpu()]
    replica = get_params(lenet.init_lenet(0.1), *one)
    train_batch(X, data.y_train[own], [replica], one, 0.1)
    for ours, expected in zip(state.params, replica):
        np.testing.assert_allclose(ours, expected.asnumpy(), rtol=1e-4, atol=1e-6)


def test_a_worker_has_its_part_and_refuses_other_facts(monkeypatch):
    monkeypatch.setattr(group.mx.kv, "create", lambda name: Store())
    second = Workers()
    assert second.part(slice(10, 15)) == slice(13, 15)
    assert second.part(slice(10, 11)) == slice(11, 11)  # empty
    with pytest.raises(SettingError, match="workers differ in .*give all the same"):
        second.check_same("seed 1")
    digest = group.hashlib.sha256(b"seed 1").digest()
    second.kvstore.others = np.frombuffer(digest, np.uint16).astype("float32")
    second.check_same("seed 1")
