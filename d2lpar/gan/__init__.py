"""A GAN that draws faces of 24 x 24 pixels, trained data-parallel.

Networks, losses and Adam are those of the CryptoPunks notebook. The names in
`__init__.pyi` are loaded, and MXNet with them, when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
