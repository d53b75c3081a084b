"""What a training keeps of a network on one device, as shapes; loads no MXNet.

Of each sample a device keeps every layer's output until the backward pass has used it:
a convolution, its relu and its pooling have one each, and what goes into a layer is the
output before it. Beside them, where that is largest, the gradients of neighbouring
outputs are alive: two from scratch; in a compiled Gluon block, whose memory is planned,
one, because relu's gradient takes its input's place.

Source: the networks of :mod:`d2lpar.lenet` (seed 001) and :mod:`d2lpar.gan.networks`
(seed 003); MXNet 1.9.1, ``src/imperative/imperative.cc`` and ``cached_op.cc``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layers:
    """What a device keeps of a network; shapes are a sample's, numbers are float32.

    `kept` are named outputs with shapes, each kept `times` times a sample; `backward`
    are the numbers of a sample's gradients that are alive at once. `batch` numbers a
    sample are the whole batch, which the first device cuts up. A sample of the data set
    has `sample_bytes`, and `noise` numbers drawn for it. A device evaluates `evaluated`
    samples at a time, with so many numbers of each; `share` says whether all devices
    do. A `compiled` network's arrays stay meanwhile. `moments` is how many numbers the
    optimiser has for a parameter, `temporary` how many a temporary buffer has of a
    sample (see :mod:`d2lpar.memory.estimate`). `judged` numbers of each sample of the data set
    are alive on the host when what was drawn is compared with all of them.
    """

    parameters: tuple[Shape, ...]
    kept: tuple[tuple[str, Shape, int], ...]
    backward: int
    batch: int
    sample_bytes: int
    noise: int
    evaluated: tuple[int, int]
    moments: int = 0
    temporary: int = 0
    judged: int = 0
    compiled: bool = False
    share: bool = True


def convolved(shape: Shape, channels: int, kernel: int) -> Shape:
    """The shape (c, h, w) after a convolution without padding.

    >>> convolved((1, 28, 28), 20, 3)
    (20, 26, 26)
    """
    return channels, shape[1] - kernel + 1, shape[2] - kernel + 1


def pooled(shape: Shape) -> Shape:
    """The shape (c, h, w) after pooling by 2."""
    return shape[0], shape[1] // 2, shape[2] // 2


def lenet_layers(compiled: bool = False) -> Layers:
    """LeNet of :mod:`d2lpar.lenet`; `compiled` as in :mod:`d2lpar.lenet_concise`."""
    image = (1, 28, 28)
    h1 = convolved(image, 20, 3)
    h2 = convolved(pooled(h1), 50, 5)
    flat = math.prod(pooled(h2))
    outputs = {
        "images": image,
        "convolution 1": h1,
        "relu 1": h1,
        "pooling 1": pooled(h1),
        "convolution 2": h2,
        "relu 2": h2,
        "pooling 2": pooled(h2),
        "dense 1": (128,),
        "relu 3": (128,),
        "dense 2": (10,),
    }
    return Layers(
        parameters=(
            (20, 1, 3, 3),
            (20,),
            (50, 20, 5, 5),
            (50,),
            (flat, 128),
            (128,),
            (128, 10),
            (10,),
        ),  # fmt: skip
        kept=tuple((name, shape, 1) for name, shape in outputs.items()),
        backward=math.prod(h1) * (1 if compiled else 2),
        batch=2 * math.prod(image),  # as float32, before and after dividing by 255
        sample_bytes=math.prod(image) + 1,
        noise=0,
        evaluated=(1000, math.prod(h1) * (1 if compiled else 2) + math.prod(image)),
        compiled=compiled,
    )


def gan_layers(synchronised: bool = False) -> Layers:
    """Both networks of :mod:`d2lpar.gan.networks`, at the peak: the generator's update.

    Until then the generator's outputs are kept, and the discriminator's of as many real
    as drawn faces, which its compiled graph holds on to. `synchronised` BatchNorm keeps
    the centred input and its square, too, and the generator's blocks are called one by
    one: what each holds for evaluation then comes on top, 11 hidden arrays as measured.
    """
    z, face, hidden = (16, 3, 3), (3, 24, 24), (128, 12, 12)
    c1 = convolved(face, 8, 5)
    c2 = convolved(pooled(c1), 16, 5)
    drawing = {
        "noise": z,
        "transposed convolution 1": hidden,
        "batch norm": hidden,
        "relu of the generator": hidden,
        "transposed convolution 2": face,
        "sigmoid": face,
    }
    if synchronised:
        drawing |= {"centred": hidden, "square": hidden}
    judging = {
        "faces": face,
        "convolution 1": c1,
        "relu 1": c1,
        "pooling 1": pooled(c1),
        "convolution 2": c2,
        "relu 2": c2,
        "pooling 2": pooled(c2),
        "dense 1": (32,),
        "relu 3": (32,),
        "dense 2": (1,),
    }
    return Layers(
        parameters=(
            (8, 3, 5, 5),
            (8,),
            (16, 8, 5, 5),
            (16,),
            (32, math.prod(pooled(c2))),
            (32,),
            (1, 32),
            (1,),
            (16, 128, 10, 10),
            (128,),
            (128,),
            (128, 3, 4, 4),
        ),  # fmt: skip
        kept=(
            *((name, shape, 1) for name, shape in drawing.items()),
            *((name, shape, 2) for name, shape in judging.items()),
        ),
        backward=2 * math.prod(hidden) + 2 * math.prod(c1),
        batch=2 * math.prod(face),
        sample_bytes=math.prod(face),
        noise=math.prod(z),
        evaluated=(
            500,
            (11 if synchronised else 2) * math.prod(hidden) + 2 * math.prod(face),
        ),
        moments=2,
        temporary=5_760,  # as measured, an average over the buffers
        judged=2 * math.prod(face),
        compiled=True,
        share=False,
    )
