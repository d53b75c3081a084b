"""Files that are replaced whole or not at all, and errors that name them."""

from __future__ import annotations

import argparse
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
    """Yield a temporary path, renamed to `path` on success; until then `path` stays."""
    path = Path(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")
        try:
            temporary.touch()
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def check_writable(folder: str | Path) -> None:
    """Make a folder and check that files can be written there; raise OSError if not."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        advice = f"{error.strerror}; name a folder that you may write to by --out"
        raise OSError(error.errno, advice, str(folder)) from None


def output_folder(out: str | Path | None = None) -> Path:
    """Return where all outputs go: `out`, or else D2LPAR_OUT, or else ``runs``."""
    return Path(out or os.environ.get("D2LPAR_OUT") or "runs").expanduser()


def cell_output(name: str) -> Path:
    """Return the path of a lesson's output, in the folder that a script's --out names.

    Raises OSError where that folder cannot be written.
    """
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--out")
    folder = output_folder(flags.parse_known_args()[0].out)
    check_writable(folder)
    return folder / name
