"""One run at a time under one name in one folder: a lock file, held while it lasts.

Two runs under one name would mix their epochs in one record. The system releases the
lock when its process ends, however it ends: the file of a killed run locks nothing.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from d2lpar.errors import RunError
from d2lpar.records.atomic import make_folder, naming

log = logging.getLogger("d2lpar")

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # some network disks


@contextmanager
def locked(folder: Path, run: str) -> Iterator[Path]:
    """Hold ``<folder>/.<run>.lock``, which says which process of which host holds it.

    Raises :class:`RunError` while another run holds it, and OSError where it cannot be
    written.
    """
    make_folder(folder)
    path = folder / f".{run}.lock"
    with naming(path):
        handle = _taken(path)
        host, before = socket.gethostname(), _holder(handle)
        if before and not before.endswith(f" on {host}"):
            # Most network disks pass locks on between hosts; this one may not.
            log.warning("%s: was left by %s; make sure that it has ended", path, before)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {host}".encode(), 0)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)  # while it is held: it is nobody else's
        os.close(handle)


def _taken(path: Path) -> int:
    """The open, locked file; :class:`RunError` where another process has locked it."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(handle) or "which does not give its name"
            if error.errno in _NO_LOCKS_HERE:
                log.warning(
                    "%s: cannot be locked (%s); make sure that no other run writes "
                    "under this name",
                    *(path, error.strerror),
                )
                return handle
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise
            run = path.with_name(path.name[1:].removesuffix(".lock"))
            raise RunError(
                f"{run}: another run writes to it ({holder}); wait until it has ended, "
                "or give another --out"
            ) from None
        # Its last holder may just have deleted it: then it locks nothing.
        if _is_at(path, handle):
            return handle
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _holder(handle: int) -> str:
    """What the file says, as a line that a terminal can show."""
    text = os.pread(handle, 200, 0).decode(errors="replace")
    return "".join(filter(str.isprintable, text))
