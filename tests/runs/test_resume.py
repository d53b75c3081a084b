"""An interrupted training that is resumed: the same bits on the same devices."""

import itertools
from functools import partial

import numpy as np
import pytest
from msgspec.structs import asdict, replace
from support.factories import epoch as an_epoch
from support.factories import header

from d2lpar import datasets, experiments, lenet, lenet_concise
from d2lpar.datasets import punks
from d2lpar.devices import names
from d2lpar.errors import CheckpointError
from d2lpar.gan import measures
from d2lpar.gan import training as gan_training
from d2lpar.records import checkpoints, kinds
from d2lpar.runs import child
from d2lpar.runs.plan import Job
from d2lpar.runs.resume import resumable


def a_header(num_devices=2, **settings):
    return header(num_devices, preset="quick", settings={"num_epochs": 4, **settings})


IMAGES = datasets.load("sample", n_train=120, n_test=40)
FACES = punks.load("synthetic", n_train=60)
OF_LENET = {"global_batch_size": 50, "lr": 0.05}
OF_GAN = {"global_batch_size": 25, "frames_every": 2}
spectral = partial(gan_training.start, width=8, d_norm="spectral")
WORKLOADS = {
    "lenet": (lenet, lenet.start, IMAGES, OF_LENET),
    "lenet_concise": (lenet_concise, lenet.start, IMAGES, OF_LENET),
    "gan": (gan_training, gan_training.start, FACES, OF_GAN),
    "spectral gan": (gan_training, spectral, FACES, OF_GAN),
}


@pytest.fixture
def training(request, tmp_path, monkeypatch):
    """A function that trains LeNet, or the parameter; the record that it yields."""
    monkeypatch.setattr(measures, "CHANNELS", (3, 4, 4, 8))  # a tenth of the time
    workload = getattr(request, "param", "lenet")
    module, start, data, settings = WORKLOADS[workload]

    def training(num_epochs, resume=None, every=None, folder=tmp_path):
        header = a_header(**settings, num_epochs=num_epochs)
        train = partial(module.train, 2, devices="cpu:3", data=data, **settings)
        how = {"every": every, "resume": resume}
        return list(resumable(header, start(seed=3), train, folder, **how))

    return training


def saved_at(folder, epoch):
    return checkpoints.load(folder / f"cpu2.epoch{epoch:06d}.safetensors")


def epochs_of(lines):
    return [line for line in lines if isinstance(line, kinds.EPOCHS)]


def without_times(line):
    return {
        name: value
        for name, value in asdict(line).items()
        if name not in ("seconds", "samples_per_sec", "eval_seconds", "resumed")
    }


@pytest.mark.parametrize("training", WORKLOADS, indirect=True)
def test_resumed_it_ends_with_the_same_bits_and_the_same_record(training, tmp_path):
    whole, end = training(4, every=4), saved_at(tmp_path, 4)
    training(2, every=2)
    path = tmp_path / "cpu2.epoch000002.safetensors"
    resumed = training(4, resume=path, every=4, folder=tmp_path / "resumed")
    resumed_end = saved_at(tmp_path / "resumed", 4)
    for name, array in end.tensors.items():
        np.testing.assert_array_equal(resumed_end.tensors[name], array)
    assert resumed_end.facts == end.facts
    expected = [without_times(line) for line in whole[1:]]
    frames_at_2 = [
        {**e, "samples": "", "distances": []}
        if e.get("epoch") == 2 and "fixed" in e
        else e
        for e in map(without_times, resumed[1:])
    ]
    assert frames_at_2 == expected
    marks = [e.resumed for e in epochs_of(resumed)]
    assert marks == ["elsewhere", "elsewhere", "here", None]
    assert resumed[0].settings["resumed_at"] == 2


def test_checkpoints_are_written_when_it_is_time(training, tmp_path):
    training(5, every=2)
    found = checkpoints.of_run(tmp_path, "cpu2")
    assert [checkpoints.load(path).epoch for path in found] == [2, 4]


def test_a_full_disk_does_not_end_the_training(training, tmp_path, monkeypatch, caplog):
    def full(fd):
        raise OSError(28, "No space left on device")

    training(1, every=1)
    (earlier,) = tmp_path.iterdir()
    monkeypatch.setattr(checkpoints.os, "fsync", full)
    assert len(epochs_of(training(4, every=1, resume=earlier))) == 4
    assert caplog.text.count("No space left on device: no checkpoint of epoch") == 3
    assert list(tmp_path.iterdir()) == [earlier]
    assert checkpoints.load(earlier).epoch == 1


@pytest.mark.parametrize("where", [1, 2], ids=["at its line", "at its turn"])
def test_an_epoch_whose_line_is_out_is_in_the_checkpoint(tmp_path, where):
    """Ctrl-C before the next epoch is asked for."""
    job = Job(
        experiment=experiments.get("multiple_gpus"), preset="quick", seeds=(0,),
        devices=names("cpu:2"), settings={"num_epochs": 2}, data={}, command="",
        folder=tmp_path, turns=(1, 2),
    )  # fmt: skip
    lines = child.record(job, a_header(), tmp_path, devices="cpu:2", data=IMAGES)
    _, epoch, *_ = itertools.islice(lines, 1 + where)
    with pytest.raises(KeyboardInterrupt):
        lines.throw(KeyboardInterrupt())
    saved = saved_at(tmp_path, 1)
    assert saved.epoch == 1 and saved.lines[-1] == epoch


SETTINGS = {"n_train": 120, "n_test": 40, "num_epochs": 4, "global_batch_size": 50}
CONTRADICTIONS = {
    "another seed": ("lenet", {"seed": 5}, {}),
    "another data": ("lenet", {"dataset_sha256": "1" * 64}, {}),
    "another n_train; give the flags of: d2lpar run": ("lenet", {}, {"n_train": 100}),
    "another workload": ("gan", {}, {}),
    "give --num-epochs 4 or more": ("lenet", {}, {"num_epochs": 3}),
}


def saved(folder, workload="lenet"):
    """The checkpoint of a training of three epochs that nothing has trained."""
    state = lenet.start(0)
    state.epoch = 3
    lines = a_header(**SETTINGS), *(an_epoch(e) for e in (1, 2, 3))
    made = checkpoints.Checkpoint(workload, state.facts(), lines, state.tensors())
    return str(checkpoints.save(folder, made))


@pytest.mark.parametrize("says", CONTRADICTIONS)
def test_a_run_that_contradicts_its_checkpoint_is_refused(tmp_path, says):
    workload, fields, settings = CONTRADICTIONS[says]
    path = saved(tmp_path, workload)
    header = replace(a_header(**{**SETTINGS, **settings}), **fields)
    with pytest.raises(CheckpointError, match=says) as caught:
        next(resumable(header, lenet.start(0), lenet.train, tmp_path, resume=path))
    assert str(caught.value).startswith(f"{path}: ")


def test_threads_may_differ_and_a_setting_that_is_new_and_off(tmp_path):
    same = a_header(**SETTINGS, threads=3, same_bits=False)
    path = saved(tmp_path)
    lines = resumable(same, lenet.start(0), lenet.train, tmp_path, resume=path)
    assert next(lines).settings["resumed_at"] == 3
