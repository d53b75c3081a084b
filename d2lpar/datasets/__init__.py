"""What the chapters train on, as host arrays; nothing here imports MXNet.

Fashion-MNIST and a sample of it, the CryptoPunks and generated faces, linear problems.
Each module is loaded when one of its names is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
