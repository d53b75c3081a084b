"""Fashion-MNIST: the whole set, or the sample of it that the package contains.

A file counts only if its *decompressed* content has the published SHA-256: mirrors
compress differently. Where there is neither a copy nor a network, :func:`load` takes
the sample and logs it; its name says so in every record.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017), MIT licence; see
``data/FASHION-MNIST-LICENCE`` for the sample.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from d2lpar.datasets.download import PublishedFiles, read_bytes
from d2lpar.datasets.images import ImageData, check_head
from d2lpar.errors import DataError

SAMPLE = Path(__file__).parent / "data" / "fashion_sample.npz"

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


def load(
    name: str = "auto",
    *,
    data_dir: str | Path | None = None,
    n_train: int | None = None,
    n_test: int | None = None,
    seed: int = 0,
) -> ImageData:
    """The data set of a run, by name, cut to `n_train` and `n_test` images.

    "fashion-mnist" is the whole set, of which the first images are taken, or a
    :class:`DataError`; "sample" is :func:`fashion_sample`, of which `seed` chooses;
    "auto" is the whole set if it can be had, else the sample, which is logged. A
    corrupt file in a folder that was asked for is an error, unless `name` is "sample".
    """
    arrays = FASHION_MNIST.load_or_none(name, data_dir)
    if arrays is not None:
        return ImageData(*arrays, "fashion-mnist").head(n_train, n_test)
    return fashion_sample(
        5000 if n_train is None else n_train, 1000 if n_test is None else n_test, seed
    )


def locate(name: str = "auto", data_dir: str | Path | None = None) -> str:
    """Settle "auto": "fashion-mnist" if it is on disk or downloaded now, or "sample".

    Files on disk are looked for, not read. Raises :class:`DataError` for a folder that
    cannot be read, and :class:`SettingError` for a name that does not exist.
    """
    return FASHION_MNIST.locate(name, data_dir)


def fashion_mnist(data_dir: str | Path | None = None) -> ImageData:
    """The whole of Fashion-MNIST: 60,000 training and 10,000 test images.

    Raises what :meth:`d2lpar.datasets.download.PublishedFiles.load` raises.
    """
    return load("fashion-mnist", data_dir=data_dir)


def fashion_sample(n_train: int = 5000, n_test: int = 1000, seed: int = 0) -> ImageData:
    """Images of Fashion-MNIST that come with the package; no files, no network.

    The sample has 500 training and 100 test images of each class. `seed` chooses
    `n_train` and `n_test` of them at random; all of them are the same for every seed.
    Raises :class:`SettingError` unless there are as many.
    """
    with np.load(SAMPLE) as arrays:
        whole = ImageData(**arrays, name="fashion-mnist-sample")
    check_head(whole.name, "n_train", n_train, len(whole.y_train))
    check_head(whole.name, "n_test", n_test, len(whole.y_test))
    rng = np.random.default_rng(seed)
    train = np.sort(rng.permutation(len(whole.y_train))[:n_train])
    test = np.sort(rng.permutation(len(whole.y_test))[:n_test])
    return replace(
        whole,
        X_train=whole.X_train[train],
        y_train=whole.y_train[train],
        X_test=whole.X_test[test],
        y_test=whole.y_test[test],
    )


def read_idx(path: Path) -> np.ndarray:
    """The uint8 array in one of Fashion-MNIST's (gzipped) IDX files.

    Raises :class:`DataError` naming the file and what is wrong with it.
    """
    content = read_bytes(path)
    try:
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or corrupt ({error}); delete it") from None
    sha256, shape = FASHION_MNIST_FILES[path.name.removesuffix(".gz")]
    # The header first: "wrong shape" tells more than "wrong hash". It is two zero
    # bytes, the type (8 is uint8), the number of dimensions, and each of them as
    # big-endian int.
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape)
    if content[: len(header)] != header:
        raise DataError(f"{path}: not an IDX file of uint8 {shape}; delete it")
    size = len(header) + int(np.prod(shape))
    if len(content) != size:
        raise DataError(f"{path}: {len(content)} bytes, expected {size}; delete it")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: corrupt or foreign: the SHA-256 of the decompressed file is not "
            "Fashion-MNIST's; delete it"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


FASHION_MNIST = PublishedFiles(
    name="fashion-mnist",
    title="Fashion-MNIST",
    substitute="6,000 images of it in the package",
    substitute_name="sample",
    files=tuple(f"{name}.gz" for name in FASHION_MNIST_FILES),
    # The publisher's two addresses, then the mirrors that MXNet and Keras keep.
    urls=(
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/"
        "fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://apache-mxnet.s3-accelerate.dualstack.amazonaws.com/gluon/dataset/"
        "fashion-mnist/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    read_file=read_idx,
)
