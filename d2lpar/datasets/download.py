"""Files of a data set: found where a person keeps them, or downloaded; never trusted.

They are looked for in the folder asked for (``--data-dir``), in ``$D2LPAR_DATA``, in
d2lpar's own cache and in MXNet's, and then downloaded from the publisher and its
mirrors into d2lpar's cache. A file counts only if its content is the published one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import platformdirs

from d2lpar.errors import DataError

log = logging.getLogger("d2lpar")

CONNECT_AND_READ_TIMEOUT = (5, 30)  # seconds


class AbsentError(DataError):
    """The files of a set are not in this folder."""


class NotToBeHadError(DataError):
    """No copy on disk, and the download failed."""


def cache_folder(name: str) -> Path:
    """Where d2lpar keeps what it downloads of the data set `name`."""
    return Path(platformdirs.user_cache_dir("d2lpar")) / name


def places(
    title: str,
    name: str,
    root: str | Path | None,
    cache: Path,
    holds: Callable[[Path], bool],
) -> Iterator[tuple[bool, Path]]:
    """Folders to look in, best first, with whether a person asked for this one.

    `name` is the data set's own folder in each. Raises :class:`DataError` for a folder
    asked for that cannot be read; logs it when it `holds` nothing of the set.
    """
    for source, folder in (
        ("--data-dir", root),
        ("D2LPAR_DATA", os.environ.get("D2LPAR_DATA")),
    ):
        if folder is None or str(folder) == "":
            continue
        folder = Path(os.path.expanduser(folder))  # Path's own raises at ~nobody
        _check_readable(source, folder)
        candidates = (folder / name, folder)
        if candidates[0].exists():
            _check_readable(source, candidates[0])
        if not any(map(holds, candidates)):
            log.warning("no %s in %s %s; looking elsewhere", title, source, folder)
        yield from ((True, c) for c in candidates)
    yield False, cache
    mxnet_home = os.environ.get("MXNET_HOME") or Path.home() / ".mxnet"
    yield False, Path(mxnet_home) / "datasets" / name


def _check_readable(source: str, folder: Path) -> None:
    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        raise DataError(f"{source} {folder}: not a folder that can be read")


def first_good(places: Iterator[tuple[bool, Path]], read: Callable):
    """What `read(folder)` makes of the first folder that holds the set, or None.

    A damaged copy that a person asked for is an error; another one is passed over.
    """
    for asked_for, folder in places:
        if not folder.is_dir():
            continue
        try:
            return read(folder)
        except AbsentError:
            continue
        except DataError as error:
            if asked_for:
                raise
            log.warning("%s; not used", error)
    return None


def download(
    title: str,
    files: Sequence[str],
    urls: Sequence[str],
    cache: Path,
    check: Callable[[Path], object],
) -> None:
    """Bring the files into `cache`: all verified, then renamed into place.

    Each is asked for at every one of `urls` in turn; `check(path)` raises
    :class:`DataError` for what is not it. Raises :class:`NotToBeHadError`.
    """
    import pooch

    pooch.get_logger().setLevel(logging.ERROR)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as tmp:
            for file in files:
                _download_file(title, Path(tmp), file, urls, check, pooch)
            for file in files:
                os.replace(Path(tmp) / file, cache / file)
    except OSError as error:
        raise DataError(f"{cache}: cannot be written ({error.strerror})") from None


def _download_file(title, folder: Path, file: str, urls, check, pooch) -> None:
    downloader = pooch.HTTPDownloader(
        progressbar=True, timeout=CONNECT_AND_READ_TIMEOUT
    )
    problems = []
    for url in urls:
        source = pooch.create(
            path=folder, base_url=url, registry={file: None}, retry_if_failed=1
        )
        try:
            check(Path(source.fetch(file, downloader=downloader)))
        except DataError:
            problems.append(f"{url}: sent a truncated, corrupt or foreign {file}")
            (folder / file).unlink(missing_ok=True)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            problems.append(f"{url}: {type(error).__name__}")
        else:
            return
    raise NotToBeHadError(
        f"{title} is not on disk and could not be downloaded ({problems[-1]}); name a "
        "folder that holds it with --data-dir or D2LPAR_DATA"
    )


def sha256_of(arrays) -> str:
    """SHA-256 of the arrays' bytes, one array after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
