"""TODO: one idea."""

from __future__ import annotations

import datetime
import logging
import subprocess
from pathlib import Path

log = logging.getLogger("d2lpar")


def git_state() -> tuple[str | None, bool | None]:
    """Commit of the checkout this package runs from and whether it has local changes.

    (None, None) for an installed package: a .venv may well lie in somebody's checkout.
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
        # What runs write is no change of the code that runs.
        changes = git("status", "--porcelain", "--", ":/", ":(top,exclude)figures")
        return git("rev-parse", "HEAD"), bool(changes)
    except (OSError, subprocess.SubprocessError):
        return None, None


def now() -> str:
    """UTC date and time, ISO 8601, to the second."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
