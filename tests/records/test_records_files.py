"""Record files: what goes in comes out, and damage is named, never guessed at."""

import dataclasses
import json
import logging
import math
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar.errors import RecordError
from d2lpar.records import atomic, fields, files, kinds, provenance
from d2lpar.records.kinds import EpochRecord, Header, Run

HEADER = Header(
    chapter="multiple_gpus",
    preset="book",
    num_devices=2,
    device_kind="cpu",
    devices=["cpu(0) (1 thread of 2 cores)", "cpu(1) (1 thread of 2 cores)"],
    threads_per_device=1,
    cores=2,
    cpu_model="A processor",
    dataset="fashion-mnist",
    dataset_sha256="ab" * 32,
    synthetic=False,
    seed=0,
    settings={"global_batch_size": 256, "lr": 0.2, "num_epochs": 3},
    command="d2lpar run multiple_gpus --preset=book",
    versions={"d2lpar": "0", "mxnet": "1.9.1"},
    git_commit=None,
    git_dirty=None,
    date="2024-01-31T12:00:00+00:00",
)
EPOCHS = [
    EpochRecord(1, 9.5, 6315.8, 2.3, 0.1, 0.7),
    EpochRecord(2, 9.1, 6593.4, 1.2, 0.62, 0.6),
    EpochRecord(3, 9.2, 6521.7, 0.8, 0.71, 0.6),
]


def replaced(**values):
    return dataclasses.replace(HEADER, **values)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "multiple_gpus" / "book-cpu2.jsonl"
    files.write(path, HEADER, EPOCHS)
    return path


def test_a_file_reads_back_as_it_was_written(path):
    assert files.read(path) == Run(HEADER, tuple(EPOCHS), path)
    assert files.read(str(path)) == Run(HEADER, tuple(EPOCHS), path)


def test_a_file_is_json_lines_with_the_header_first(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["header", "epoch", "epoch", "epoch"]
    assert [line.get("epoch") for line in lines] == [None, 1, 2, 3]
    assert lines[0]["settings"] == HEADER.settings
    assert path.read_text().endswith("}\n")


def test_epochs_may_come_from_a_generator(path):
    files.write(path, HEADER, (e for e in EPOCHS[:2]))
    assert files.read(path).epochs == tuple(EPOCHS[:2])


def test_a_header_alone_is_a_run_without_epochs(path):
    files.write(path, HEADER, [])
    assert files.read(path).epochs == ()


NAMES = {f.name for f in dataclasses.fields(EpochRecord)} | {"kind"}
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text().filter(lambda text: not fields.not_text(text))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner),
    max_leaves=5,
)


@settings(deadline=None)
@given(
    st.builds(
        EpochRecord,
        epoch=st.integers(1, 10**9),
        seconds=st.floats(1e-12, 1e15),
        samples_per_sec=st.floats(1e-12, 1e15),
        train_loss=st.floats(-1e200, 1e200),
        test_acc=st.floats(0, 1),
        eval_seconds=st.floats(0, 1e200),
        repeat=st.integers(0, 99),
        extra=st.dictionaries(TEXT.filter(lambda k: k not in NAMES), JSON),
    )
)
def test_any_epoch_survives_the_round_trip(epoch):
    line = files.to_line(epoch)
    assert len(line.splitlines()) == 1
    assert files.from_line(line) == epoch


def test_unknown_fields_are_kept(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["hostname"] = "somewhere"
    lines[2]["grad_norm"] = [0.5, {"W1": 0.25}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = files.read(path)
    assert run.header.extra == {"hostname": "somewhere"}
    assert run.header.chapter == "multiple_gpus"
    assert [e.extra for e in run.epochs] == [{}, {"grad_norm": [0.5, {"W1": 0.25}]}, {}]
    files.write(path, run.header, run.epochs)
    assert files.read(path) == run


def test_a_record_of_before_the_gpu_build_reads(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0].pop("gpu_build") == {}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert files.read(path).header == HEADER


def test_a_record_in_tf32_does_not_replace_the_exact_one():
    exact = {"tf32": False, "deterministic": False}
    assert files.run_stem(replaced(gpu_build=exact)) == "book"
    both = {"tf32": True, "deterministic": True}
    assert files.run_stem(replaced(gpu_build=both)) == "book-tf32-deterministic"


def test_fields_with_a_default_may_be_absent():
    line = (
        '{"kind": "epoch", "epoch": 1, "seconds": 2, "samples_per_sec": 3, '
        '"train_loss": 0.5, "test_acc": 0.25}'
    )
    assert files.from_line(line) == EpochRecord(
        1, 2, 3, 0.5, 0.25, eval_seconds=0.0, repeat=0, resumed=None, extra={}
    )


@pytest.mark.parametrize("cut", [1, 30, -2])
def test_a_torn_last_line_is_skipped_and_logged(path, caplog, cut):
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1]) + whole[-1][:cut])
    with caplog.at_level(logging.WARNING, logger="d2lpar"):
        run = files.read(path)
    assert run.epochs == tuple(EPOCHS[:2])
    (message,) = caplog.messages
    assert str(path) in message and "last line" in message


def test_a_last_line_without_its_newline_is_whole(path, caplog):
    path.write_text(path.read_text().rstrip("\n"))
    assert files.read(path).epochs == tuple(EPOCHS)
    assert caplog.messages == []


@pytest.mark.parametrize(
    "garbage",
    [
        "not JSON",
        "",
        "[]",
        "7",
        "null",
        '"epoch"',
        "{}",
        '{"kind": "note", "message": "hello"}',
        '{"kind": ["epoch"]}',
        '{"kind": "epoch", "epoch": 2}',
    ],
)
def test_garbage_in_the_middle_is_an_error_with_path_and_line(path, garbage):
    lines = path.read_text().splitlines()
    lines[2] = garbage
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RecordError) as caught:
        files.read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}, line 3: ") and "\n" not in message
    assert garbage[:60] in message


def test_a_torn_header_is_an_error(path):
    path.write_text(path.read_text()[:40])
    with pytest.raises(RecordError, match=re.escape(f"{path}, line 1: ")):
        files.read(path)


def test_a_missing_header_is_an_error(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[1:]))
    with pytest.raises(RecordError, match="header") as caught:
        files.read(path)
    assert str(path) in str(caught.value)


def test_an_empty_file_is_an_error(path):
    path.write_text("")
    with pytest.raises(RecordError, match=f"{re.escape(str(path))}.*header"):
        files.read(path)


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n\xff\xfe", b"\0" * 64])
def test_a_binary_file_is_an_error(path, content):
    path.write_bytes(content)
    with pytest.raises(RecordError, match=re.escape(str(path))):
        files.read(path)


def test_a_missing_file_and_a_folder_are_errors(tmp_path):
    for path, reason in (
        (tmp_path / "absent.jsonl", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(RecordError, match=reason) as caught:
            files.read(path)
        assert str(path) in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(RecordError, match="pipe.jsonl: a device or a pipe"):
        files.read(tmp_path / "pipe.jsonl")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_and_nothing_changes(path, value):
    before = path.read_bytes()
    bad = dataclasses.replace(EPOCHS[1], train_loss=value)
    with pytest.raises(ValueError):
        files.write(path, HEADER, [EPOCHS[0], bad])
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_failure_while_writing_leaves_the_earlier_file(path, monkeypatch):
    before = path.read_bytes()

    def disk_full(self, text, **kwargs):
        with open(self, "w") as f:
            f.write(text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", disk_full)
    with pytest.raises(OSError, match="No space"):
        files.write(path, HEADER, EPOCHS[:1])
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_failure_in_the_epochs_leaves_the_earlier_file(path):
    before = path.read_bytes()

    def epochs():
        yield EPOCHS[0]
        raise RuntimeError("training ended")

    with pytest.raises(RuntimeError, match="training ended"):
        files.write(path, HEADER, epochs())
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_replacing_shows_nothing_before_it_is_complete(tmp_path):
    path = tmp_path / "new" / "picture.svg"
    with atomic.replacing(path) as tmp:
        assert tmp.parent == path.parent and tmp.suffix == ".svg"  # savefig looks at it
        tmp.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"
    assert os.listdir(path.parent) == ["picture.svg"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_replacing_tidies_up_after_any_error(tmp_path, error):
    path = tmp_path / "picture.svg"
    path.write_text("earlier")
    with pytest.raises(error):
        with atomic.replacing(path) as tmp:
            tmp.write_text("half")
            raise error
    assert path.read_text() == "earlier"
    assert os.listdir(tmp_path) == ["picture.svg"]


def test_only_regular_and_new_files_are_replaced(tmp_path):
    """`--out /dev/full` made a file of the device."""
    (tmp_path / "pipe").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "full").symlink_to("/dev/full")
    (tmp_path / "folder").mkdir()
    for name, reason in {
        "pipe": "Not a regular file: kept as is",
        "full": "Not a regular file: kept as is",
        "folder": "Is a directory",
    }.items():
        path = tmp_path / name
        with pytest.raises(OSError, match=reason) as caught:
            with atomic.replacing(path):
                raise AssertionError("nothing may be written")
        assert caught.value.filename == str(path)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR((tmp_path / "full").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["folder", "full", "pipe"]
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    with atomic.replacing(tmp_path / "link") as tmp:
        tmp.write_text("new")
    assert (tmp_path / "link").read_text() == "new"


def test_errors_name_what_the_user_gave(tmp_path):
    """Never a temporary file, never nothing."""
    path = tmp_path / "faces.png"

    def write_too_much(tmp):
        raise OSError(28, "No space left on device")

    def refuse(tmp):
        raise PermissionError(13, "Permission denied", str(tmp))

    for fail in (write_too_much, refuse):
        with pytest.raises(OSError) as caught:
            with atomic.replacing(path) as tmp:
                fail(tmp)
        assert caught.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as caught:
        with atomic.replacing(path):
            open(tmp_path / "another")
    assert str(caught.value.filename) == str(tmp_path / "another")
    assert os.listdir(tmp_path) == []


def test_no_temporary_file_is_named_where_none_can_be_made(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", f"{tmp_path}/tmp1234")

    monkeypatch.setattr(atomic.tempfile, "mkstemp", refuse)
    monkeypatch.setattr(atomic.tempfile, "TemporaryFile", refuse)
    with pytest.raises(PermissionError) as caught:
        atomic.check_writable(tmp_path)
    assert caught.value.filename == str(tmp_path)
    with pytest.raises(PermissionError) as caught:
        with atomic.replacing(tmp_path / "record.jsonl"):
            pass
    assert caught.value.filename == str(tmp_path / "record.jsonl")


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_replacing_gives_the_permissions_of_a_plain_open(tmp_path, umask, mode):
    path = tmp_path / "record.jsonl"
    before = os.umask(umask)
    try:
        with atomic.replacing(path) as tmp:
            tmp.write_text("text")
        left = os.umask(umask)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert left == umask


@pytest.mark.parametrize(
    ("changes", "stem", "name"),
    [
        ({}, "book", "book-cpu2"),
        ({"preset": "quick", "num_devices": 1}, "quick", "quick-cpu1"),
        ({"device_kind": "gpu", "num_devices": 8}, "book", "book-gpu8"),
        ({"synthetic": True}, "book-synthetic", "book-synthetic-cpu2"),
        ({"seed": 3}, "book-seed3", "book-seed3-cpu2"),
        ({"settings": {"threads": 1}}, "book-1thread", "book-1thread-cpu2"),
        ({"settings": {"threads": None}}, "book", "book-cpu2"),
        (
            {"synthetic": True, "seed": 1, "settings": {"threads": 4}},
            "book-synthetic-seed1-4thread",
            "book-synthetic-seed1-4thread-cpu2",
        ),
    ],
)
def test_names_tell_what_differs_from_the_rule(changes, stem, name):
    assert files.run_stem(replaced(**changes)) == stem
    assert files.run_name(replaced(**changes)) == name


def test_timed_epochs_leave_out_each_repeats_warm_up():
    epochs = [dataclasses.replace(e, repeat=r) for r in (0, 1) for e in EPOCHS]
    timed = kinds.timed_epochs(Run(HEADER, tuple(epochs)))
    assert [(e.repeat, e.epoch) for e in timed] == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_timed_epochs_keep_an_only_epoch():
    assert kinds.timed_epochs(Run(HEADER, (EPOCHS[0],))) == [EPOCHS[0]]
    assert kinds.timed_epochs(Run(HEADER, ())) == []


def test_group_keeps_the_order():
    runs = [Run(replaced(preset=p, seed=s), ()) for s, p in enumerate("baba")]
    grouped = kinds.group(runs, lambda run: run.header.preset)
    assert list(grouped) == ["b", "a"]
    assert [run.header.seed for run in grouped["b"]] == [0, 2]


def test_now_is_iso_8601_in_utc():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", provenance.now())


def test_git_state_of_this_copy():
    commit, dirty = provenance.git_state()
    if commit is None:
        assert dirty is None
    else:
        assert re.fullmatch("[0-9a-f]{40,64}", commit) and dirty in (True, False)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_git_state_knows_a_checkout_from_an_installed_copy(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # those of a hook that runs the tests
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    module = tmp_path / "package" / "records.py"
    module.parent.mkdir()
    module.write_text("# a module")
    monkeypatch.setattr(provenance, "__file__", str(module))

    def git(*args):
        names = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(tmp_path), *names, *args]
        return subprocess.check_output(command, text=True)

    assert provenance.git_state() == (None, None)  # no checkout at all
    monkeypatch.setenv("D2LPAR_COMMIT", "1a2b3c4")
    assert provenance.git_state() == ("1a2b3c4", False)
    monkeypatch.delenv("D2LPAR_COMMIT")
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    assert provenance.git_state() == (None, None)  # lies in one, but is not part of it
    git("add", ".")
    git("commit", "-q", "-m", "second")
    commit = git("rev-parse", "HEAD").strip()
    assert provenance.git_state() == (commit, False)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "a-run.jsonl").write_text("what a run left behind")
    assert provenance.git_state() == (commit, False)
    module.write_text("# a changed module")
    assert provenance.git_state() == (commit, True)


def test_git_state_without_git(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_state() == (None, None)
