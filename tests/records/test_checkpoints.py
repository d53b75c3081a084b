"""Checkpoints: what goes in comes out, and what is damaged or foreign is refused."""

import json
import logging

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from support.factories import epoch as an_epoch
from support.factories import header as a_header

from d2lpar.errors import CheckpointError
from d2lpar.records import checkpoints
from d2lpar.records.checkpoints import Checkpoint


class State:
    """A state as a training has it, of two arrays."""

    workload = "toy"

    def __init__(self, seed=0, size=3):
        rng, self.epoch, self.seed = np.random.default_rng(seed), 0, seed
        self.arrays = {"w": rng.normal(size=(size, 2)), "b": np.zeros(2, "f")}

    def tensors(self):
        return self.arrays

    def facts(self):
        return {"epoch": self.epoch, "seed": self.seed}

    @classmethod
    def restore(cls, tensors, facts):
        state = cls(facts["seed"])
        state.arrays, state.epoch = tensors, facts["epoch"]
        return state


def a_checkpoint(epoch=3, seed=0, num_devices=2):
    state = State(seed)
    state.epoch = epoch
    epochs = [an_epoch(e) for e in range(1, epoch + 1)]
    header = a_header(num_devices, preset="quick")
    return Checkpoint("toy", state.tensors(), state.facts(), (header, *epochs))


def test_what_goes_in_comes_out(tmp_path):
    saved = a_checkpoint()
    path = checkpoints.save(tmp_path, saved)
    assert path.name == "cpu2.epoch000003.safetensors"
    loaded = checkpoints.load(path, like=State())
    assert loaded.tensors.keys() == saved.tensors.keys()
    for name, array in saved.tensors.items():
        np.testing.assert_array_equal(loaded.tensors[name], array)
        assert loaded.tensors[name].dtype == array.dtype
    assert loaded.lines == saved.lines and loaded.epoch == 3
    state = loaded.restore(State())
    assert (state.epoch, state.seed) == (3, 0)


def test_the_last_two_are_kept(tmp_path):
    other = checkpoints.save(tmp_path, a_checkpoint(1, num_devices=1))
    for epoch in (9, 10, 11):
        checkpoints.save(tmp_path, a_checkpoint(epoch))
    names = [path.name for path in checkpoints.of_run(tmp_path, "cpu2")]
    assert names == [f"cpu2.epoch0000{e}.safetensors" for e in (10, 11)]
    assert other.exists()
    assert len(list(tmp_path.iterdir())) == 3  # and nothing else


def test_a_copy_under_another_name_is_left_alone(tmp_path, caplog):
    copies = [
        tmp_path / f"cpu2.epoch{what}.safetensors" for what in ("000001-best", "final")
    ]
    content = checkpoints.save(tmp_path, a_checkpoint(1)).read_bytes()
    for copy in copies:
        copy.write_bytes(content)
    for epoch in (2, 3, 4):
        checkpoints.save(tmp_path, a_checkpoint(epoch))
    assert all(copy.read_bytes() == content for copy in copies)
    assert checkpoints.newest(tmp_path, "cpu2", State()).epoch == 4


# Damaged and foreign files


def test_what_is_no_checkpoint_is_named(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.ones(3)}, tmp_path / "foreign")
    cut = checkpoints.save(tmp_path, a_checkpoint())
    spoil(cut)
    for name, says in {
        cut.name: f"{cut.name}: not a",
        "foreign": "not a checkpoint of d2lpar",
        "absent": "cannot be read",
        ".": "not a regular file",
    }.items():
        with pytest.raises(CheckpointError, match=says) as caught:
            checkpoints.load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_another_network_and_another_workload_are_named(tmp_path):
    path = checkpoints.save(tmp_path, a_checkpoint())
    with pytest.raises(CheckpointError, match=r"another network \('w' is \(\(3, 2\)"):
        checkpoints.load(path, like=State(size=4))
    larger = State()
    larger.workload = "gan"
    with pytest.raises(CheckpointError, match="of workload toy, not of gan"):
        checkpoints.load(path, like=larger)


# The newest


def spoil(path):
    path.write_bytes(path.read_bytes()[:-5])


def test_the_newest_good_one_of_the_run_is_found(tmp_path, caplog):
    for epoch in (1, 2):
        path = checkpoints.save(tmp_path, a_checkpoint(epoch))
    checkpoints.save(tmp_path, a_checkpoint(7, num_devices=1))
    assert checkpoints.newest(tmp_path, "cpu2", State()).epoch == 2
    spoil(path)
    with caplog.at_level(logging.WARNING, logger="d2lpar"):
        assert checkpoints.newest(tmp_path, "cpu2", State()).epoch == 1
    assert "trying the checkpoint before it" in caplog.text and path.name in caplog.text


def test_on_other_devices_the_newest_of_the_folder_is_found_and_said(tmp_path, caplog):
    path = checkpoints.save(tmp_path, a_checkpoint(5, num_devices=1))
    (tmp_path / ".cpu2.epoch000009-x.safetensors").touch()  # a write cut short
    with caplog.at_level(logging.WARNING, logger="d2lpar"):
        assert checkpoints.newest(tmp_path, "cpu2", State()).epoch == 5
    assert f"cpu2 has no checkpoint: continuing from {path}" in caplog.text


def test_where_there_is_none_it_says_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match="run with --checkpoint-every"):
        checkpoints.newest(tmp_path, "cpu2", State())
    spoil(checkpoints.save(tmp_path, a_checkpoint()))
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        checkpoints.newest(tmp_path, "cpu2", State())


@pytest.mark.parametrize(
    ("facts", "lines", "says"),
    [
        ({}, None, "epoch or seed is missing"),
        ({"epoch": -5, "seed": 0}, None, "epoch or seed is missing or negative"),
        ({"epoch": 3, "seed": -1}, None, "epoch or seed is missing or negative"),
        ({"epoch": 2, "seed": 0}, None, "not of the epochs up to 2"),
        (None, [], "do not begin with a header"),
        (None, [1, 2, 3], "do not begin with a header"),
        (None, [0, 0, 1, 2, 3], "several headers"),
        (None, [0, 3, 2, 1], "not of the epochs up to 3"),
        (None, [0, 1, 2, 2, 3], "not of the epochs up to 3"),
        (None, [0], "not of the epochs up to 3"),
    ],
)
def test_what_was_made_by_hand_is_refused_in_a_line(tmp_path, facts, lines, says):
    good = a_checkpoint()
    path = checkpoints.save(tmp_path, good)
    with safe_open(path, framework="np") as f:
        content = json.loads(f.metadata()["d2lpar"])
    if facts is not None:
        content["facts"] = facts
    if lines is not None:
        content["lines"] = [content["lines"][k] for k in lines]
    save_file(good.tensors, path, {"d2lpar": json.dumps(content)})
    with pytest.raises(CheckpointError, match=f"{path.name}: not a checkpoint.*{says}"):
        checkpoints.load(path, State())


def test_a_state_that_cannot_be_restored_is_named():
    class Odd(State):
        @classmethod
        def restore(cls, tensors, facts):
            return ("none", "batch")[facts["epoch"]]

    with pytest.raises(CheckpointError, match="not a checkpoint of d2lpar .*range"):
        a_checkpoint().restore(Odd())
