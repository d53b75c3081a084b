"""What the chapters train on, as host arrays: Fashion-MNIST and linear problems.

Fashion-MNIST is found or downloaded (:mod:`d2lpar.datasets.download`). A file counts only if its
*decompressed* content has the published SHA-256: mirrors compress differently. Where
there is neither a copy nor a network, :func:`load` falls back to generated garments,
says so, and marks them synthetic. The GAN's faces are in :mod:`d2lpar.datasets.punks`.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017), MIT licence.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from d2lpar.datasets import download
from d2lpar.datasets.download import AbsentError, NotToBeHadError, sha256_of
from d2lpar.datasets.generated.faces import synthetic_punks  # noqa: F401  part of this module, too
from d2lpar.datasets.generated.fashion import FASHION_CLASSES, synthetic_fashion
from d2lpar.datasets.punks import cryptopunks  # noqa: F401
from d2lpar.errors import DataError, SettingError

log = logging.getLogger("d2lpar")

# name: (SHA-256 of the decompressed file, shape of the array in it)
FASHION_MNIST_FILES = {
    "train-images-idx3-ubyte": (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        (60_000, 28, 28),
    ),
    "train-labels-idx1-ubyte": (
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        (60_000,),
    ),
    "t10k-images-idx3-ubyte": (
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        (10_000, 28, 28),
    ),
    "t10k-labels-idx1-ubyte": (
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        (10_000,),
    ),
}

# The publisher's two addresses, then the mirrors that MXNet and Keras keep.
FASHION_MNIST_URLS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/"
    "fashion-mnist/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
DATA_NAMES = ("auto", "fashion-mnist", "synthetic")


@dataclass(frozen=True)
class ImageData:
    """Images and labels in host memory; unpacks into its four arrays.

    `X_train`, `X_test`: uint8 (n, 28, 28); `y_train`, `y_test`: uint8 (n,), the number
    of the class in `classes`. `sha256` is of the four arrays' bytes, one after the
    other.
    """

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    name: str
    sha256: str
    classes: tuple[str, ...] = FASHION_CLASSES

    def __iter__(self) -> Iterator[np.ndarray]:
        return iter((self.X_train, self.y_train, self.X_test, self.y_test))

    @property
    def synthetic(self) -> bool:
        return self.name.startswith("synthetic")

    @property
    def sizes(self) -> dict[str, int]:
        """What a record says of how much data there is."""
        return {"n_train": len(self.y_train), "n_test": len(self.y_test)}

    def head(self, n_train: int | None = None, n_test: int | None = None) -> ImageData:
        """The first `n_train` and `n_test` samples (None: all), with their hash."""
        for name, n, y in (
            ("n_train", n_train, self.y_train),
            ("n_test", n_test, self.y_test),
        ):
            if n is not None and not 1 <= n <= len(y):
                raise SettingError(
                    f"{name} {n}: {self.name} has {len(y)}; ask for 1 to {len(y)}"
                )
        if n_train is None and n_test is None:
            return self
        arrays = (
            self.X_train[:n_train],
            self.y_train[:n_train],
            self.X_test[:n_test],
            self.y_test[:n_test],
        )
        return replace(
            self,
            **dict(zip(("X_train", "y_train", "X_test", "y_test"), arrays)),
            sha256=sha256_of(arrays),
        )


def load(
    name: str = "auto",
    *,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
) -> ImageData:
    """The data set of a run, by name, cut to `n_train` and `n_test` samples.

    "fashion-mnist" is the real one or a :class:`DataError`; "synthetic" is generated
    from `seed`; "auto" is the real one where it can be had, else the generated one,
    with a line on the log that says so. A corrupt file in a folder that was asked for
    is an error under every name but "synthetic".
    """
    real = _real(name, data_dir)
    if real is not None:
        return real.head(n_train, n_test)
    arrays = synthetic_fashion(
        60_000 if n_train is None else n_train,
        10_000 if n_test is None else n_test,
        seed=seed,
    )
    return ImageData(*arrays, name="synthetic-fashion", sha256=sha256_of(arrays))


def locate(name: str = "auto", data_dir: str | Path | None = None) -> str:
    """Settle "auto": "fashion-mnist" if it can be had (downloading it), or "synthetic".

    Raises what :func:`fashion_mnist` raises, except that "auto" falls back when there
    is neither a copy nor a network.
    """
    return "synthetic" if _real(name, data_dir) is None else "fashion-mnist"


def _real(name: str, data_dir: str | Path | None) -> ImageData | None:
    """The real data set, or None where the generated one takes its place."""
    if name not in DATA_NAMES:
        raise SettingError(f"data {name!r}: write one of {', '.join(DATA_NAMES)}")
    if name == "synthetic":
        return None
    try:
        return fashion_mnist(data_dir)
    except NotToBeHadError as error:
        if name == "fashion-mnist":
            raise
        log.warning("%s; using generated garments (synthetic) instead", error)
        return None


def fashion_mnist(root: str | Path | None = None) -> ImageData:
    """The real Fashion-MNIST: 60,000 training and 10,000 test images.

    Looked for in `root` (itself or its folder ``fashion-mnist``), ``$D2LPAR_DATA``,
    d2lpar's cache, MXNet's cache, then downloaded. Files may be gzipped or not. Raises
    :class:`DataError` for a folder that cannot be read, for a truncated, corrupt or
    foreign file in `root` or ``$D2LPAR_DATA``, and when there is no copy and no
    network.
    """
    arrays = download.first_good(_places(root), _read_folder)
    if arrays is None:
        cache = cache_folder()
        _download(cache)
        arrays = _read_folder(cache)
    return ImageData(*arrays, name="fashion-mnist", sha256=sha256_of(arrays))


def cache_folder() -> Path:
    """Where d2lpar keeps the Fashion-MNIST that it downloads."""
    return download.cache_folder("fashion-mnist")


def _places(root: str | Path | None) -> Iterator[tuple[bool, Path]]:
    def holds(folder: Path) -> bool:
        return any(_find(folder, name) for name in FASHION_MNIST_FILES)

    return download.places(
        "Fashion-MNIST", "fashion-mnist", root, cache_folder(), holds
    )


def _find(folder: Path, name: str) -> Path | None:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    return None


def _read_folder(folder: Path) -> list[np.ndarray]:
    paths = {name: _find(folder, name) for name in FASHION_MNIST_FILES}
    absent = [name for name, path in paths.items() if path is None]
    if len(absent) == len(paths):
        raise AbsentError(f"no Fashion-MNIST in {folder}")
    if absent:
        raise DataError(
            f"{folder}: {absent[0]}.gz is missing; put all four files there, or none"
        )
    return [read_idx(path, *FASHION_MNIST_FILES[name]) for name, path in paths.items()]


def read_idx(path: Path, sha256: str, shape: tuple[int, ...]) -> np.ndarray:
    """A uint8 array from a (gzipped) IDX file whose content must have this SHA-256.

    Raises :class:`DataError` naming the file and what is wrong with it.
    """
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or corrupt ({error}); delete it") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return _parse_idx(path, content, sha256, shape)


def _parse_idx(path: Path, content: bytes, sha256: str, shape: tuple) -> np.ndarray:
    # The header first: "wrong shape" tells more than "wrong hash". It is two zero
    # bytes, the type (8 is uint8), the number of dimensions, and each of them as
    # big-endian int.
    header = 4 + 4 * len(shape)
    expected = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    if content[:header] != expected:
        raise DataError(
            f"{path}: not an IDX file of uint8 {shape}; delete it or replace it by "
            "Fashion-MNIST's"
        )
    if len(content) != header + int(np.prod(shape)):
        raise DataError(
            f"{path}: {len(content)} bytes where {header + int(np.prod(shape))} are "
            "announced: truncated or corrupt; delete it"
        )
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: content is not Fashion-MNIST's (SHA-256 of the decompressed file "
            "differs): corrupt or foreign; delete it"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _download(cache: Path) -> None:
    files = [f"{name}.gz" for name in FASHION_MNIST_FILES]

    def check(path: Path) -> None:
        read_idx(path, *FASHION_MNIST_FILES[path.name[: -len(".gz")]])

    download.download("Fashion-MNIST", files, FASHION_MNIST_URLS, cache, check)


def batches(X, y, batch_size: int, order=None) -> Iterator[tuple]:
    """One epoch of batches: float32 (n, 1, 28, 28) in [0, 1] and labels uint8 (n,).

    `X` is uint8 (n, 28, 28) and `y` (n,), both NumPy's, or both MXNet's on one device,
    where the batches then are made and stay. `order` is a permutation of the samples of
    the same kind of array; it knows nothing of devices, so that it is the same for any
    number of them. None keeps the order of the data. The last batch may be smaller, as
    in the book. The data stays uint8, a quarter of the memory, and each batch is
    converted as it is taken: as fast as taking it from float32.
    """
    for start in range(0, len(y), batch_size):
        stop = start + batch_size
        if order is None:
            yield to_float(X[start:stop]), y[start:stop]
        else:
            index = order[start:stop]
            # "clip" is the mode that MXNet has; the indices are in range anyhow.
            X_batch = X.take(index, axis=0, mode="clip")
            yield to_float(X_batch), y.take(index, axis=0, mode="clip")


def to_float(images):
    """uint8 (n, h, w) to float32 (n, 1, h, w) in [0, 1], like d2l's ToTensor."""
    return images[:, None].astype("float32") / 255
