"""Faces as pictures: sheets of them, and PNG files, also as text for records."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image

from d2lpar.datasets.punks import TILE
from d2lpar.errors import DataError, SettingError

MAX_AREA = 50_000_000  # pixels of a picture that is written: 150 MB in memory
MAX_SIDE = 2_400  # along each side of a picture from a record: 100 faces


def sheet(faces: np.ndarray, columns: int) -> np.ndarray:
    """Faces uint8 (n, 3, h, w) as one picture (rows * h, columns * w, 3), row by row.

    The rest of an incomplete last row is white.
    """
    n, _, h, w = faces.shape
    rows = -(-n // columns)
    tiles = np.full((rows * columns, h, w, 3), 255, np.uint8)
    tiles[:n] = faces.transpose(0, 2, 3, 1)
    tiles = tiles.reshape(rows, columns, h, w, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(rows * h, columns * w, 3)


def enlarged(picture: np.ndarray, scale: int) -> np.ndarray:
    """The picture (h, w, 3) with every pixel a square of `scale` x `scale`."""
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)


def check_sheet(n: int, columns: int, scale: int) -> None:
    """Raise :class:`SettingError` for an enlarged sheet of more than MAX_AREA pixels.

    >>> check_sheet(100_000, 5, 8)
    Traceback (most recent call last):
    d2lpar.errors.SettingError: 100,000 faces in 5 columns at scale 8: ...
    """
    width, height = columns * TILE * scale, -(-n // columns) * TILE * scale
    if width * height > MAX_AREA:
        raise SettingError(
            f"{n:,} faces in {columns:,} columns at scale {scale:,}: a picture of "
            f"{width:,} x {height:,} pixels; at most {MAX_AREA:,} in all"
        )


def png(picture: np.ndarray) -> bytes:
    """A picture uint8 (h, w, 3) as the content of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="png", optimize=True)
    return file.getvalue()


def to_png(picture: np.ndarray) -> str:
    """A picture uint8 (h, w, 3) as a PNG file in base64."""
    return base64.b64encode(png(picture)).decode()


def from_png(text: str) -> np.ndarray:
    """The inverse of :func:`to_png`; :class:`DataError` for another text."""
    try:
        file = io.BytesIO(base64.b64decode(text, validate=True))
        picture = Image.open(file, formats=["png"])
        if max(picture.size) <= MAX_SIDE:  # known before a pixel is unpacked
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise DataError("no PNG file in base64") from None
    raise DataError(f"a PNG of {picture.size[0]:,} x {picture.size[1]:,} pixels")
