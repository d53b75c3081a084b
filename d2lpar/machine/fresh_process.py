"""Questions to MXNet in a process of its own, which it may abort or hang."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import shorten

from d2lpar.errors import first_line


def answer_of(code: str, seconds: float) -> dict:
    """What Python's `code` prints as JSON in a process of its own.

    {"error": reason} where the process ends otherwise, or not within `seconds`.
    """
    # The child gets this process's import path, wherever it was started from.
    path = [*sys.path, str(Path(__file__).resolve().parents[2])]
    code = f"import sys; sys.path[:] = sys.argv[1:]; {code}"
    try:
        child = subprocess.run(
            [sys.executable, "-c", code, *path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"MXNet did not answer within {seconds:g} seconds"}
    answers = [line for line in child.stdout.splitlines() if line.startswith("{")]
    if answers and child.returncode == 0:
        return json.loads(answers[-1])
    # A negative status is the signal that ended it: -6 is SIGABRT, -11 SIGSEGV.
    reason = shorten(first_line(child.stderr), 240) or "no message"
    return {"error": f"MXNet ended with status {child.returncode}: {reason}"}
