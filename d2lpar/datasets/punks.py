"""Faces of 24 x 24 pixels for the GAN: the CryptoPunks, or generated ones.

The 10,000 CryptoPunks are one image, ``punks.png``, of 100 x 100 tiles. It is found or
downloaded (:mod:`d2lpar.datasets.download`), never redistributed: the artwork has no open
licence. Where it cannot be had, :func:`load` falls back to generated faces, says so,
and marks them synthetic.

Source: Larva Labs, "CryptoPunks" (2017); the tiles are cut as seed 003 does.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from d2lpar.datasets import download
from d2lpar.datasets.download import AbsentError, NotToBeHadError, sha256_of
from d2lpar.datasets.generated.faces import synthetic_punks
from d2lpar.errors import DataError, SettingError

log = logging.getLogger("d2lpar")

PUNKS_FILE = "punks.png"
PUNKS_SHA256 = "ac39af4793119ee46bbff351d8cb6b5f23da60222126add4268e261199a2921b"
PUNKS_URLS = ("https://raw.githubusercontent.com/larvalabs/cryptopunks/master/",)
TILES, TILE = 100, 24  # along each side of the image; pixels along each side of a tile
DATA_NAMES = ("auto", "cryptopunks", "synthetic")


@dataclass(frozen=True)
class FaceData:
    """Faces in host memory: `X` uint8 (n, 3, 24, 24); `sha256` is of its bytes."""

    X: np.ndarray
    name: str
    sha256: str

    @property
    def synthetic(self) -> bool:
        return self.name.startswith("synthetic")

    @property
    def sizes(self) -> dict[str, int]:
        """What a record says of how much data there is."""
        return {"n_train": len(self.X)}

    def head(self, n_train: int | None = None) -> FaceData:
        """The first `n_train` faces (None: all), with their hash."""
        if n_train is None or n_train == len(self.X):
            return self
        if not 1 <= n_train <= len(self.X):
            raise SettingError(
                f"n_train {n_train}: {self.name} has {len(self.X)}; ask for 1 to "
                f"{len(self.X)}"
            )
        X = self.X[:n_train]
        return replace(self, X=X, sha256=sha256_of([X]))


def load(
    name: str = "auto",
    *,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    seed: int = 0,
) -> FaceData:
    """The faces of a run, by name, cut to the first `n_train`.

    "cryptopunks" are the real ones or a :class:`DataError`; "synthetic" are generated
    from `seed`; "auto" are the real ones where they can be had, else generated, with a
    line on the log that says so.
    """
    real = _real(name, data_dir)
    if real is not None:
        return real.head(n_train)
    X = synthetic_punks(TILES**2 if n_train is None else n_train, seed)
    return FaceData(X, "synthetic-punks", sha256_of([X]))


def on_disk(
    name: str, n_train: int | None, seed: int, data_dir: str | Path | None = None
) -> FaceData | None:
    """The faces that :func:`load` gave a run, without downloading; None if absent."""
    if name.startswith("synthetic"):
        return load("synthetic", n_train=n_train, seed=seed)
    X = download.first_good(_places(data_dir), _read_folder)
    return None if X is None else _face_data(X).head(n_train)


def locate(name: str = "auto", data_dir: str | Path | None = None) -> str:
    """Settle "auto": "cryptopunks" if they can be had (downloaded), or "synthetic"."""
    return "synthetic" if _real(name, data_dir) is None else "cryptopunks"


def _real(name: str, data_dir: str | Path | None) -> FaceData | None:
    """The real faces, or None where generated ones take their place."""
    if name not in DATA_NAMES:
        raise SettingError(f"data {name!r}: write one of {', '.join(DATA_NAMES)}")
    if name == "synthetic":
        return None
    try:
        return cryptopunks(data_dir)
    except NotToBeHadError as error:
        if name == "cryptopunks":
            raise
        log.warning("%s; using generated faces (synthetic) instead", error)
        return None


def cryptopunks(root: str | Path | None = None) -> FaceData:
    """The real 10,000 CryptoPunks.

    ``punks.png`` is looked for in `root` (itself or its folder ``cryptopunks``),
    ``$D2LPAR_DATA``, d2lpar's cache, MXNet's cache, then downloaded. Raises
    :class:`DataError` for a folder that cannot be read, for a truncated or foreign
    file in `root` or ``$D2LPAR_DATA``, and when there is no copy and no network.
    """
    X = download.first_good(_places(root), _read_folder)
    if X is None:
        cache = cache_folder()
        download.download("CryptoPunks", [PUNKS_FILE], PUNKS_URLS, cache, read_tiles)
        X = _read_folder(cache)
    return _face_data(X)


def _places(root: str | Path | None) -> Iterator[tuple[bool, Path]]:
    def holds(folder: Path) -> bool:
        return (folder / PUNKS_FILE).is_file()

    return download.places("CryptoPunks", "cryptopunks", root, cache_folder(), holds)


def _face_data(X: np.ndarray) -> FaceData:
    return FaceData(X, "cryptopunks", sha256_of([X]))


def cache_folder() -> Path:
    """Where d2lpar keeps the CryptoPunks that it downloads."""
    return download.cache_folder("cryptopunks")


def _read_folder(folder: Path) -> np.ndarray:
    if not (folder / PUNKS_FILE).is_file():
        raise AbsentError(f"no {PUNKS_FILE} in {folder}")
    return read_tiles(folder / PUNKS_FILE)


def read_tiles(path: Path) -> np.ndarray:
    """The tiles of ``punks.png``, row by row: uint8 (10000, 3, 24, 24).

    Alpha is dropped, as by the seed's ``.convert("RGB")``: in the file, transparent
    pixels are black. Raises :class:`DataError` naming the file and what is wrong.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    side = TILES * TILE
    try:
        image = Image.open(io.BytesIO(content))
        is_one = image.size == (side, side)
        pixels = np.asarray(image.convert("RGB")) if is_one else None  # it may be large
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image; delete it") from None
    except Image.DecompressionBombError:
        raise DataError(f"{path}: an image far too large; delete it") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: truncated or corrupt ({error}); delete it") from None
    if not is_one:
        raise DataError(
            f"{path}: an image of {image.width} x {image.height} pixels where {side} x "
            f"{side} are the CryptoPunks; delete it"
        )
    if hashlib.sha256(content).hexdigest() != PUNKS_SHA256:
        raise DataError(
            f"{path}: not the published CryptoPunks (its SHA-256 differs): corrupt or "
            "foreign; delete it"
        )
    tiles = pixels.reshape(TILES, TILE, TILES, TILE, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles.reshape(TILES**2, 3, TILE, TILE))
