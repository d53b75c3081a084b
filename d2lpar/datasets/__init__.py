"""What the chapters train on, as host arrays, without MXNet; loaded when first used."""

from d2lpar._public_names import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
