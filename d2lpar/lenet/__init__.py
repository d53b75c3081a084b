"""LeNet on Fashion-MNIST: from scratch, in Gluon, on several workers, by local SGD."""

from d2lpar._public_names import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
