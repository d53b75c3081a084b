"""Record files: what goes in comes out, and what is damaged is refused in one line."""

import datetime
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.factories import epoch, header, training

from d2lpar.errors import RecordError
from d2lpar.records import atomic, files, kinds
from d2lpar.records.kinds import Run

RUN = training(2, repeats=2)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "quick-cpu2.jsonl"
    files.write(path, RUN.header, RUN.lines)
    return path


def test_pandas_reads_a_record_as_documented_and_misses_no_repeat(path, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="no pandas: extra docs")
    usage = (Path(__file__).parents[2] / "docs" / "usage.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", usage, re.DOTALL)
    names = {"pandas": pandas}
    path.rename(path.with_name("RECORD.jsonl"))
    monkeypatch.chdir(path.parent)
    exec(code, names)
    assert names["header"]["chapter"] == "multiple_gpus"
    assert dict(names["medians"]) == {0: 2.0, 1: 2.0}


def test_unknown_fields_are_ignored_and_absent_ones_have_defaults(path):
    line = '{"kind":"epoch","epoch":1,"seconds":1,"samples_per_sec":9,"train_loss":1,'
    line += '"test_acc":0.5,"later":{"a":1}}'
    assert files.decode(line).repeat == 0


@pytest.mark.parametrize("cut", [1, 20])
def test_a_torn_last_line_is_skipped_and_logged(path, caplog, cut):
    path.write_bytes(path.read_bytes()[:-cut])
    run = files.read(path)
    whole = 0 if cut == 1 else 1  # without its newline a line is whole
    assert run.lines == RUN.lines[: len(RUN.lines) - whole]
    assert ("torn" in caplog.text) == bool(whole)


LINE = files.to_line(epoch(1))


@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"wonder"}',
        LINE.replace('"epoch":1,', ""),
        files.to_line(header()),
        files.to_line(header()).replace('"book"', '"../../etc/passwd"'),
    ],
)
def test_garbage_is_an_error_with_path_and_line(path, text):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], text, *lines[1:]]))
    with pytest.raises(RecordError, match=f"{path.name}, line 2: ") as error:
        files.read(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n", LINE.encode()])
def test_a_file_without_a_header_is_an_error(path, content):
    path.write_bytes(content)
    with pytest.raises(RecordError, match=str(path)):
        files.read(path)


# Names


@pytest.mark.parametrize(
    "file, changes, recipe",
    [
        ("cpu1", {"recipe": "book,lr=0.1"}, "book,lr=0.1"),
        ("book-1thread-cpu1", {}, "book-1thread"),
        ("book-seed7-cgls-cpu1", {"variant": "cgls"}, "book-seed7"),
    ],
)
def test_a_sweep_is_named_by_its_recipe_those_of_0_5_too(file, changes, recipe):
    path = Path(f"runs/{file}.jsonl")
    run = Run(header(**changes), (), path)
    assert files.sweep_of(run) == (path.parent, "multiple_gpus", recipe)


def test_timed_epochs_leave_out_each_repeats_warm_up():
    assert [e.seconds for e in kinds.timed_epochs(RUN)] == [2.0, 1.8, 2.2] * 2
    resumed = (epoch(1, resumed="elsewhere"), epoch(2, resumed="here"), epoch(3))
    assert kinds.timed_epochs(Run(RUN.header, resumed)) == [resumed[2]]
    for untimed in (RUN.lines[:1], resumed[:1], resumed[:2]):
        assert kinds.timed_epochs(Run(RUN.header, untimed)) == []


# Files that are replaced whole or not at all


def test_replacing_leaves_the_earlier_file_after_any_error(path):
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        with atomic.replacing(path) as tmp:
            tmp.write_text("half")
            raise KeyboardInterrupt
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_provenance_knows_a_checkout_from_an_installed_copy(monkeypatch):
    commit, dirty = files.git_state()
    assert (commit is None) == (dirty is None)
    assert datetime.datetime.fromisoformat(files.now()).utcoffset().seconds == 0
    monkeypatch.setenv("PATH", "/nowhere")
    assert files.git_state() == (None, None)


@pytest.mark.skipif(not shutil.which("git"), reason="not a checkout: no git")
def test_local_changes_are_those_of_the_code_not_what_runs_write(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    (tmp_path / "files.py").touch()
    (tmp_path / "figures").mkdir()
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a"]
    for words in ("init -q", "add .", "commit -qm c --no-gpg-sign"):
        subprocess.run([*git, *words.split()], check=True)
    for name, dirty in (("figures/a.jsonl", False), ("a.py", True)):
        (tmp_path / name).touch()
        assert files.git_state()[1] is dirty
