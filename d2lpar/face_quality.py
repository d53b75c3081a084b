"""How close generated faces are to real ones: a distance, and the nearest neighbours.

Both look at pixels alone, so that no downloaded network is needed.
"""

from __future__ import annotations

import numpy as np

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
