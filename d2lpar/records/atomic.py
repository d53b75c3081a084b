"""Files that are replaced whole or not at all, and errors that name them."""

from __future__ import annotations

import errno
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
        if error.strerror is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from None


def make_folder(folder: str | Path) -> None:
    """Make a folder and those above it, or raise an OSError that names it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # although those above are made: in /proc
        code = errno.EACCES
        raise PermissionError(code, os.strerror(code), error.filename) from None
    except FileExistsError as error:
        code = errno.ENOTDIR  # "File exists" says nothing of what it should be
        raise NotADirectoryError(code, os.strerror(code), error.filename) from None


def check_replaceable(path: Path) -> None:
    """Raise OSError for a `path` that exists and is no regular file.

    A device such as /dev/full must not become one.
    """
    if path.exists() and not path.is_file():
        kind = errno.EISDIR if path.is_dir() else errno.EEXIST
        reason = "Is a directory" if path.is_dir() else "Not a regular file: kept as is"
        raise OSError(kind, reason, str(path))


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to `path` on success.

    On an error the temporary file is removed and an earlier `path` stays as it was. The
    block is for writing only: every OSError in it names `path`. Raises OSError, before
    anything is written, unless :func:`check_replaceable` agrees.
    """
    path = Path(path)
    check_replaceable(path)
    make_folder(path.parent)
    with naming(path):
        handle, name = tempfile.mkstemp(
            prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent
        )
    os.close(handle)
    tmp = Path(name)
    try:
        with naming(path):
            yield tmp
            umask = os.umask(0)
            os.umask(umask)
            # mkstemp's 0600 would hide figures from a web server.
            tmp.chmod(0o666 & ~umask)
            os.replace(tmp, path)
    finally:
        tmp.unlink(missing_ok=True)


def check_can_be_made(folder: str | Path) -> None:
    """Raise OSError where :func:`check_writable` surely would; makes nothing."""
    folder = Path(folder).absolute()  # an error if the working directory is gone
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    code = 0
    if not nearest.is_dir():
        code = errno.ENOTDIR
    elif not os.access(nearest, os.W_OK | os.X_OK):
        code = errno.EACCES
    if code:
        raise OSError(code, os.strerror(code), str(nearest))


def check_writable(folder: str | Path) -> None:
    """Raise OSError now rather than after the first epoch has been measured."""
    make_folder(folder)
    with naming(folder), tempfile.TemporaryFile(dir=folder):
        pass
