"""Fashion-MNIST in host memory, or the sample of it in the package.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017), MIT:
``data/FASHION-MNIST-LICENCE``.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import ClassVar

import numpy

from d2lpar.datasets.download import PublishedFiles
from d2lpar.errors import DataError, SettingError

SAMPLE = Path(__file__).parent / "data" / "fashion_sample.npz"

FASHION_MNIST = PublishedFiles(
    name="fashion-mnist",
    title="Fashion-MNIST",
    substitute="sample",
    # Their MD5 are those that the publisher's README states.
    registry={
        "train-images-idx3-ubyte.gz": (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"
        ),
        "train-labels-idx1-ubyte.gz": (
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"
        ),
        "t10k-images-idx3-ubyte.gz": (
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"
        ),
        "t10k-labels-idx1-ubyte.gz": (
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"
        ),
    },
    # The publisher's two; the SHA-256 guards the second one, which has no HTTPS.
    urls=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/"
        "fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
)
locate = FASHION_MNIST.locate

FASHION_CLASSES = (
    "t-shirt/top", "trouser", "pullover", "dress", "coat",
    "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip


@dataclass(frozen=True)
class ImageData:
    """Hold images and labels; unpack as (X_train, y_train, X_test, y_test).

    `X_train` and `X_test` are uint8 (n, 28, 28), `y_train` and `y_test`, uint8 (n,),
    indices of `classes`.
    """

    X_train: numpy.ndarray
    y_train: numpy.ndarray
    X_test: numpy.ndarray
    y_test: numpy.ndarray
    name: str
    classes: tuple[str, ...] = FASHION_CLASSES
    synthetic: ClassVar[bool] = False

    def __iter__(self) -> Iterator[numpy.ndarray]:
        return iter((self.X_train, self.y_train, self.X_test, self.y_test))

    @cached_property
    def sha256(self) -> str:
        return sha256_of(self)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of the data as fields of a record's settings."""
        return {"n_train": len(self.y_train), "n_test": len(self.y_test)}

    def head(self, n_train: int | None = None, n_test: int | None = None) -> ImageData:
        """Return the first samples (None: all), or raise :class:`SettingError`."""
        check_head(self.name, "n_train", n_train, len(self.y_train))
        check_head(self.name, "n_test", n_test, len(self.y_test))
        return self.take(slice(n_train), slice(n_test))

    def take(self, train, test) -> ImageData:
        """Return the samples at these indices, or in these slices."""
        return replace(
            self,
            X_train=self.X_train[train],
            y_train=self.y_train[train],
            X_test=self.X_test[test],
            y_test=self.y_test[test],
        )


def load(
    name: str = "auto",
    *,
    n_train: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
) -> ImageData:
    """Return the first `n_train` and `n_test` images of a data set.

    `name` is "fashion-mnist", "sample" (:func:`fashion_sample`), or "auto", which is
    the sample if the real data cannot be had.
    """
    if paths := FASHION_MNIST.paths(name):
        X_train, y_train, X_test, y_test = map(read_idx, paths)
        whole = ImageData(X_train, y_train, X_test, y_test, "fashion-mnist")
        return whole.head(n_train, n_test)
    return fashion_sample(n_train, n_test, seed)


def fashion_mnist() -> ImageData:
    """Return all of Fashion-MNIST: 60,000 and 10,000 images; or raise DataError."""
    return load("fashion-mnist")


def fashion_sample(
    n_train: int | None = None, n_test: int | None = None, seed: int = 0
) -> ImageData:
    """Return images of Fashion-MNIST from the package, chosen by `seed`.

    There are 5,000 for training and 1,000 for testing, the same number of each class.
    Raises :class:`SettingError` for more.
    """
    with numpy.load(SAMPLE) as arrays:
        whole = ImageData(**arrays, name="fashion-mnist-sample")
    whole.head(n_train, n_test)  # raises for more than there are
    rng = numpy.random.default_rng(seed)
    train = numpy.sort(rng.permutation(len(whole.y_train))[:n_train])
    test = numpy.sort(rng.permutation(len(whole.y_test))[:n_test])
    return whole.take(train, test)


def read_idx(path: str | Path) -> numpy.ndarray:
    """Return the uint8 array of an IDX file, gzipped or not, as Fashion-MNIST's.

    Raises :class:`DataError` for a file of another kind, ValueError for half a one.
    """
    content = Path(path).read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    if not content.startswith(b"\0\0\x08"):  # \x08: uint8
        raise DataError(f"{path}: not an IDX file of uint8")
    axes = content[3]
    shape = numpy.frombuffer(content, ">u4", axes, offset=4)  # before the numbers
    return numpy.frombuffer(content, "u1", offset=4 + 4 * axes).reshape(shape)


def sha256_of(arrays: Iterable[numpy.ndarray]) -> str:
    """Return the SHA-256 of the arrays' bytes, one array after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(numpy.ascontiguousarray(array).data)
    return digest.hexdigest()


def check_head(data: str, name: str, n: int | None, available: int) -> None:
    """Raise :class:`SettingError` unless `n` is None or whole, 1 to `available`."""
    if n is not None and not (isinstance(n, Integral) and 1 <= n <= available):
        raise SettingError(
            f"{name} {n!r}: {data} has {available}; ask for 1 to {available}"
        )


def batches(X, y, batch_size: int, order=None) -> Iterator[tuple]:
    """Yield one epoch of batches: float32 (n, 1, 28, 28) in [0, 1] and uint8 (n,).

    `X`, uint8 (n, 28, 28) or float in [0, 1], `y` (n,) and `order`, a permutation or
    None, are NumPy's, or MXNet's on one device. The last batch may be smaller. Raises
    ValueError for floats above 1, which are pixels that were not divided by 255, for
    NaN and integers beyond 0..255; TypeError for bool.
    """
    if len(X) != len(y):
        raise ValueError(f"batches: {len(X)} images, {len(y)} labels: write one each")
    check_scaled(X)
    # The data stays uint8, a quarter of the memory.
    for start in range(0, len(y), batch_size):
        batch = slice(start, start + batch_size)
        if order is None:
            yield to_float(X[batch]), y[batch]
        else:
            index = order[batch]
            # The indices are in range: the mode "clip" changes none.
            X_batch = X.take(index, axis=0, mode="clip")
            yield to_float(X_batch), y.take(index, axis=0, mode="clip")


def check_scaled(X) -> None:
    """Raise ValueError unless pixels are integers in 0..255, or floats up to 1.

    `X` is NumPy's or MXNet's. Floats may be below 0, but not NaN.
    """
    dtype = numpy.dtype(X.dtype)
    if dtype.kind not in "fiu" or dtype == numpy.uint8 or X.size == 0:
        return
    limits = (-numpy.inf, 1) if dtype.kind == "f" else (0, 255)
    least, largest = float(X.min()), float(X.max())
    if not limits[0] <= least <= largest <= limits[1]:
        raise ValueError(
            f"X is {dtype}, from {least:g} to {largest:g}: write pixels in [0, 1], as "
            "X / 255, or integers in 0 to 255"
        )


def to_float(images):
    """Return images (n, h, w) as float32 (n, 1, h, w); integers become [0, 1].

    Raises TypeError for bool, which would become 1/255.
    """
    dtype = numpy.dtype(images.dtype)
    if dtype.kind == "b":
        raise TypeError("images are bool: write uint8, as 255 * X.astype('uint8')")
    pixels = images[:, None].astype("float32")
    return pixels if dtype.kind == "f" else pixels / 255
