"""What one device keeps of a network while it trains, as shapes.

The shapes are those of the networks themselves: every block computes one sample, and
what it puts out is written down.

Source: the networks of :mod:`d2lpar.networks` (the book) and
:mod:`d2lpar.gan.networks` (the CryptoPunks notebook).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layers:
    """What a training keeps; shapes are those of one sample, numbers are float32.

    `parameters` counts the numbers that are learned, `moments` those that the optimiser
    keeps for each. `outputs` are the names and shapes of all that a training step keeps
    until the backward pass. `input` is the shape of a sample, which is stored as uint8,
    and `n_train` and `n_test` the sizes of the whole data set.
    """

    parameters: int
    outputs: tuple[tuple[str, Shape], ...]
    input: Shape
    n_train: int
    n_test: int = 0
    moments: int = 0

    @property
    def kept(self) -> int:
        """Numbers per sample in all outputs."""
        return sum(math.prod(shape) for _, shape in self.outputs)

    @property
    def largest(self) -> tuple[str, Shape]:
        """The name and shape of the largest output."""
        return max(self.outputs, key=lambda output: math.prod(output[1]))


# The layers of the network that the settings of a training make.
LayersOf = Callable[[dict], Layers]


def lenet_layers(settings: dict) -> Layers:
    """LeNet, in :mod:`d2lpar.lenet` and in :mod:`d2lpar.lenet_concise`."""
    from d2lpar.networks import LeNet

    image, net = (1, 28, 28), LeNet()
    return Layers(
        outputs=tuple(outputs(net, image)),
        parameters=learned(net),
        input=image,
        n_train=60_000,
        n_test=10_000,
    )


def gan_layers(settings: dict) -> Layers:
    """Both networks of :mod:`d2lpar.gan`, at the generator's update.

    By then the outputs of the generator are kept, and those of the discriminator for
    the real faces and for as many generated ones. With "sync_batch_norm", BatchNorm
    keeps its centred input and the square of it, too.
    """
    from d2lpar.gan.networks import DEVICE_CHANNELS, Z_SHAPE, Discriminator, Generator

    face, net_D, net_G = (3, 24, 24), Discriminator(DEVICE_CHANNELS), Generator()
    drawn, judged = outputs(net_G, Z_SHAPE), outputs(net_D, face)
    if settings.get("sync_batch_norm"):
        hidden = dict(drawn)["BatchNorm 2"]
        drawn += [("centred", hidden), ("square", hidden)]
    return Layers(
        outputs=(*drawn, *judged, *judged),
        parameters=learned(net_D) + learned(net_G),
        input=face,
        n_train=10_000,
        moments=2,
    )


def outputs(net, shape: Shape) -> list[tuple[str, Shape]]:
    """The input and what each block of a Gluon network puts out, for one sample.

    A block with an activation counts twice: the activation keeps its input, too.
    Initializes `net`.
    """
    from d2lpar._mxnet import np

    net.initialize()
    x, shapes = np.zeros((1, *shape)), [("input", shape)]
    for k, block in enumerate(net, 1):
        x = block(x)
        name = f"{type(block).__name__} {k}"
        shapes.append((name, x.shape[1:]))
        if getattr(block, "act", None) is not None:
            shapes.append((f"activation {k}", x.shape[1:]))
    return shapes


def learned(net) -> int:
    """How many numbers of a Gluon network are learned."""
    parameters = net.collect_params().values()
    return sum(math.prod(p.shape) for p in parameters if p.grad_req != "null")
