"""A GAN that draws faces: networks, losses and Adam of the CryptoPunks notebook."""

from d2lpar._public_names import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__, __file__)
