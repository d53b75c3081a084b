"""d2lpar: data-parallel training from Dive into Deep Learning, reproduced on MXNet.

>>> from d2lpar import get_params, allreduce, split_batch, train_batch

Importing the package is cheap: a name's module, and with it MXNet, is loaded when the
name is first used. Where MXNet is not installed, that raises
:class:`~d2lpar.errors.MXNetMissingError`, which says how to install it.

`np`, `npx`, `autograd`, `gluon` and `mx` are MXNet's own. Taken from here they are
loaded after d2lpar has set the variables that MXNet reads once, when it is imported.

The names are in `__init__.pyi`, which type checkers read, too.
"""

__version__ = "0.7.0.dev0"

try:
    import lazy_loader
except ModuleNotFoundError:  # `d2lpar.verify` works beside NumPy alone
    __all__ = []
else:
    __getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


__all__.append("__version__")


def __dir__() -> list[str]:
    return __all__
