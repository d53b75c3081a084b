"""Errors of others in one line; signals as KeyboardInterrupt."""

import signal
import subprocess
import sys

import pytest

from d2lpar.errors import first_line, raising_interrupts

TRACE = 'Traceback (most recent call last):\n  File "../src/a.cc", line 81\n'
FAILED = "Check failed: a == b (1 vs. 2) : shapes differ"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(f"{TRACE}MXNetError: {FAILED}\n[bt] (1) libmx"), FAILED),
        (f"\nwarning: slow\n{TRACE}ValueError: no\n", "ValueError: no"),
        (MemoryError("Unable to allocate 8 PiB"), "Unable to allocate 8 PiB"),
        (RuntimeError(""), "RuntimeError"),
        ("", ""),
    ],
)
def test_first_line_leaves_out_the_trace(error, line):
    assert first_line(error) == line


WAITS = """
import signal, sys, time
from d2lpar.errors import raising_interrupts

for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], signal.SIG_IGN)
with raising_interrupts():
    try:
        print("waits", flush=True)
        time.sleep(0.3)
        print("was not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize(
    ("name", "ignored", "end"),
    [
        ("SIGHUP", ["SIGHUP"], "was not interrupted"),
        ("SIGTERM", ["SIGHUP", "SIGINT"], "interrupted"),
    ],
)
def test_signals_interrupt_unless_they_are_ignored(name, ignored, end):
    """SIGHUP after nohup, SIGINT in the background of a script: SIGTERM still ends."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, *ignored], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.Signals[name])
        assert process.communicate(timeout=60)[0] == f"{end}\n"
    assert process.returncode == 0


def test_the_handlers_before_come_back():
    def state():
        return [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]

    before = state()
    with raising_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert state() == before
