"""A GAN that draws faces of 24 x 24 pixels, trained data-parallel.

A generator makes faces from noise, a discriminator tells them from real ones, and each
learns from the other. Networks, losses and Adam are those of the CryptoPunks notebook.

The names below are loaded, and MXNet with them, when they are first used, so that
:mod:`~d2lpar.gan.figure` draws without MXNet.
"""

import importlib

_MODULE_OF = {
    "D_NORMS": "networks",
    "Discriminator": "networks",
    "Generator": "networks",
    "WideDiscriminator": "networks",
    "WideGenerator": "networks",
    "Z_SHAPE": "networks",
    "build": "networks",
    "forward": "networks",
    "Quality": "measures",
    "RealFaces": "measures",
    "features": "measures",
    "references": "measures",
    "Nets": "updates",
    "TrainingState": "updates",
    "new_networks": "updates",
    "start": "updates",
    "sample": "training",
    "train": "training",
    "step": "updates",
    "update_D": "updates",
    "update_G": "updates",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list:
    return sorted([*globals(), *__all__])
