"""Generated garments: a stand-in for Fashion-MNIST that needs no download.

The pictures are drawn by :mod:`d2lpar.datasets.generated.garments`. This module decides
which class each one is of, and how often a garment looks like one of another class.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from d2lpar.datasets.generated import garments
from d2lpar.datasets.generated.chunks import CHUNK, draw_first

# fmt: off
FASHION_CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)
# fmt: on

# How often a garment of one class is cut like another, as on a real shop's shelf.
# The label stays: this is what keeps a perfect score out of reach.
_LOOKALIKES = {
    "t-shirt/top": {"shirt": 0.05, "dress": 0.02, "pullover": 0.01},
    "trouser": {"dress": 0.015},
    "pullover": {"coat": 0.04, "shirt": 0.05, "t-shirt/top": 0.01},
    "dress": {"shirt": 0.025, "coat": 0.02, "t-shirt/top": 0.02, "trouser": 0.01},
    "coat": {"pullover": 0.04, "shirt": 0.05, "dress": 0.01},
    "sandal": {"sneaker": 0.02, "ankle boot": 0.01},
    "shirt": {"t-shirt/top": 0.08, "pullover": 0.05, "coat": 0.04, "dress": 0.02},
    "sneaker": {"ankle boot": 0.025, "sandal": 0.015},
    "ankle boot": {"sneaker": 0.03, "sandal": 0.01},
}


def _cut_chances():
    """Chances (10, 9), cumulated along a row, of the first nine cuts per class."""
    chances = np.eye(10)
    for name, others in _LOOKALIKES.items():
        row = FASHION_CLASSES.index(name)
        for other, chance in others.items():
            chances[row, FASHION_CLASSES.index(other)] = chance
            chances[row, row] -= chance
    return chances.cumsum(axis=1)[:, :-1]


def _draw_chunk(seed, stream, chunk):
    """Pictures (500, 28, 28) and labels (500,) of one chunk, both uint8.

    The streams of random numbers are 0, for training, and 1, for testing.
    """
    rng = np.random.default_rng([seed, stream, chunk])
    labels = rng.integers(10, size=CHUNK, dtype=np.uint8)
    cuts = (rng.random((CHUNK, 1)) > _cut_chances()[labels]).sum(axis=1)
    images = np.empty((CHUNK, 28, 28), np.uint8)
    for index, name in enumerate(FASHION_CLASSES):
        members = np.flatnonzero(cuts == index)
        images[members] = garments.draw(name, len(members), rng)
    return images, labels


def synthetic_fashion(
    n_train: int = 60_000, n_test: int = 10_000, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw a data set of garments with the shape of Fashion-MNIST.

    Returns ``(X_train, y_train, X_test, y_test)``: pictures of shape (n, 28, 28) and
    labels of shape (n,), all uint8; label k stands for ``FASHION_CLASSES[k]``.

    The same seed (an integer >= 0) draws the same pictures, the first k of which are
    the same for every n >= k; training and test pictures come from separate streams.
    Raises ValueError unless ``n_train`` and ``n_test`` are integers >= 1.
    """
    test = draw_first(n_test, partial(_draw_chunk, seed, 1), "n_test")
    return *draw_first(n_train, partial(_draw_chunk, seed, 0), "n_train"), *test
