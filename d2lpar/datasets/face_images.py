"""Faces as pictures: sheets of tiles, and PNG files as text for a record's line."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def sheet(faces: np.ndarray, columns: int) -> np.ndarray:
    """Faces uint8 (n, 3, h, w) as one picture (rows * h, columns * w, 3), row by row.

    Places that are left over in the last row are white.
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


def png(picture: np.ndarray) -> bytes:
    """A picture uint8 (h, w, 3) as the content of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, format="png", optimize=True)
    return file.getvalue()


def to_png(picture: np.ndarray) -> str:
    """A picture uint8 (h, w, 3) as a PNG file in base64."""
    return base64.b64encode(png(picture)).decode()


def from_png(text: str) -> np.ndarray:
    """The inverse of :func:`to_png`."""
    file = io.BytesIO(base64.b64decode(text))
    return np.asarray(Image.open(file).convert("RGB"))


NUM_FACES = 1_000
NUM_DIRECTIONS = 256


def sliced_wasserstein(faces: np.ndarray, others: np.ndarray, seed: int = 0) -> float:
    """Sliced Wasserstein-2 distance of two sets of faces, uint8 (n, 3, h, w), n alike.

    Faces, as points with coordinates in [0, 1], are projected on 256 random directions;
    on each the distance is that of the sorted projections. Returned is the root mean
    square over directions and points: 0 for equal sets, and the same for the same
    `seed`, which draws the directions. Raises ValueError for sets that differ in shape.

    Source: Rabin, Peyré, Delon, Bernot, "Wasserstein Barycenter and Its Application to
    Texture Mixing" (2011).
    """
    if faces.shape != others.shape:
        raise ValueError(
            f"sliced_wasserstein: {faces.shape} and {others.shape}: compare as many "
            "faces of one size"
        )
    size = int(np.prod(faces.shape[1:]))
    directions = np.random.default_rng(seed).standard_normal(
        (size, NUM_DIRECTIONS), dtype=np.float32
    )
    directions /= np.linalg.norm(directions, axis=0)
    a, b = (
        np.sort(x.reshape(-1, size).astype(np.float32) / 255 @ directions, axis=0)
        for x in (faces, others)
    )
    return float(np.sqrt(np.mean((a - b).astype(float) ** 2)))


def nearest(faces: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each face the number of the nearest of `others`, and how far that is.

    Both are uint8 (n, 3, h, w); returned are int64 (n,) and float64 (n,), root mean
    square differences of pixels in [0, 1]: 0 is a copy.
    """
    numbers, distances = [], []
    pool = others.reshape(len(others), -1)
    for face in faces.reshape(len(faces), -1):
        # A face at a time: all pairs of differences would be gigabytes.
        squares = np.square(pool - face.astype(np.float32)).mean(axis=1)
        numbers.append(int(squares.argmin()))
        distances.append(float(np.sqrt(squares.min())) / 255)
    return np.array(numbers), np.array(distances)
