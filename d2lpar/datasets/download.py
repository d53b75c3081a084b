"""Files of a published data set, found on disk or downloaded, and verified.

They are looked for in the folder asked for (``--data-dir``), in ``$D2LPAR_DATA``, in
d2lpar's cache and in MXNet's. If they are in none of these, they are downloaded from
the publisher or a mirror into d2lpar's cache. A file counts only if its content is the
published one.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy
import platformdirs

from d2lpar.errors import DataError, SettingError

log = logging.getLogger("d2lpar")

CONNECT_AND_READ_TIMEOUT = (5, 30)  # seconds


class DownloadError(DataError):
    """There is no copy on disk, and the download failed."""


@dataclass(frozen=True)
class PublishedFiles:
    """A data set that was published as files, and where to find them.

    `name` is its value of ``--data`` and the name of its folder, `title` its name in
    messages. `substitute` is the value of ``--data`` for what is used if it cannot be
    had. Each of `files` is below every one of `urls`; on disk, a ``.gz`` may be
    decompressed. ``read_file(path)`` returns the array in a file, and raises
    :class:`DataError` unless its content is the published one.
    """

    name: str
    title: str
    substitute: str
    files: tuple[str, ...]
    urls: tuple[str, ...]
    read_file: Callable[[Path], numpy.ndarray]

    @property
    def cache_folder(self) -> Path:
        """Where the downloaded files are kept."""
        return Path(platformdirs.user_cache_dir("d2lpar")) / self.name

    def locate(self, name: str, data_dir: str | Path | None = None) -> str:
        """Settle "auto": the data set's own name, or its substitute's, which is logged.

        Files on disk are looked for, not read; if there are none, "auto" downloads
        them. Raises :class:`DataError` for a folder asked for that cannot be read, and
        :class:`SettingError` for other names.
        """
        names = ("auto", self.name, self.substitute)
        if name not in names:
            raise SettingError(f"data {name!r}: write one of {', '.join(names)}")
        if name == self.substitute:
            return name
        for source, folder in self.folders(data_dir):
            if any(self.find(folder)):
                return self.name
            if source:
                line = "no %s in %s %s; looking elsewhere"
                log.warning(line, self.title, source, folder)
        if name == "auto":
            try:
                self._download()
            except DownloadError as error:
                log.warning("%s; using --data %s instead", error, self.substitute)
                return self.substitute
        return self.name

    def load(self, data_dir: str | Path | None = None) -> list[numpy.ndarray]:
        """The array in each file, from disk or downloaded.

        Raises :class:`DataError` for a folder that cannot be read, for a truncated,
        corrupt or foreign file in `data_dir` or ``$D2LPAR_DATA``, and when there is
        neither a copy nor a network.
        """
        arrays = self.load_from_disk(data_dir)
        if arrays is None:
            self._download()
            arrays = self.read(self.cache_folder)
        return arrays

    def load_from_disk(
        self, data_dir: str | Path | None = None
    ) -> list[numpy.ndarray] | None:
        """The arrays from the first folder that holds the files, or None.

        A damaged copy in a folder that was asked for is an error; elsewhere it is
        logged and skipped.
        """
        for source, folder in self.folders(data_dir):
            if any(self.find(folder)):
                try:
                    return self.read(folder)
                except DataError as error:
                    if source:
                        raise
                    log.warning("%s; not used", error)
        return None

    def folders(self, data_dir: str | Path | None = None) -> list[tuple[str, Path]]:
        """(source, folder) in search order; source is a flag, a variable or "".

        Raises :class:`DataError` for a folder asked for that cannot be read.
        """
        asked_for = {"--data-dir": data_dir, "D2LPAR_DATA": os.getenv("D2LPAR_DATA")}
        found = []
        for source, folder in asked_for.items():
            if folder:
                folder = Path(os.path.expanduser(folder))
                check_folder(source, folder)
                found += [(source, folder)]
        mxnet_home = Path(os.getenv("MXNET_HOME") or Path.home() / ".mxnet")
        return [*found, ("", self.cache_folder), ("", mxnet_home / "datasets")]

    def find(self, folder: Path) -> list[Path | None]:
        """Each file in a folder or in the data set's folder in it; None if in neither.

        The first of both that holds any file, compressed or not.
        """
        for place in (folder / self.name, folder):
            pairs = [(place / f, place / f.removesuffix(".gz")) for f in self.files]
            found = [next((p for p in pair if p.is_file()), None) for pair in pairs]
            if any(found):
                break
        return found

    def read(self, folder: Path) -> list[numpy.ndarray]:
        """The array in each file of a folder; :class:`DataError` if one is missing."""
        paths = self.find(folder)
        for file, path in zip(self.files, paths):
            if path is None:
                raise DataError(
                    f"{folder}: {file} is missing; put all {len(paths)} files there, "
                    "or none"
                )
        return [self.read_file(path) for path in paths]

    def _download(self) -> None:
        """Bring the files into the cache: all verified, then renamed into place."""
        cache = self.cache_folder
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as tmp:
                for file in self.files:
                    self._download_file(file, Path(tmp))
                for file in self.files:
                    os.replace(Path(tmp) / file, cache / file)
        except OSError as error:
            raise DataError(f"{cache}: cannot be written ({error.strerror})") from None

    def _download_file(self, file: str, folder: Path) -> None:
        """Download and verify a file, from the first of the URLs that has it."""
        import pooch

        pooch.get_logger().setLevel(logging.ERROR)
        downloader = pooch.HTTPDownloader(
            progressbar=sys.stderr.isatty(), timeout=CONNECT_AND_READ_TIMEOUT
        )
        for url in self.urls:
            server = urlsplit(url).hostname
            try:
                # pooch would check the hash of the compressed file: ours is checked.
                pooch.retrieve(
                    url + file, None, fname=file, path=folder, downloader=downloader
                )
                self.read_file(folder / file)
                return
            except DataError:
                problem = f"{url}: not the published {file}"
                (folder / file).unlink(missing_ok=True)
            except (OSError, ValueError) as error:  # requests' errors are OSErrors
                problem = f"{server}: {type(error).__name__}"
        raise DownloadError(
            f"{self.title}: not on disk, nor downloaded ({problem}); name its folder "
            "with --data-dir or D2LPAR_DATA"
        )


def check_folder(source: str, folder: Path) -> None:
    """Raise :class:`DataError` unless a folder that `source` names can be read."""
    if not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        raise DataError(f"{source} {folder}: not a folder that can be read")


def read_published(path: Path, sha256: str, size: int) -> bytes:
    """The content of a file, of a ``.gz`` decompressed, if it has this SHA-256.

    Mirrors compress differently, but what is in the file is the same: `size` bytes, and
    no more than one beyond them is read. Raises :class:`DataError` for another content,
    and if the file cannot be read.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            content = file.read(size + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        content = b""
    except MemoryError:
        raise DataError(f"{path}: does not fit in the free memory") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: truncated, corrupt, or another file under this name (not the "
            "published SHA-256); delete or rename it"
        )
    return content
