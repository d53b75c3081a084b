"""Files of a published data set, verified.

They come from ``$D2LPAR_DATA``, or the user's cache, into which pooch downloads them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from d2lpar.errors import DataError, SettingError

log = logging.getLogger("d2lpar")


@dataclass(frozen=True)
class PublishedFiles:
    """Describe a data set that was published as files: names, hashes, addresses."""

    name: str  # of its folder, and in --data
    title: str
    substitute: str  # in --data, if the data set cannot be had
    registry: dict[str, str]  # the SHA-256 of each file
    urls: tuple[str, ...]  # with all the files below each

    def locate(self, name: str = "auto") -> str:
        """Resolve "auto" to the name of a data set; raise what :meth:`paths` raises."""
        return self.name if self.paths(name) else self.substitute

    def paths(self, name: str) -> list[Path]:
        """Return the files, downloaded if need be, or [] for the substitute.

        Raises :class:`DataError` for damaged files, and for missing ones unless
        `name` is "auto".
        """
        names = ("auto", self.name, self.substitute)
        if name not in names:
            raise SettingError(f"data {name!r}: write one of {', '.join(names)}")
        if name == self.substitute:
            return []
        if asked_for := os.getenv("D2LPAR_DATA"):
            folder = Path(asked_for).expanduser()
            if not folder.is_dir():
                raise DataError(f"D2LPAR_DATA {folder}: not a folder")
            if found := self.paths_in(folder):
                return found
            log.warning("%s is not whole in D2LPAR_DATA %s", self.title, folder)
        try:
            return [self.fetch(file) for file in self.registry]
        except DataError as error:
            if name != "auto":
                instead = f"or take the data {self.substitute!r}"
                raise DataError(f"{error}; {instead}") from None
            log.warning("%s; using --data %s instead", error, self.substitute)
            return []

    def paths_in(self, folder: Path) -> list[Path]:
        """Return the files in a folder or its subfolder `name`; [] unless all exist."""
        for place in (folder / self.name, folder):
            paths = [place / file for file in self.registry]
            if all(path.is_file() for path in paths):
                for path in paths:
                    digest = hashlib.sha256(path.read_bytes()).hexdigest()
                    if digest != self.registry[path.name]:
                        raise DataError(
                            f"{path}: truncated, corrupt, or another file under this "
                            "name (not the published SHA-256); delete or rename it"
                        )
                return paths
        return []

    def fetch(self, file: str) -> Path:
        """Return a file in the cache; download it from the first URL that has it."""
        import pooch

        pooch.get_logger().setLevel(logging.ERROR)
        timeout = 5, 30  # seconds at most, to connect and to read
        bar = sys.stderr.isatty()
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=timeout)
        cache, problems = pooch.os_cache("d2lpar") / self.name, []
        digest = self.registry[file]
        for url in self.urls:
            try:
                return Path(
                    pooch.retrieve(url + file, digest, file, cache, None, downloader)
                )
            except (OSError, ValueError) as error:  # ValueError: another SHA-256
                why = getattr(error, "strerror", None) or type(error).__name__
                problems.append(f"{urlsplit(url).hostname}: {why}")
        raise DataError(
            f"{self.title}: not on disk, nor downloaded to {cache} "
            f"({', '.join(problems)}); name a cache by XDG_CACHE_HOME, or its "
            "folder by D2LPAR_DATA"
        )
