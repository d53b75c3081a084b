"""A run holds its name: a second one is refused, a dead one holds nothing."""

import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from d2lpar.errors import RunError
from d2lpar.records.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from d2lpar.records.lock import locked
with locked(Path(sys.argv[1]), "book-cpu2"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds book-cpu2 in the folder."""
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_and_told_who_holds_it(holder, tmp_path):
    who = f"process {holder.pid} on {socket.gethostname()}"
    expected = re.escape(f"{tmp_path}/book-cpu2: another run writes to it ({who})")
    with pytest.raises(RunError, match=f"^{expected}; wait until .*another --out$"):
        with locked(tmp_path, "book-cpu2"):
            raise AssertionError("two hold it")
    with locked(tmp_path, "book-cpu1"):  # another name
        pass


def test_the_lock_of_a_killed_run_is_stale(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert os.listdir(tmp_path) == [".book-cpu2.lock"]
    with locked(tmp_path, "book-cpu2") as path:
        assert path.read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert os.listdir(tmp_path) == []


def test_it_is_released_on_errors_and_within_a_process_held_once(tmp_path):
    with pytest.raises(KeyError):
        with locked(tmp_path, "a"):
            with pytest.raises(RunError, match=f"process {os.getpid()} on"):
                with locked(tmp_path, "a"):
                    pass
            raise KeyError
    with locked(tmp_path, "a"):
        pass


def test_what_a_lock_file_says_is_shown_as_a_line(tmp_path):
    with locked(tmp_path, "a") as path:
        for content, shown in ((b"\x1b[31m\n\xff", "[31m"), (b"", "does not give its")):
            path.write_bytes(content)
            with pytest.raises(RunError) as caught:
                with locked(tmp_path, "a"):
                    pass
            assert shown in str(caught.value) and "\x1b" not in str(caught.value)
            assert "\n" not in str(caught.value)


def test_one_left_by_another_host_is_taken_with_a_warning(tmp_path, caplog):
    path = tmp_path / ".a.lock"
    path.write_text("process 7 on elsewhere")
    with locked(tmp_path, "a"):
        assert path.read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    said = f"{path}: was left by process 7 on elsewhere; make sure that it has ended"
    assert caplog.messages == [said]
    with locked(tmp_path, "a"):
        pass
    assert len(caplog.messages) == 1


def test_where_the_disk_has_no_locks_it_says_so(tmp_path, caplog, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path, "a") as path:
        assert path.exists()
    (said,) = caplog.messages
    assert said.startswith(f"{path}: cannot be locked (No locks available); make sure")
    assert not path.exists()


def test_a_link_in_its_place_is_not_followed(tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("precious")
    (tmp_path / ".a.lock").symlink_to(kept)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / ".a.lock"))):
        with locked(tmp_path, "a"):
            pass
    assert kept.read_text() == "precious"


def test_of_many_that_come_and_go_one_at_a_time_holds_it(tmp_path):
    """Each deletes the file of its lock at the end: the next must not keep that one."""
    (tmp_path / "count").write_text("0")
    words = [sys.executable, "-c", COUNT, str(tmp_path)]
    processes = [subprocess.Popen(words) for _ in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 4
    assert (tmp_path / "count").read_text() == "400"
    assert os.listdir(tmp_path) == ["count"]


COUNT = """
import contextlib, sys
from pathlib import Path
from d2lpar.errors import RunError
from d2lpar.records.lock import locked
folder, left = Path(sys.argv[1]), 100
while left:
    with contextlib.suppress(RunError), locked(folder, "a"):
        (folder / "count").write_text(str(int((folder / "count").read_text()) + 1))
        left -= 1
"""
