"""What cannot be read or written is named as the user named it, in one line."""

import os
import re

import pytest

from d2lpar.cli import main
from d2lpar.records import files
from d2lpar.records.kinds import EpochRecord, Header

NETWORK = ["run", "multiple_gpus", "--data=synthetic", "--devices=cpu:1", "--dry-run"]
LAUNCH = ["launch"]
THEN = ["--", "run", "multiple_gpus_concise"]
OTHER = "Not a directory"
PATHS = [
    (["plot", "record", "--out=a-file"], f"a-file: {OTHER}"),
    (["plot", "record", "--out=a-file/sub"], f"a-file/sub: {OTHER}"),
    (["plot", "record", "--out=dangling"], f"dangling: {OTHER}"),
    (["plot", "record", "--out=/dev/null"], f"/dev/null: {OTHER}"),
    (["plot", "record", "--out=/proc/no"], "/proc/no: No such file or directory"),
    (["plot", "a-file/x"], r"a-file/x: cannot be read as a record \(Not a directory"),
    (["compare", "record", "record", "--out=a-file"], f"a-file: {OTHER}"),
    ([*NETWORK, "--out=a-file"], rf"a-file(/multiple_gpus)?: {OTHER}"),
    ([*NETWORK, "--out=dangling"], f"dangling: {OTHER}"),
    ([*NETWORK, "--out=/dev/null"], rf"/dev/null(/multiple_gpus)?: {OTHER}"),
    ([*LAUNCH, "--logs=a-file", *THEN], f"a-file: {OTHER}"),
    ([*LAUNCH, "--logs=dangling/x", *THEN], f"dangling: {OTHER}"),
    (
        ["sample", "--checkpoint=a-file/x"],
        r"a-file/x: cannot be read \(Not a directory",
    ),
    (["sample", "--checkpoint=fifo"], "fifo: not a regular file; use another one"),
    (["sample", "--checkpoint=dangling"], r"dangling: cannot be read \(No such file"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    (folder / "a-file").touch()
    (folder / "dangling").symlink_to("absent")
    os.mkfifo(folder / "fifo")
    header = Header(
        chapter="multiple_gpus", preset="quick", num_devices=1, device_kind="cpu",
        devices=["cpu(0)"], threads_per_device=1, cores=2, cpu_model="A CPU",
        dataset="toy", dataset_sha256="0" * 64, synthetic=False, seed=0,
        settings={"num_epochs": 1, "global_batch_size": 8, "lr": 0.1}, command="",
        versions={}, git_commit=None, git_dirty=None, date="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    files.write(folder / "record", header, [EpochRecord(1, 1.5, 40.0, 0.7, 0.5)])
    return folder


@pytest.fixture
def answer(folder, monkeypatch, capfd, short_checkout):
    """A function: what `d2lpar WORDS` prints on standard error, and its exit code."""
    monkeypatch.setattr(main, "chapters_folder", lambda: short_checkout / "chapters")

    def answer(words):
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.argv", ["d2lpar", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return capfd.readouterr().err, ended.value.code

    return answer


@pytest.mark.parametrize(("words", "says"), PATHS, ids=lambda value: str(value)[:60])
def test_a_line_names_the_path(answer, folder, words, says):
    before = sorted(folder.rglob("*"))
    error, code = answer(words)
    assert code == 2 and error.count("\n") == 1
    assert re.match(f"d2lpar: {says}", error)
    left = [path for path in sorted(folder.rglob("*")) if path not in before]
    assert [path for path in left if path.name != "launch-logs"] == []
