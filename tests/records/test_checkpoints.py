"""Checkpoints: what goes in comes out, and what is damaged or foreign is refused."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.factories import epoch as an_epoch
from support.factories import header as a_header

from d2lpar.errors import CheckpointError
from d2lpar.records import checkpoints
from d2lpar.records.checkpoints import Checkpoint


def a_checkpoint(epoch=3, num_devices=2):
    rng = np.random.default_rng(0)
    tensors = {"w": rng.normal(size=(3, 2)), "b": np.zeros(2, "f")}
    epochs = [an_epoch(e) for e in range(1, epoch + 1)]
    header = a_header(num_devices, preset="quick")
    return Checkpoint("toy", {"epoch": epoch, "seed": 0}, (header, *epochs), tensors)


def test_the_last_two_are_kept_and_copies_under_other_names(tmp_path):
    other = checkpoints.save(tmp_path, a_checkpoint(1, num_devices=1))
    copies = [
        tmp_path / f"cpu2.epoch{what}.safetensors" for what in ("000001-best", "final")
    ]
    for copy in copies:
        copy.write_bytes(other.read_bytes())
    for epoch in (9, 10, 11):
        checkpoints.save(tmp_path, a_checkpoint(epoch))
    names = [path.name for path in checkpoints.of_run(tmp_path, "cpu2")]
    assert names == [f"cpu2.epoch0000{e}.safetensors" for e in (10, 11)]
    assert len(list(tmp_path.iterdir())) == 5  # and nothing else


def test_what_is_no_checkpoint_is_named(tmp_path):
    save_file({"w": np.ones(3)}, tmp_path / "foreign")
    cut = checkpoints.save(tmp_path, a_checkpoint())
    cut.write_bytes(cut.read_bytes()[:-5])
    for name, says in {
        cut.name: f"{cut.name}: not a",
        "foreign": "not a checkpoint of d2lpar",
        "absent": "cannot be read",
        ".": "cannot be read",
    }.items():
        with pytest.raises(CheckpointError, match=says) as caught:
            checkpoints.load(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="^'': cannot be read"):
        checkpoints.load("")
