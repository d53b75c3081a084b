"""Checkpoints: what goes in comes out, and what is damaged or foreign is refused."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.factories import epoch as an_epoch
from support.factories import header as a_header

from d2lpar.errors import CheckpointError
from d2lpar.records import checkpoints, files
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
    assert path.name == "quick-cpu2.epoch000003.safetensors"
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
    names = [path.name for path in checkpoints.of_run(tmp_path, "quick-cpu2")]
    assert names == [f"quick-cpu2.epoch0000{e}.safetensors" for e in (10, 11)]
    assert other.exists()
    assert len(list(tmp_path.iterdir())) == 3  # and nothing else


def test_those_of_earlier_trainings_are_set_aside_without_replacing_any(tmp_path):
    """Two trainings under one name that end with the same epoch: both are kept."""
    kept = {}
    for seed in (1, 2):
        for epoch in (9, 10):
            checkpoints.save(tmp_path, a_checkpoint(epoch, seed))
        paths = checkpoints.of_run(tmp_path, "quick-cpu2")
        for path in checkpoints.set_aside("quick-cpu2", paths):
            kept[path] = seed
    assert len(kept) == 4
    new = checkpoints.save(tmp_path, a_checkpoint(1))
    assert checkpoints.newest(tmp_path, "quick-cpu2", State()).path == new
    for path, seed in kept.items():
        assert checkpoints.load(path, State()).restore(State()).seed == seed
    checkpoints.remove_set_aside(tmp_path, "quick-cpu2")
    assert list(tmp_path.iterdir()) == [new]


def test_a_failed_write_leaves_the_earlier_ones(tmp_path, monkeypatch):
    kept = checkpoints.save(tmp_path, a_checkpoint(1))
    before = kept.read_bytes()

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(tmp_path, a_checkpoint(2))
    assert list(tmp_path.iterdir()) == [kept] and kept.read_bytes() == before


# Damaged and foreign files


@pytest.mark.parametrize("part", [0, 0.3, 0.6, 0.99])
def test_a_truncated_or_altered_one_is_refused(tmp_path, part):
    path = checkpoints.save(tmp_path, a_checkpoint())
    content = bytearray(path.read_bytes())
    position = int(part * len(content))
    path.write_bytes(content[:position])
    with pytest.raises(CheckpointError, match=f"{path.name}: ") as caught:
        checkpoints.load(path, like=State())
    assert "\n" not in str(caught.value)
    content[position] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name}: "):
        checkpoints.load(path, like=State())


def test_one_that_does_not_fit_in_memory_is_named(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise MemoryError

    path = checkpoints.save(tmp_path, a_checkpoint())
    monkeypatch.setattr("safetensors.safe_open", full)
    with pytest.raises(CheckpointError, match=f"{path.name}: does not fit in .*memory"):
        checkpoints.load(path)


def test_what_is_no_checkpoint_is_named(tmp_path):
    from safetensors.numpy import save_file

    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").touch()
    save_file({"w": np.ones(3)}, tmp_path / "foreign")
    for name, says in {
        "text": "not a checkpoint, or truncated",
        "empty": "not a checkpoint, or truncated|cannot be read",
        "foreign": "not a checkpoint of d2lpar",
        "absent": "cannot be read .No such file",
        ".": "cannot be read .Is a directory",
    }.items():
        with pytest.raises(CheckpointError, match=says) as caught:
            checkpoints.load(tmp_path / name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("metadata", [{}, {"d2lpar": "{}", "sha256": "0"}], ids=str)
def test_numbers_that_numpy_does_not_have_are_refused(tmp_path, metadata):
    """As in most language models' files."""
    entry = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
    header = json.dumps({"w": entry, "__metadata__": metadata}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointError, match=f"^{path}: not a checkpoint") as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)


def test_a_later_format_and_another_network_are_named(tmp_path, monkeypatch):
    path = checkpoints.save(tmp_path, a_checkpoint())
    with pytest.raises(CheckpointError, match=r"another network \('w' is \(\(3, 2\)"):
        checkpoints.load(path, like=State(size=4))
    larger = State()
    larger.arrays["more"] = np.zeros(1)
    with pytest.raises(CheckpointError, match=r"another network \('more' is absent"):
        checkpoints.load(path, like=larger)
    larger.workload = "gan"
    with pytest.raises(CheckpointError, match="of workload toy, not of gan"):
        checkpoints.load(path, like=larger)
    monkeypatch.setattr(checkpoints, "FORMAT", checkpoints.FORMAT - 1)
    with pytest.raises(CheckpointError, match="of format 2, this d2lpar reads 1"):
        checkpoints.load(path, like=State())


# The right hash over the wrong content


def forged(folder, **content):
    """A checkpoint of epoch 3 with parts of its header replaced, its hash right."""
    from safetensors.numpy import save_file

    saved = a_checkpoint()
    tensors = content.pop("tensors", saved.tensors)
    lines = [files.to_line(line) for line in saved.lines]
    whole = {"format": 2, "workload": "toy", "facts": saved.facts, "lines": lines}
    text = content.get("text") or json.dumps({**whole, **content})
    metadata = {"d2lpar": text, "sha256": checkpoints._digest(text, tensors)}
    save_file(tensors, folder / "forged.safetensors", metadata)
    return folder / "forged.safetensors"


LINES = [files.to_line(line) for line in a_checkpoint().lines]
FACTS = a_checkpoint().facts
FORGED = [
    ({"text": "[1"}, "its header cannot be read"),
    ({"format": 1}, "of format 1, this d2lpar reads 2"),
    ({"facts": {**FACTS, "epoch": 0}}, "of no epoch"),
    ({"facts": {**FACTS, "epoch": 10**10}}, "its record ends with epoch 3"),
    ({"lines": []}, "its record is not that of a training"),
    ({"lines": [LINES[0], *LINES]}, "line 2 of its record: a second header"),
    (
        {"tensors": {"\x1b[31m\n" * 50: np.zeros(2), **a_checkpoint().tensors}},
        r"of another network \('.x1b.*here absent\)$",
    ),
]


@pytest.mark.parametrize(("content", "says"), FORGED, ids=lambda value: str(value)[:50])
def test_wrong_content_under_the_right_hash_is_named(tmp_path, content, says):
    path = forged(tmp_path, **content)
    with pytest.raises(CheckpointError, match=says) as caught:
        checkpoints.load(path, like=State())
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message


def test_facts_that_are_those_of_no_state_are_refused(tmp_path):
    loaded = checkpoints.load(forged(tmp_path, facts={"epoch": 3}), like=State())
    with pytest.raises(CheckpointError, match="cannot be restored .'seed'"):
        loaded.restore(State())


# Killed while a checkpoint is written

# Each of the moments is made to happen in the process that writes.
KILLED = """
import os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
import test_checkpoints as made
from d2lpar.records import atomic, checkpoints

folder, where = Path(sys.argv[2]), sys.argv[3]

def die(*args, **kwargs):
    os.kill(os.getpid(), 9)

def rename_and_die(a, b, replace=os.replace):
    replace(a, b)
    die()

for epoch in (1, 2):
    checkpoints.save(folder, made.a_checkpoint(epoch))
if where == "while writing":
    def half(self, fsync=os.fsync):
        os.truncate(self, 100)
        die()
    checkpoints.os = type("os", (), {"fsync": half})
elif where == "before the rename":
    atomic.os.replace = die
elif where == "after the rename":
    atomic.os.replace = rename_and_die
elif where == "before the old ones go":
    Path.unlink = die
checkpoints.save(folder, made.a_checkpoint(3))
"""


@pytest.mark.parametrize(
    ("where", "epoch"),
    [
        ("while writing", 2),
        ("before the rename", 2),
        ("after the rename", 3),
        ("before the old ones go", 3),
    ],
)
def test_a_run_killed_while_it_writes_a_checkpoint_resumes(
    tmp_path, caplog, where, epoch
):
    here = Path(__file__).parent
    words = [sys.executable, "-c", KILLED, str(here), str(tmp_path), where]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = checkpoints.newest(tmp_path, "quick-cpu2", State())
    assert found.epoch == epoch and caplog.messages == []
    # The next one tidies up after it: what was half-written goes, too.
    checkpoints.save(tmp_path, a_checkpoint(4))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"quick-cpu2.epoch00000{e}.safetensors" for e in (epoch, 4)]


# The newest


def spoil(path):
    path.write_bytes(path.read_bytes()[:-5])


def test_the_newest_good_one_of_the_run_is_found(tmp_path, caplog):
    for epoch in (1, 2):
        path = checkpoints.save(tmp_path, a_checkpoint(epoch))
    checkpoints.save(tmp_path, a_checkpoint(7, num_devices=1))
    assert checkpoints.newest(tmp_path, "quick-cpu2", State()).epoch == 2
    spoil(path)
    with caplog.at_level(logging.WARNING, logger="d2lpar"):
        assert checkpoints.newest(tmp_path, "quick-cpu2", State()).epoch == 1
    assert "trying the one before" in caplog.text and path.name in caplog.text


def test_on_other_devices_the_newest_of_the_folder_is_found_and_said(tmp_path, caplog):
    path = checkpoints.save(tmp_path, a_checkpoint(5, num_devices=1))
    (tmp_path / ".quick-cpu2.epoch000009-x.safetensors").touch()  # a write cut short
    with caplog.at_level(logging.WARNING, logger="d2lpar"):
        assert checkpoints.newest(tmp_path, "quick-cpu2", State()).epoch == 5
    assert f"quick-cpu2 has no checkpoint: continuing from {path}" in caplog.text


def test_links_to_nowhere_and_devices_are_passed_over(tmp_path, caplog):
    path = checkpoints.save(tmp_path, a_checkpoint(5, num_devices=1))
    (tmp_path / "a.safetensors").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "b.safetensors")
    assert checkpoints.newest(tmp_path, "quick-cpu2", State()).path == path
    assert len(caplog.messages) == 1


def test_where_there_is_none_it_says_what_to_do(tmp_path):
    with pytest.raises(CheckpointError, match="run with --checkpoint-every"):
        checkpoints.newest(tmp_path, "quick-cpu2", State())
    spoil(checkpoints.save(tmp_path, a_checkpoint()))
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        checkpoints.newest(tmp_path, "quick-cpu2", State())


def test_a_checkpoint_holds_no_code(tmp_path):
    """Its header is JSON, the rest numbers: there is nothing to be unpickled."""
    content = checkpoints.save(tmp_path, a_checkpoint()).read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    kinds = {entry["dtype"] for name, entry in header.items() if name[0] != "_"}
    assert kinds == {"F64", "F32"}
    assert json.loads(header["__metadata__"]["d2lpar"])["workload"] == "toy"
