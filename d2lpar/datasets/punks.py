"""Faces of 24 x 24 pixels for the GAN.

Source: Larva Labs, "CryptoPunks" (2017), tiled as in the CryptoPunks notebook; never
redistributed: there is no open licence.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy
from PIL import Image

from d2lpar.datasets.download import PublishedFiles
from d2lpar.datasets.drawn_faces import synthetic_punks
from d2lpar.datasets.fashion import check_head, sha256_of

TILES, TILE = 100, 24  # along each side of the image; pixels along each side of a tile

CRYPTOPUNKS = PublishedFiles(
    name="cryptopunks",
    title="CryptoPunks",
    substitute="synthetic",
    # The hash in the contract that sells them.
    registry={
        "punks.png": "ac39af4793119ee46bbff351d8cb6b5f23da60222126add4268e261199a2921b"
    },
    urls=("https://raw.githubusercontent.com/larvalabs/cryptopunks/master/",),
)
locate = CRYPTOPUNKS.locate


@dataclass(frozen=True)
class FaceData:
    """Hold faces in host memory: `X` uint8 (n, 3, 24, 24)."""

    X: numpy.ndarray
    name: str

    @cached_property
    def sha256(self) -> str:
        return sha256_of([self.X])

    @property
    def synthetic(self) -> bool:
        return self.name.startswith("synthetic")

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of the data as fields of a record's settings."""
        return {"n_train": len(self.X)}

    def head(self, n_train: int | None = None) -> FaceData:
        """Return the first faces (None: all), or raise :class:`SettingError`."""
        check_head(self.name, "n_train", n_train, len(self.X))
        return replace(self, X=self.X[:n_train])


def load(name: str = "auto", *, n_train: int | None = None, seed: int = 0) -> FaceData:
    """Return the first `n_train` faces.

    "cryptopunks" are the real faces, or raise :class:`DataError`; "synthetic" ones are
    drawn from `seed`; "auto" are real if they can be had, else drawn.
    """
    if paths := CRYPTOPUNKS.paths(name):
        return FaceData(read_tiles(paths[0]), "cryptopunks").head(n_train)
    X = synthetic_punks(TILES**2 if n_train is None else n_train, seed)
    return FaceData(X, "synthetic-punks")


def cryptopunks() -> FaceData:
    """Return the real 10,000 CryptoPunks, or raise DataError."""
    return load("cryptopunks")


def read_tiles(path: Path) -> numpy.ndarray:
    """Return the tiles of ``punks.png`` by rows, uint8 (10000, 3, 24, 24), no alpha."""
    pixels = numpy.asarray(Image.open(path).convert("RGB"))
    tiles = pixels.reshape(TILES, TILE, TILES, TILE, 3).transpose(0, 2, 4, 1, 3)
    return numpy.ascontiguousarray(tiles.reshape(TILES**2, 3, TILE, TILE))


def sheet(faces: numpy.ndarray, columns: int) -> numpy.ndarray:
    """Return faces uint8 (n, 3, h, w) as a picture (rows * h, columns * w, 3)."""
    n, _, h, w = faces.shape
    rows = -(-n // columns)
    tiles = numpy.full((rows * columns, h, w, 3), 255, numpy.uint8)
    tiles[:n] = faces.transpose(0, 2, 3, 1)
    tiles = tiles.reshape(rows, columns, h, w, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(rows * h, columns * w, 3)


def enlarged(picture: numpy.ndarray, scale: int) -> numpy.ndarray:
    """Return a picture (h, w, 3) with every pixel a square of `scale` x `scale`."""
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)


def to_png(picture: numpy.ndarray) -> str:
    """Return a picture uint8 (h, w, 3) as a PNG file in base64."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def from_png(text: str, columns: int, rows: int) -> numpy.ndarray:
    """Return the sheet of so many columns and rows that :func:`to_png` wrote."""
    picture = Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")
    return numpy.asarray(picture).reshape(rows * TILE, columns * TILE, 3)


def distances_to(faces: numpy.ndarray, others: numpy.ndarray) -> list[float]:
    """Return each face's distance from the nearest of `others`, uint8 (n, 3, h, w).

    It is the root mean square of pixels' differences in [0, 1].
    """
    distances = []
    pool = others.reshape(len(others), -1)
    for face in faces.reshape(len(faces), -1):  # all pairs would take gigabytes
        squares = numpy.square(pool - face.astype(numpy.float32)).mean(axis=1)
        distances.append(float(numpy.sqrt(squares.min())) / 255)
    return distances
