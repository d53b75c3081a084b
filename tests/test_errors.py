"""Errors of others in one line; signals as KeyboardInterrupt, in destructors too."""

import signal
import subprocess
import sys
import threading

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


# Most of the time it is in the destructor, where Python drops every exception.
DESTROYS = """
import signal, sys, time
from d2lpar.errors import raising_interrupts

class Slow:
    def __del__(self):
        print("in the destructor", flush=True)
        time.sleep(0.2)

for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], signal.SIG_IGN)
with raising_interrupts():
    try:
        for _ in range(3):
            Slow()
            time.sleep(0.05)
        print("was not interrupted")
    except KeyboardInterrupt:
        print("interrupted")
"""


def destroys(name, ignored=()):
    """What the program prints in the end, interrupted in a destructor."""
    with subprocess.Popen(
        [sys.executable, "-c", DESTROYS, *ignored],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "in the destructor\n"
        process.send_signal(signal.Signals[name])
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out.splitlines()[-1]


def test_an_interrupt_in_a_destructor_is_not_lost_and_what_is_ignored_stays_so():
    """SIGHUP after nohup, SIGINT in the background of a script: SIGTERM still ends."""
    assert destroys("SIGINT") == "interrupted"
    assert destroys("SIGHUP", ["SIGHUP"]) == "was not interrupted"
    assert destroys("SIGTERM", ["SIGHUP", "SIGINT"]) == "interrupted"


def test_the_handlers_before_come_back_and_other_threads_have_none():
    def state():
        handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)]
        return handlers, sys.unraisablehook

    def work():
        with raising_interrupts():
            seen.append(state())

    before, seen = state(), []
    with raising_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert state() == before and seen == [before]
