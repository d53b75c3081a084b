"""How good generated faces are: how far from the real ones, and how far from a copy."""

from __future__ import annotations

import numpy as np

NUM_DIRECTIONS = 256


def sliced_wasserstein(faces: np.ndarray, others: np.ndarray, seed: int = 0) -> float:
    """Sliced Wasserstein-2 distance of two equally large sets of faces.

    The faces, uint8 (n, 3, h, w), are points with coordinates in [0, 1]. They are
    projected on 256 random directions, drawn from `seed`; on each, the distance is that
    of the sorted projections. Returns the root mean square over directions and points,
    which is 0 for equal sets. Raises ValueError for sets that differ in shape.

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
    """For each face, the number of the nearest of `others`, and its distance.

    Both sets are uint8 (n, 3, h, w). Returns int64 (n,) and float64 (n,): root mean
    square differences of pixels in [0, 1], 0 for a copy.
    """
    numbers, distances = [], []
    pool = others.reshape(len(others), -1)
    for face in faces.reshape(len(faces), -1):
        # One face at a time: the differences of all pairs would take gigabytes.
        squares = np.square(pool - face.astype(np.float32)).mean(axis=1)
        numbers.append(int(squares.argmin()))
        distances.append(float(np.sqrt(squares.min())) / 255)
    return np.array(numbers), np.array(distances)
