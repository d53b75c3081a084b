"""Labelled images in host memory, and the batches that are cut from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from d2lpar.errors import SettingError

# fmt: off
FASHION_CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)
# fmt: on


@dataclass(frozen=True)
class ImageData:
    """Images and labels in host memory; unpacks into its four arrays.

    `X_train`, `X_test`: uint8 (n, 28, 28); `y_train`, `y_test`: uint8 (n,), the number
    of the class in `classes`. `name` is "fashion-mnist", or "fashion-mnist-sample" for
    the images in the package.
    """

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    name: str
    classes: tuple[str, ...] = FASHION_CLASSES
    synthetic: ClassVar[bool] = False

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.X_train, self.y_train, self.X_test, self.y_test))

    @cached_property
    def sha256(self) -> str:
        return sha256_of(self)

    @property
    def sizes(self) -> dict[str, int]:
        """The amount of data, as a record states it."""
        return {"n_train": len(self.y_train), "n_test": len(self.y_test)}

    def head(self, n_train: int | None = None, n_test: int | None = None) -> ImageData:
        """The first `n_train` and `n_test` samples (None: all).

        Raises :class:`SettingError` unless there are as many.
        """
        if n_train is None and n_test is None:
            return self
        check_head(self.name, "n_train", n_train, len(self.y_train))
        check_head(self.name, "n_test", n_test, len(self.y_test))
        return replace(
            self,
            X_train=self.X_train[:n_train],
            y_train=self.y_train[:n_train],
            X_test=self.X_test[:n_test],
            y_test=self.y_test[:n_test],
        )


def sha256_of(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of the arrays' bytes, one array after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_head(data: str, name: str, n: int | None, available: int) -> None:
    """Raise :class:`SettingError` unless `n` is None or an int, 1 to `available`."""
    is_int = isinstance(n, (int, np.integer)) and not isinstance(n, bool)
    if n is not None and not (is_int and 1 <= n <= available):
        raise SettingError(
            f"{name} {n}: {data} has {available}; ask for 1 to {available}"
        )


def batches(X, y, batch_size: int, order=None) -> Iterator[tuple]:
    """One epoch of batches: float32 (n, 1, 28, 28) in [0, 1] and labels uint8 (n,).

    `X` is uint8 (n, 28, 28), or float in [0, 1], and `y` (n,), both NumPy's, or both
    MXNet's on one device, where the batches are then made and stay. `order` is a
    permutation of the samples, of the same kind of array; it does not depend on the
    number of devices. None keeps the order of the data. The last batch may be smaller,
    as in the book. Raises ValueError for X and y of different lengths, and for a batch
    size below 1.
    """
    if len(X) != len(y) or batch_size < 1:
        raise ValueError(
            f"batches: {len(X)} images, {len(y)} labels, batch size {batch_size}: "
            "write one label for each image, and batches of 1 or more"
        )
    # The data stays uint8, a quarter of the memory: converting each batch when it is
    # taken is as fast as taking it from float32.
    for start in range(0, len(y), batch_size):
        stop = start + batch_size
        if order is None:
            yield to_float(X[start:stop]), y[start:stop]
        else:
            index = order[start:stop]
            # The indices are in range; "clip" is the one mode that MXNet has.
            X_batch = X.take(index, axis=0, mode="clip")
            yield to_float(X_batch), y.take(index, axis=0, mode="clip")


def to_float(images):
    """Images (n, h, w) as float32 (n, 1, h, w), like d2l's ToTensor.

    Integers are images in 0..255, and become [0, 1]; floats are taken as they are.
    """
    pixels = images[:, None].astype("float32")
    return pixels if np.dtype(images.dtype).kind == "f" else pixels / 255
