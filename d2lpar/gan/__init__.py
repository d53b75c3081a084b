"""TODO room."""

from d2lpar.gan.networks import (
    Discriminator,
    Generator,
    build,
    generate,
    host_params,
    init_params,
)
from d2lpar.gan.training import (
    WORKLOAD,
    Nets,
    TrainingState,
    frame,
    sample,
    start,
    step,
    train,
    update_D,
    update_G,
)

__all__ = [
    "WORKLOAD",
    "Discriminator",
    "Generator",
    "Nets",
    "TrainingState",
    "build",
    "frame",
    "generate",
    "host_params",
    "init_params",
    "sample",
    "start",
    "step",
    "train",
    "update_D",
    "update_G",
]
