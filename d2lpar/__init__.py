"""d2lpar: data-parallel training from Dive into Deep Learning, reproduced on MXNet.

>>> from d2lpar import get_params, allreduce, split_batch, train_batch

Importing the package costs nothing; MXNet is loaded when one of these names is first
used. Without an MXNet that raises :class:`~d2lpar.errors.MXNetMissingError`, which
names both remedies.
"""

import importlib

from d2lpar._version import __version__

_HOMES = {
    "allreduce": "parallel",
    "get_params": "parallel",
    "sgd": "parallel",
    "split_batch": "parallel",
    "train_batch": "parallel",
    "evaluate_accuracy": "lenet",
    "init_lenet": "networks",
    "fashion_mnist": "datasets",
    "synthetic_fashion": "datasets",
    "try_all_gpus": "devices",
    "try_gpu": "devices",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'd2lpar' has no attribute {name!r}")
    value = vars(importlib.import_module(f"d2lpar.{_HOMES[name]}"))[name]
    globals()[name] = value
    return value


def __dir__() -> list:
    return sorted([*globals(), *__all__])
