"""d2lpar: data-parallel training from Dive into Deep Learning, reproduced on MXNet.

>>> from d2lpar import get_params, allreduce, split_batch, train_batch

Importing the package is cheap: a name's module, and with it MXNet, is loaded when the
name is first used. Where MXNet is not installed, that raises
:class:`~d2lpar.errors.MXNetMissingError`, which says how to install it.

`np`, `npx`, `autograd`, `gluon` and `mx` are MXNet's own. Taken from here they are
loaded after d2lpar has set the variables that MXNet reads once, when it is imported.
"""

import importlib

__version__ = "0.3.0"

_MODULE_OF = {
    "allreduce": "parallel",
    "get_params": "parallel",
    "sgd": "parallel",
    "split_batch": "parallel",
    "train_batch": "parallel",
    "evaluate_accuracy": "lenet",
    "init_lenet": "networks",
    "fashion_mnist": "datasets",
    "fashion_sample": "datasets",
    "try_all_gpus": "devices",
    "try_gpu": "devices",
    "autograd": "_mxnet",
    "gluon": "_mxnet",
    "mx": "_mxnet",
    "np": "_mxnet",
    "npx": "_mxnet",
}
_MODULES = (
    "datasets",
    "devices",
    "gan",
    "kernels",
    "least_squares",
    "lenet",
    "lenet_concise",
    "lenet_workers",
    "timing",
)

__all__ = [*_MODULE_OF, *_MODULES, "__version__"]


def __getattr__(name: str):
    if name in _MODULES:
        return importlib.import_module(f"d2lpar.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'd2lpar' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"d2lpar.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list:
    return sorted([*globals(), *__all__])
