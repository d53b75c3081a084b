"""Faces of 24 x 24 pixels for the GAN: the CryptoPunks, or drawn ones.

The 10,000 CryptoPunks are one image, ``punks.png``, of 100 x 100 tiles. It is never
redistributed: the artwork has no open licence. Where there is neither a copy nor a
network, :func:`load` falls back to drawn faces, logs it, and marks them synthetic.

Source: Larva Labs, "CryptoPunks" (2017); cut into tiles as in the CryptoPunks notebook.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from d2lpar.datasets.download import PublishedFiles, read_bytes
from d2lpar.datasets.drawn_faces import synthetic_punks
from d2lpar.datasets.images import check_head, sha256_of
from d2lpar.errors import DataError

PUNKS_SHA256 = "ac39af4793119ee46bbff351d8cb6b5f23da60222126add4268e261199a2921b"
TILES, TILE = 100, 24  # along each side of the image; pixels along each side of a tile


@dataclass(frozen=True)
class FaceData:
    """Faces in host memory: `X` uint8 (n, 3, 24, 24)."""

    X: np.ndarray
    name: str

    @cached_property
    def sha256(self) -> str:
        return sha256_of([self.X])

    @property
    def synthetic(self) -> bool:
        return self.name.startswith("synthetic")

    @property
    def sizes(self) -> dict[str, int]:
        """The amount of data, as a record states it."""
        return {"n_train": len(self.X)}

    def head(self, n_train: int | None = None) -> FaceData:
        """The first `n_train` faces (None: all).

        Raises :class:`SettingError` unless there are as many.
        """
        if n_train is None or n_train == len(self.X):
            return self
        check_head(self.name, "n_train", n_train, len(self.X))
        return replace(self, X=self.X[:n_train])


def load(
    name: str = "auto",
    *,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    seed: int = 0,
) -> FaceData:
    """The faces of a run, by name, cut to the first `n_train`.

    "cryptopunks" are the real ones or a :class:`DataError`; "synthetic" are drawn from
    `seed`; "auto" are the real ones if they can be had, else drawn ones, which is
    logged.
    """
    arrays = CRYPTOPUNKS.load_or_none(name, data_dir)
    if arrays is not None:
        return FaceData(*arrays, "cryptopunks").head(n_train)
    X = synthetic_punks(TILES**2 if n_train is None else n_train, seed)
    return FaceData(X, "synthetic-punks")


def on_disk(
    name: str, n_train: int | None, seed: int, data_dir: str | Path | None = None
) -> FaceData | None:
    """The faces that :func:`load` gave a run, without downloading; None if absent.

    `name` is that of the :class:`FaceData`, "cryptopunks" or "synthetic-punks".
    """
    if name.startswith("synthetic"):
        return load("synthetic", n_train=n_train, seed=seed)
    arrays = CRYPTOPUNKS.load_from_disk(data_dir)
    return arrays and FaceData(*arrays, "cryptopunks").head(n_train)


def locate(name: str = "auto", data_dir: str | Path | None = None) -> str:
    """Settle "auto": "cryptopunks" if on disk or downloaded now, or "synthetic".

    Files on disk are looked for, not read. Raises :class:`DataError` for a folder that
    cannot be read, and :class:`SettingError` for a name that does not exist.
    """
    return CRYPTOPUNKS.locate(name, data_dir)


def cryptopunks(data_dir: str | Path | None = None) -> FaceData:
    """The real 10,000 CryptoPunks.

    Raises what :meth:`d2lpar.datasets.download.PublishedFiles.load` raises.
    """
    return load("cryptopunks", data_dir=data_dir)


def read_tiles(path: Path) -> np.ndarray:
    """The tiles of ``punks.png``, row by row: uint8 (10000, 3, 24, 24).

    Alpha is dropped, as by the CryptoPunks notebook's ``.convert("RGB")``: in the file,
    transparent pixels are black. Raises :class:`DataError` naming the file and what is
    wrong with it.
    """
    from PIL import Image, UnidentifiedImageError

    side, content = TILES * TILE, read_bytes(path)
    try:
        image = Image.open(io.BytesIO(content))
        fits = image.size == (side, side)
        pixels = np.asarray(image.convert("RGB")) if fits else None  # it may be large
    except UnidentifiedImageError:
        raise DataError(f"{path}: not an image; delete it") from None
    except Image.DecompressionBombError:
        raise DataError(f"{path}: an image far too large; delete it") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: truncated or corrupt ({error}); delete it") from None
    if pixels is None:
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


CRYPTOPUNKS = PublishedFiles(
    name="cryptopunks",
    title="CryptoPunks",
    substitute="drawn faces",
    files=("punks.png",),
    urls=("https://raw.githubusercontent.com/larvalabs/cryptopunks/master/",),
    read_file=read_tiles,
)
