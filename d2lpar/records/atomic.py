"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | Path):
    """Yield a temporary path beside `path`, which is renamed to `path` on success.

    On an error the temporary file is removed and an earlier `path` stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent
    )
    os.close(handle)
    tmp = Path(name)
    try:
        yield tmp
        umask = os.umask(0)
        os.umask(umask)
        tmp.chmod(0o666 & ~umask)  # mkstemp's 0600 would hide figures from a web server
        os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


def check_writable(folder: str | Path) -> None:
    """Raise OSError now rather than after the first epoch has been measured."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass
