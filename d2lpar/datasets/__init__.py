"""TODO room."""

from d2lpar.datasets.fashion import (
    DATA_NAMES,
    FASHION_MNIST_FILES,
    ImageData,
    batches,
    fashion_mnist,
    load,
    locate,
    read_idx,
    to_float,
)
from d2lpar.datasets.generated.faces import synthetic_punks
from d2lpar.datasets.generated.fashion import FASHION_CLASSES, synthetic_fashion
from d2lpar.datasets.linear import LinearProblem, uniform_file, uniform_problem
from d2lpar.datasets.punks import cryptopunks

__all__ = [
    "DATA_NAMES",
    "FASHION_CLASSES",
    "FASHION_MNIST_FILES",
    "ImageData",
    "LinearProblem",
    "batches",
    "cryptopunks",
    "fashion_mnist",
    "load",
    "locate",
    "read_idx",
    "synthetic_fashion",
    "synthetic_punks",
    "to_float",
    "uniform_file",
    "uniform_problem",
]
