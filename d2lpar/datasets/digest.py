"""The SHA-256 by which records and tests know a data set again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


def sha256_of(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of the arrays' bytes, one array after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
