"""LeNet on Fashion-MNIST, trained in four ways, in files that are to be compared.

From scratch, in Gluon, on several workers, and by local SGD. MXNet is loaded when one
of the names in `__init__.pyi` is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
