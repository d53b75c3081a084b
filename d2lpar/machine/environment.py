"""What a command gets from its shell: environment variables and signals.

MXNet, Python and Matplotlib read variables before we can, and MXNet crashes or hangs on
unexpected values, so they are checked before it is imported.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from d2lpar.errors import SettingError

# The most threads, or copies, that any machine has a use for.
WHOLE_NUMBERS = {
    "OMP_NUM_THREADS": 1024,
    "MXNET_OMP_MAX_THREADS": 1024,
    "MXNET_CPU_WORKER_NTHREADS": 1024,
    "MXNET_CPU_PRIORITY_NTHREADS": 1024,
    "MXNET_GPU_WORKER_NTHREADS": 1024,
    "MXNET_GPU_COPY_NTHREADS": 1024,
    "MXNET_CPU_TEMP_COPY": 65536,
    "MXNET_GPU_TEMP_COPY": 65536,
}
WORDS = {
    "MXNET_ENGINE_TYPE": ("ThreadedEnginePerDevice", "ThreadedEngine", "NaiveEngine"),
    "DMLC_ROLE": ("worker", "server", "scheduler"),
}
OF_A_NODE = ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_WORKER")

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS_TO_LEAVE_IT = 0.01  # the destructor or callback


def check_environment() -> None:
    """Raise :class:`SettingError` for a variable that would crash MXNet."""
    for name, most in WHOLE_NUMBERS.items():
        value = os.environ.get(name, "").strip()
        is_number = re.fullmatch("[0-9]{1,9}", value)
        if value and not (is_number and 1 <= int(value) <= most):
            remedy = f"write a whole number, 1 to {most:,}, or unset it"
            if name == "OMP_NUM_THREADS" and "," in value:
                remedy += "; MXNet takes no list"
            raise SettingError(f"{name} {value[:40]!r}: {remedy}")
    for name, words in WORDS.items():
        value = os.environ.get(name, "")
        if value and value not in words:
            remedy = f"write {', '.join(words[:-1])} or {words[-1]}, or unset it"
            raise SettingError(f"{name} {value[:40]!r}: {remedy}")
    role = os.environ.get("DMLC_ROLE")
    absent = [name for name in OF_A_NODE if not os.environ.get(name)]
    if role in ("server", "scheduler") and absent:
        raise SettingError(
            f"DMLC_ROLE {role!r} without {absent[0]}: unset it, or start workers by "
            "d2lpar launch"
        )
    if sys.flags.optimize > 1:
        raise SettingError(
            "PYTHONOPTIMIZE 2 (python -OO) drops the docstrings that MXNet needs: "
            "unset it, or write 1"
        )


def check_backend() -> None:
    """Raise :class:`SettingError` for an MPLBACKEND that Matplotlib does not know.

    It would raise where the figures are drawn, after all the work.
    """
    if os.environ.get("MPLBACKEND"):
        try:
            import matplotlib  # noqa: F401  reads the variable
        except ValueError:
            raise SettingError(
                f"MPLBACKEND {os.environ['MPLBACKEND'][:40]!r}: Matplotlib has no "
                "such backend; unset it: figures are drawn into files"
            ) from None


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, each unless it is ignored.

    Python prints and drops an exception that a destructor raises, and MXNet's arrays
    have destructors: an interrupt in one of them is sent again. Does nothing outside
    the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    def send_again(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(dropped)
            return
        number = (*dropped.exc_value.args, signal.SIGINT)[0]
        again = threading.Timer(SECONDS_TO_LEAVE_IT, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()

    before = {number: signal.getsignal(number) for number in INTERRUPTS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup, or a job in the background
            signal.signal(number, interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
