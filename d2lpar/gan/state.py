"""What a training carries from epoch to epoch, on the host."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, takewhile
from typing import ClassVar

import numpy

from d2lpar.gan.networks import Z_SHAPE, Discriminator, Generator, init_params

LISTS = ("params_D", "params_G", "moments_D", "moments_G")  # in a state, in order


@dataclass
class TrainingState:
    """The state after `epoch` epochs, on the host; it does not depend on the devices.

    Parameters and moments are host arrays, in the networks' order. `fixed_z`
    (1, 16, 3, 3) is the noise of the frames; `num_steps` is the number of steps that
    each Adam has taken. To continue a training, pass its state to :func:`train` again.
    """

    params_D: list[numpy.ndarray]
    params_G: list[numpy.ndarray]
    moments_D: list[numpy.ndarray]
    moments_G: list[numpy.ndarray]
    fixed_z: numpy.ndarray
    seed: int
    num_steps: int = 0
    epoch: int = 0

    workload: ClassVar[str] = "gan"

    def next_rngs(self) -> tuple[numpy.random.Generator, numpy.random.Generator]:
        """The generators of the next epoch's order and of its noise."""
        order, noise = (
            numpy.random.default_rng([self.seed, self.epoch + 1, k]) for k in (1, 2)
        )
        return order, noise

    def tensors(self) -> dict[str, numpy.ndarray]:
        """The state's arrays by name, for a checkpoint."""
        lists = (self.params_D, self.params_G, self.moments_D, self.moments_G)
        named = {
            f"{name}.{i}": array
            for name, arrays in zip(LISTS, lists)
            for i, array in enumerate(arrays)
        }
        return {**named, "fixed_z": self.fixed_z}

    def facts(self) -> dict:
        """The rest of the state, as JSON can hold it."""
        return {
            "epoch": self.epoch,
            "seed": self.seed,
            "num_steps": self.num_steps,
        }

    @classmethod
    def restore(cls, tensors: dict[str, numpy.ndarray], facts: dict) -> TrainingState:
        """The inverse of :meth:`tensors` and :meth:`facts`."""

        def numbered(name: str) -> list[numpy.ndarray]:
            keys = (f"{name}.{i}" for i in count())
            return [tensors[key] for key in takewhile(tensors.__contains__, keys)]

        return cls(*map(numbered, LISTS), fixed_z=tensors["fixed_z"], **facts)


def start(seed: int = 0) -> TrainingState:
    """The state before the first epoch, drawn from `seed` on the host."""
    params, moments = [], []
    for k, net in enumerate((Discriminator(), Generator())):
        params.append(init_params(net, numpy.random.default_rng([seed, k])))
        trained = [p for p in net.collect_params().values() if p.grad_req != "null"]
        moments.append([numpy.zeros(p.shape, numpy.float32) for p in trained * 2])
    rng_z = numpy.random.default_rng([seed, 3])
    z = rng_z.standard_normal((1, *Z_SHAPE), dtype=numpy.float32)
    return TrainingState(*params, *moments, fixed_z=z, seed=seed)
