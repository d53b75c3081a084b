"""Environment variables that MXNet, Python and Matplotlib read before we can.

MXNet crashes or hangs on unexpected values, so they are checked before it is imported.
Loads no MXNet.
"""

from __future__ import annotations

import os
import re
import sys

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


def check_environment() -> None:
    """Raise :class:`SettingError` for a variable that would crash MXNet."""
    for name, most in WHOLE_NUMBERS.items():
        _check_whole_number(name, most)
    for name, words in WORDS.items():
        value = os.environ.get(name, "")
        if value and value not in words:
            remedy = f"write {', '.join(words[:-1])} or {words[-1]}, or unset it"
            raise SettingError(f"{name} {_short(value)}: {remedy}")
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


def _check_whole_number(name: str, most: int) -> None:
    value = os.environ.get(name, "").strip()
    if not value or re.fullmatch("[0-9]{1,9}", value) and 1 <= int(value) <= most:
        return
    remedy = f"write a whole number, 1 to {most:,}, or unset it"
    if name == "OMP_NUM_THREADS" and re.fullmatch(r"[1-9]\d{0,2}(,\d+)+", value):
        remedy = f"MXNet takes no list: write {value.split(',')[0]}"
    raise SettingError(f"{name} {_short(value)}: {remedy}")


def check_backend() -> None:
    """Raise :class:`SettingError` for an MPLBACKEND that Matplotlib does not know.

    It would raise where the figures are drawn, after all the work.
    """
    if os.environ.get("MPLBACKEND"):
        try:
            import matplotlib  # noqa: F401  reads the variable
        except ValueError:
            raise SettingError(
                f"MPLBACKEND {_short(os.environ['MPLBACKEND'])}: Matplotlib has no "
                "such backend; unset it: figures are drawn into files"
            ) from None


def _short(value: str) -> str:
    return repr(value if len(value) <= 40 else value[:40] + "...")
