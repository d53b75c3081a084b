"""Is a step of any framework on several devices the step of one? See docs/verify.md."""

from __future__ import annotations

import os
import sys

from d2lpar.errors import SettingError
from d2lpar.verify.checks import Bench, Check, judge
from d2lpar.verify.process import FailedError, Process

__all__ = ["Check", "verify"]


def verify(
    path: str | os.PathLike,
    num_devices: int = 2,
    batch_size: int = 64,
    *,
    lr: float = 0.1,
    seed: int = 0,
    python: str = sys.executable,
    timeout: float = 60,
) -> list[Check]:
    """Judge the step that a file defines, on `num_devices` devices against one.

    `python` runs the file and has `timeout` seconds for each answer. `batch_size` is
    rounded to a multiple of twice the devices. Returns the checks: the step is right
    unless the last one is "wrong" or "unjudged". Raises SettingError.
    """
    path = os.fspath(path)
    if num_devices < 2:
        raise SettingError(f"{num_devices} devices: write at least 2")
    if not (path.endswith(".py") and os.path.isfile(path)):
        raise SettingError(f"{path}: is no Python file")
    even = max(2, batch_size // (2 * num_devices)) * 2 * num_devices
    checks = []
    process = Process(path, python, timeout)
    try:
        process.begin(even + 1, seed, lr)
        for check in judge(Bench(process, num_devices, even)):
            checks.append(check)
            if check.verdict in ("wrong", "unjudged"):
                break
    except FailedError as error:  # in what every step must answer
        checks.append(Check("a call", "unjudged", str(error)))
    finally:
        process.close()
    return checks
