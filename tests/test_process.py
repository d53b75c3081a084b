"""Work in a fresh process: answers, errors, deaths, signals."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from d2lpar import process
from d2lpar.errors import DiedError, RunError


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Write functions into a module; returns ``call(name)`` for process.results."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code):
        (tmp_path / "some_work.py").write_text(textwrap.dedent(code))
        return lambda name: f"some_work:{name}"

    return write


def test_answers_are_what_the_function_yields_or_returns(script):
    call = script("""
        import os, tempfile
        def many(n):
            print("not an answer")
            yield from range(n)

        def one(**job):
            handle, path = tempfile.mkstemp()
            return {**job, "path": path, "variable": os.environ.get("A")}
    """)
    assert list(process.results(call("many"), {"n": 3})) == [0, 1, 2]
    found = process.answer(call("one"), {"a": [1, None]}, environment={"A": "1"})
    assert found["a"] == [1, None] and found["variable"] == "1"
    assert not Path(found["path"]).exists()  # temporary files go with the process


@pytest.mark.parametrize(
    "function, error, words",
    [
        ("refuses", RunError, "lr nan"),
        ("memory", RunError, "out of memory"),
        ("fails", DiedError, "KeyError: 'x'"),
        ("exits", DiedError, "status 3: said before"),
        ("is_killed", DiedError, "signal 9.; .*smaller batch"),
    ],
)
def test_each_kind_of_end_is_one_line(script, function, error, words):
    call = script("""
        import os, signal
        from d2lpar.errors import SettingError
        def refuses(): raise SettingError("lr nan: write a number")
        def memory(): raise MemoryError("out of memory: 9 GiB")
        def fails(): {}["x"]
        def exits(): os.write(2, b"said before\\n"), os._exit(3)
        def is_killed(): os.kill(os.getpid(), signal.SIGKILL)
    """)
    with pytest.raises(error, match=words) as caught:
        process.answer(call(function), {})
    assert "\n" not in str(caught.value)


def test_warnings_are_logged(script, caplog):
    call = script("""
        import logging
        def work():
            logging.getLogger("d2lpar").warning("mind the %s", "gap")
            return "done"
    """)
    assert process.answer(call("work"), {}) == "done"
    assert "mind the gap" in caplog.text


def test_a_time_out_ends_the_process():
    begin = time.monotonic()
    with pytest.raises(RunError, match="within 0.5 seconds"):
        process.answer("signal:pause", {}, timeout=0.5)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("waits", ["time.sleep(60)", "yield process.TURN"])
def test_a_closed_iterator_lets_the_process_tidy_up(script, tmp_path, waits):
    """While it works, and while it waits for its turn."""
    call = script(f"""
        import pathlib, time
        from d2lpar import process
        from d2lpar.errors import raising_interrupts
        def work(path):
            with raising_interrupts():
                try:
                    yield "begun"
                    {waits}
                except KeyboardInterrupt:
                    pathlib.Path(path).write_text("tidy")
                    raise
    """)
    path = tmp_path / "tidied"
    lines = process.results(call("work"), {"path": str(path)}, seconds_to_stop=20)
    assert next(lines) == "begun"
    if "TURN" in waits:
        assert next(lines) is process.TURN
    begin = time.monotonic()
    lines.close()
    assert path.read_text() == "tidy" and time.monotonic() - begin < 20


def test_a_process_ends_with_the_parent_that_is_killed(script, tmp_path):
    call = script("""
        import os, tempfile, time
        def work():
            open(os.path.join(tempfile.gettempdir(), "large"), "w").close()
            yield f"{os.getpid()} {tempfile.gettempdir()}"
            time.sleep(60)
    """)
    code = f"""
import sys
sys.path[:0] = {[str(tmp_path), str(Path(process.__file__).parents[1])]}
from d2lpar import process
for line in process.results({call("work")!r}, {{}}):
    print(line, flush=True)
"""
    command = [sys.executable, "-c", code]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    number, scratch = parent.stdout.readline().split()
    child = psutil.Process(int(number))
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while Path(scratch).exists() or child.is_running():
        if child.is_running() and child.status() == psutil.STATUS_ZOMBIE:
            break  # ended, and not yet reaped
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not Path(scratch).exists()
