"""A GAN that draws faces of 24 x 24 pixels, trained data-parallel.

A generator makes faces of noise, a discriminator tells them from real ones, and each
learns from the other. Networks, losses and Adam are those of the CryptoPunks notebook.
"""

from d2lpar.gan.networks import (
    Z_SHAPE,
    Discriminator,
    Generator,
    build,
    generate,
)
from d2lpar.gan.state import Nets, TrainingState, start
from d2lpar.gan.training import WORKLOAD, frame, sample, train
from d2lpar.gan.updates import step, update_D, update_G

__all__ = [
    "WORKLOAD",
    "Discriminator",
    "Generator",
    "Nets",
    "TrainingState",
    "Z_SHAPE",
    "build",
    "frame",
    "generate",
    "sample",
    "start",
    "step",
    "train",
    "update_D",
    "update_G",
]
