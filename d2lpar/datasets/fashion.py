"""Fashion-MNIST, the real one or generated garments in its place.

A file counts only if its *decompressed* content has the published SHA-256: mirrors
compress differently. Where there is neither a copy nor a network, :func:`load` falls
back to generated garments, logs it, and marks them synthetic.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017), MIT licence.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from d2lpar.datasets.download import PublishedFiles, read_bytes
from d2lpar.datasets.generated.fashion import synthetic_fashion
from d2lpar.datasets.images import ImageData
from d2lpar.errors import DataError

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
    """The data set of a run, by name, cut to `n_train` and `n_test` samples.

    "fashion-mnist" is the real one or a :class:`DataError`; "synthetic" is generated
    from `seed`; "auto" is the real one if it can be had, else the generated one, which
    is logged. A corrupt file in a folder that was asked for is an error under every
    name but "synthetic".
    """
    arrays = FASHION_MNIST.load_unless_synthetic(name, data_dir)
    if arrays is not None:
        return ImageData(*arrays, "fashion-mnist").head(n_train, n_test)
    n_train = 60_000 if n_train is None else n_train
    n_test = 10_000 if n_test is None else n_test
    arrays = synthetic_fashion(n_train, n_test, seed)
    return ImageData(*arrays, "synthetic-fashion")


def locate(name: str = "auto", data_dir: str | Path | None = None) -> str:
    """Settle "auto": "fashion-mnist" if it can be had (downloading it), or "synthetic".

    Raises what :func:`load` raises.
    """
    arrays = FASHION_MNIST.load_unless_synthetic(name, data_dir)
    return "synthetic" if arrays is None else "fashion-mnist"


def fashion_mnist(data_dir: str | Path | None = None) -> ImageData:
    """The real Fashion-MNIST: 60,000 training and 10,000 test images.

    Raises what :meth:`d2lpar.datasets.download.PublishedFiles.load` raises.
    """
    return load("fashion-mnist", data_dir=data_dir)


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
        raise DataError(
            f"{path}: not an IDX file of uint8 {shape}; delete it or replace it by "
            "Fashion-MNIST's"
        )
    announced = len(header) + int(np.prod(shape))
    if len(content) != announced:
        raise DataError(
            f"{path}: {len(content)} bytes where {announced} are announced: truncated "
            "or corrupt; delete it"
        )
    if hashlib.sha256(content).hexdigest() != sha256:
        raise DataError(
            f"{path}: content is not Fashion-MNIST's (SHA-256 of the decompressed file "
            "differs): corrupt or foreign; delete it"
        )
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape)


FASHION_MNIST = PublishedFiles(
    name="fashion-mnist",
    title="Fashion-MNIST",
    substitute="generated garments",
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
