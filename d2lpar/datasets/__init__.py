"""What the chapters train on, as host arrays; nothing here imports MXNet.

Fashion-MNIST and a sample of it, the CryptoPunks and generated faces, linear problems.
"""

from d2lpar.datasets.drawn_faces import synthetic_punks
from d2lpar.datasets.fashion import (
    FASHION_CLASSES,
    FASHION_MNIST_FILES,
    ImageData,
    batches,
    fashion_mnist,
    fashion_sample,
    load,
    locate,
    read_idx,
    to_float,
)
from d2lpar.datasets.linear import LinearProblem, uniform_file, uniform_problem
from d2lpar.datasets.punks import cryptopunks

__all__ = [
    "FASHION_CLASSES",
    "FASHION_MNIST_FILES",
    "ImageData",
    "LinearProblem",
    "batches",
    "cryptopunks",
    "fashion_mnist",
    "fashion_sample",
    "load",
    "locate",
    "read_idx",
    "synthetic_punks",
    "to_float",
    "uniform_file",
    "uniform_problem",
]
