"""LeNet on Fashion-MNIST, trained in four ways, in files that are to be compared.

:mod:`~d2lpar.lenet.scratch` trains with the four functions of :mod:`d2lpar.parallel`,
:mod:`~d2lpar.lenet.concise` in Gluon, :mod:`~d2lpar.lenet.workers` on several workers,
and :mod:`~d2lpar.lenet.local_sgd` averages parameters instead of summing gradients. The
names in `__init__.pyi` are loaded, and MXNet with them, when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
