"""A GAN that draws faces of 24 x 24 pixels, trained data-parallel.

A generator makes faces from noise, a discriminator tells them from real ones, and each
learns from the other. Networks, losses and Adam are those of the CryptoPunks notebook.

The names in `__init__.pyi` are loaded, and MXNet with them, when they are first used,
so that :mod:`d2lpar.gan.figure` draws without MXNet.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
