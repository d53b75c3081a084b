"""d2lpar: data-parallel training from Dive into Deep Learning, reproduced on MXNet.

>>> from d2lpar import get_params, allreduce, split_batch, train_batch

Importing the package is cheap: a name's module, and with it MXNet, is loaded when the
name is first used. Where MXNet is not installed, that raises
:class:`~d2lpar.errors.MXNetMissingError`, which says how to install it.

`np`, `npx`, `autograd`, `gluon` and `mx` are MXNet's own. Taken from here they are
loaded after d2lpar has set the variables that MXNet reads once, when it is imported.

The names are in `__init__.pyi`, which type checkers read, too.
"""

import sys
import types
from importlib import import_module

import lazy_loader

__version__ = "0.5.0"

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def _alias(name: str, module: str) -> types.ModuleType:
    """Let `name` be imported, too; it has what `module` has, loaded on first use."""
    alias = sys.modules[f"{__name__}.{name}"] = types.ModuleType(module)

    def load(attribute: str) -> object:
        # What looks through sys.modules asks for __file__, also without MXNet.
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return getattr(import_module(module), attribute)

    alias.__getattr__ = load
    alias.__dir__ = lambda: dir(import_module(module))
    return alias


lenet_concise = _alias("lenet_concise", "d2lpar.lenet.concise")
lenet_workers = _alias("lenet_workers", "d2lpar.lenet.workers")
__all__ += ["__version__", "lenet_concise", "lenet_workers"]


def __dir__() -> list[str]:
    return __all__
