"""Files that are replaced whole or not at all, and errors that name them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Re-raise OSErrors with `path` as the file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to `path` on success.

    On an error the temporary file is removed and an earlier `path` stays as it was.
    Raises OSError, naming `path`, also for one that is no regular file: a device such
    as /dev/null must not become one.
    """
    path = Path(path)
    with naming(path):
        if path.exists() and not path.is_file():
            raise OSError(17, "Not a regular file: kept as is")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
        try:
            yield Path(name)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)  # mkstemp's 0600 would hide it from others
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)


def check_writable(folder: str | Path) -> None:
    """Make a folder; raise OSError now rather than after the first epoch."""
    with naming(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
