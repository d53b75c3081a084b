"""The one protocol for work in a fresh process: answers, errors, deaths, signals."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from d2lpar import process
from d2lpar.errors import DiedError, RunError


@pytest.fixture
def script(tmp_path):
    """Write functions into a script; returns ``call(name)`` for process.results."""

    def write(code):
        path = tmp_path / "work.py"
        path.write_text(textwrap.dedent(code))
        return lambda name: f"{path}:{name}"

    return write


def test_answers_are_what_the_function_yields_or_returns(script):
    call = script("""
        def many(n):
            print("not an answer")
            for k in range(n):
                yield {"k": k}

        def one(**job):
            return job

        def none():
            pass
    """)
    assert list(process.results(call("many"), {"n": 3})) == [{"k": k} for k in range(3)]
    assert process.answer(call("one"), {"a": [1, None]}) == {"a": [1, None]}
    with pytest.raises(RunError, match="without an answer"):
        process.answer(call("none"), {})


def test_the_environment_is_changed_and_temporary_files_go(script):
    call = script("""
        import os, tempfile
        def look():
            handle, path = tempfile.mkstemp()
            return {"path": path, "a": os.environ.get("A"), "b": os.environ.get("B")}
    """)
    os.environ["B"] = "here"
    try:
        seen = process.answer(call("look"), {}, environment={"A": "1", "B": None})
    finally:
        del os.environ["B"]
    assert (seen["a"], seen["b"]) == ("1", None)
    assert not Path(seen["path"]).exists()


@pytest.mark.parametrize(
    "function, error, words",
    [
        ("refuses", RunError, "lr nan"),
        ("no_file", RunError, "/none: No such file"),
        ("memory", RunError, "out of memory"),
        ("crashes", DiedError, "KeyError: 'x'"),
        ("exits", DiedError, "status 3"),
        ("is_killed", DiedError, "signal 9"),
        ("lacks", DiedError, "pip install 'd2lpar\\[peers\\]'"),
        ("not_finite", DiedError, "Out of range float"),
    ],
)
def test_each_kind_of_end_is_one_line(script, function, error, words):
    call = script("""
        import os, signal, sys
        from d2lpar.errors import SettingError
        def refuses(): raise SettingError("lr nan: write a number")
        def no_file(): open("/none")
        def memory(): raise MemoryError("out of memory: 9 GiB")
        def crashes(): {}["x"]
        def exits(): os._exit(3)
        def is_killed(): os.kill(os.getpid(), signal.SIGKILL)
        def lacks(): sys.modules["torch"] = None; sys.exit("No module named 'torch'")
        def not_finite(): return {"a": float("nan")}
    """)
    with pytest.raises(error, match=words) as caught:
        process.answer(call(function), {})
    assert "\n" not in str(caught.value)


def test_warnings_are_logged_and_heartbeats_counted(script, caplog):
    call = script("""
        import logging
        from d2lpar import process
        def work():
            logging.getLogger("d2lpar").warning("mind the %s", "gap")
            process.alive()
            yield {"done": 1}
    """)
    beats = []
    lines = process.raw_lines(call("work"), {}, on_alive=lambda: beats.append(1))
    assert list(lines) == [b'{"done": 1}\n']
    assert beats == [1] and "mind the gap" in caplog.text


def test_a_time_out_ends_the_process(script):
    call = script("""
        import time
        def sleep(): time.sleep(60)
    """)
    begin = time.monotonic()
    with pytest.raises(RunError, match="within 0.5 seconds"):
        process.answer(call("sleep"), {}, timeout=0.5)
    assert time.monotonic() - begin < 20


TIDIES = """
    import pathlib, time
    from d2lpar.errors import raising_interrupts
    def work(path):
        with raising_interrupts():
            try:
                yield {"begun": True}
                time.sleep(60)
            except KeyboardInterrupt:
                pathlib.Path(path).write_text("tidy")
                raise
"""


def test_a_closed_iterator_lets_the_process_tidy_up(script, tmp_path):
    call, path = script(TIDIES), tmp_path / "tidied"
    lines = process.raw_lines(call("work"), {"path": str(path)}, seconds_to_stop=20)
    assert next(lines) == b'{"begun": true}\n'
    begin = time.monotonic()
    lines.close()
    assert path.read_text() == "tidy" and time.monotonic() - begin < 20


def test_a_process_ends_with_the_parent_that_is_killed(tmp_path):
    path = tmp_path / "work.py"
    path.write_text(
        "import os, tempfile, time\n"
        "def work():\n"
        "    open(os.path.join(tempfile.gettempdir(), 'large'), 'w').close()\n"
        "    yield {'pid': os.getpid(), 'scratch': tempfile.gettempdir()}\n"
        "    time.sleep(60)\n"
    )
    code = (
        "from d2lpar import process\n"
        f"for line in process.raw_lines('{path}:work', {{}}):\n"
        "    print(line.decode(), end='', flush=True)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    child = json.loads(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{child['pid']}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{child['pid']}/stat").read_text().rsplit(")", 1)[1]
        if state.split()[0] == "Z":
            break
        time.sleep(0.05)
    assert time.monotonic() < deadline
    assert not Path(child["scratch"]).exists()
