"""Files of a published data set, found on disk or downloaded, and verified.

They are looked for in the folder asked for (``--data-dir``), in ``$D2LPAR_DATA``, in
d2lpar's cache and in MXNet's. If they are in none of these, they are downloaded from
the publisher or a mirror into d2lpar's cache. A file counts only if its content is the
published one.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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
    messages. `substitute` describes what is used if it cannot be had, and
    `substitute_name` is that one's value of ``--data``. Each of `files` is below every
    one of `urls`; on disk, a ``.gz`` may be decompressed. ``read_file(path)`` returns
    the array in a file, and raises :class:`DataError` unless its content is the
    published one.
    """

    name: str
    title: str
    substitute: str
    files: tuple[str, ...]
    urls: tuple[str, ...]
    read_file: Callable[[Path], np.ndarray]
    substitute_name: str = "synthetic"

    @property
    def cache_folder(self) -> Path:
        """Where the downloaded files are kept."""
        return Path(platformdirs.user_cache_dir("d2lpar")) / self.name

    def locate(self, name: str, data_dir: str | Path | None = None) -> str:
        """Settle "auto": the data set's own name, or its substitute's, which is logged.

        Files on disk are looked for, not read; if there are none, they are downloaded.
        Raises :class:`DataError` for a folder asked for that cannot be read, and
        :class:`SettingError` for other names.
        """
        self._check_name(name)
        if name != "auto":
            return name
        for _, folder in self.folders(data_dir):
            if any(self.find(folder)):
                return self.name
        try:
            self._download()
        except DownloadError as error:
            self._log_substitute(error)
            return self.substitute_name
        return self.name

    def load_or_none(
        self, name: str, data_dir: str | Path | None = None
    ) -> list[np.ndarray] | None:
        """The arrays under the name "auto" or the data set's own; None: use the other.

        "auto" gives None where there is neither a copy nor a network, and logs it.
        Raises what :meth:`load` raises, and :class:`SettingError` for other names.
        """
        self._check_name(name)
        if name == self.substitute_name:
            return None
        try:
            return self.load(data_dir)
        except DownloadError as error:
            if name == self.name:
                raise
            self._log_substitute(error)
            return None

    def load(self, data_dir: str | Path | None = None) -> list[np.ndarray]:
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
    ) -> list[np.ndarray] | None:
        """The arrays from the first folder that holds the files, or None.

        A damaged copy in a folder that was asked for is an error; elsewhere it is
        logged and skipped.
        """
        for asked_for, folder in self.folders(data_dir):
            if not any(self.find(folder)):
                continue
            try:
                return self.read(folder)
            except DataError as error:
                if asked_for:
                    raise
                log.warning("%s; not used", error)
        return None

    def folders(
        self, data_dir: str | Path | None = None
    ) -> Iterator[tuple[bool, Path]]:
        """Folders to look in, best first, with whether the user asked for this one.

        Raises :class:`DataError` for a folder asked for that cannot be read; logs it
        when it holds no file of the data set.
        """
        variable = os.environ.get("D2LPAR_DATA")
        for source, folder in ("--data-dir", data_dir), ("D2LPAR_DATA", variable):
            if not folder:
                continue
            folder = Path(os.path.expanduser(folder))  # Path's own raises at ~nobody
            check_folder(source, folder)
            candidates = (folder / self.name, folder)
            if not any(path for c in candidates for path in self.find(c)):
                line = "no %s in %s %s; looking elsewhere"
                log.warning(line, self.title, source, folder)
            yield from ((True, c) for c in candidates)
        yield False, self.cache_folder
        mxnet_home = os.environ.get("MXNET_HOME") or Path.home() / ".mxnet"
        yield False, Path(mxnet_home) / "datasets" / self.name

    def find(self, folder: Path) -> list[Path | None]:
        """Each file in a folder, compressed or not; None if it is not there."""
        pairs = [(folder / f, folder / f.removesuffix(".gz")) for f in self.files]
        return [next((p for p in pair if p.is_file()), None) for pair in pairs]

    def read(self, folder: Path) -> list[np.ndarray]:
        """The array in each file of a folder; :class:`DataError` if one is missing."""
        paths = self.find(folder)
        if None in paths:
            raise DataError(
                f"{folder}: {self.files[paths.index(None)]} is missing; put all "
                f"{len(paths)} files there, or none"
            )
        return [self.read_file(path) for path in paths]

    def _log_substitute(self, error: DownloadError) -> None:
        name = self.substitute_name
        log.warning("%s; using %s (%s) instead", error, self.substitute, name)

    def _check_name(self, name: str) -> None:
        names = ("auto", self.name, self.substitute_name)
        if name not in names:
            raise SettingError(f"data {name!r}: write one of {', '.join(names)}")

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
            try:
                # pooch would check the hash of the compressed file: ours is checked.
                pooch.retrieve(
                    url + file, None, fname=file, path=folder, downloader=downloader
                )
                self.read_file(folder / file)
                return
            except DataError:
                problem = f"{url}: sent a truncated, corrupt or foreign {file}"
                (folder / file).unlink(missing_ok=True)
            except (OSError, ValueError) as error:  # requests' errors are OSErrors
                problem = f"{url}: {type(error).__name__}"
        raise DownloadError(
            f"{self.title} is not on disk and could not be downloaded ({problem}); "
            "name a folder that holds it with --data-dir or D2LPAR_DATA"
        )


def check_folder(source: str, folder: Path) -> None:
    """Raise :class:`DataError` unless a folder that `source` names can be read."""
    if not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
        raise DataError(f"{source} {folder}: not a folder that can be read")


def read_bytes(path: Path) -> bytes:
    """The content of a file, or :class:`DataError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
