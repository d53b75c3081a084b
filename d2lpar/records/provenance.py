"""The code that measured a record, and when."""

from __future__ import annotations

import datetime
import os
import subprocess
from pathlib import Path


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the checkout that this package runs from; whether it has local changes.

    (None, None) for an installed package, even inside somebody's checkout (a .venv).
    Where unchanged sources travel without their history, ``D2LPAR_COMMIT`` names the
    commit.
    """

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *args],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        # What runs write, records and pictures and outputs, is no change of the code.
        written = [f":(top,exclude){folder}" for folder in ("figures", "notebooks")]
        changes = git("status", "--porcelain", "--", ":/", *written)
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.SubprocessError):
        commit = os.environ.get("D2LPAR_COMMIT") or None
        return commit, None if commit is None else False


def now() -> str:
    """UTC date and time, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
