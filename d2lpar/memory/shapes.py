"""What one device keeps of a network while it trains, as shapes.

Every layer's output of each sample stays until the backward pass has used it: a
convolution, its relu and its pooling have one each, and a layer's input is the output
before it. Where that is largest, the gradients of neighbouring outputs are alive too:
two from scratch; one in a compiled Gluon block, whose memory is planned, because relu's
gradient takes the place of its input.

Source: the networks of :mod:`d2lpar.networks` (the book) and
:mod:`d2lpar.gan.networks` (the CryptoPunks notebook); MXNet 1.9.1,
``src/imperative/imperative.cc`` and ``cached_op.cc``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layers:
    """What a device keeps of a network. Shapes are a sample's, numbers are float32.

    `samples` are the training and the test samples of the whole data set, of
    `sample_bytes` each. `kept` are outputs by name with their shapes, each kept `times`
    times per sample; `backward` are the numbers of a sample's gradients that are alive
    at once. The first device holds the data and the whole batch, `batch` numbers per
    sample; with `own_data` every device holds all the data and its part of the batch.
    The first device draws `noise` numbers per sample. `evaluated` samples are evaluated
    at once, with `evaluation` numbers of each; with `share` the devices share them. A
    `compiled` network keeps its arrays meanwhile. The optimiser has `moments` numbers
    per parameter, a temporary buffer `temporary` numbers per sample (see
    :mod:`d2lpar.memory.estimate`). `judged` numbers per training sample are alive on
    the host when generated samples are compared with all of them.
    """

    parameters: tuple[Shape, ...]
    samples: tuple[int, int]
    kept: tuple[tuple[str, Shape, int], ...]
    backward: int
    batch: int
    sample_bytes: int
    evaluated: int
    evaluation: int
    noise: int = 0
    moments: int = 0
    temporary: int = 0
    judged: int = 0
    compiled: bool = False
    share: bool = True
    own_data: bool = False


# The layers of the network that a workload's settings make.
LayersOf = Callable[[dict], Layers]


def lenet_layers(settings: dict, compiled: bool = False) -> Layers:
    """LeNet of :mod:`d2lpar.lenet`; `compiled` as in :mod:`d2lpar.lenet_concise`."""
    from d2lpar.networks import SHAPES  # loads MXNet, which nothing else here does

    image, first, second = (1, 28, 28), (20, 26, 26), (50, 9, 9)
    outputs = {"images": image, **_convolutions(first, second)}
    outputs |= {"dense 1": (128,), "relu 3": (128,), "dense 2": (10,)}
    backward = math.prod(first) * (1 if compiled else 2)
    return Layers(
        parameters=SHAPES,
        samples=(60_000, 10_000),
        kept=tuple((*output, 1) for output in outputs.items()),
        backward=backward,
        batch=2 * math.prod(image),  # as float32, before and after dividing by 255
        sample_bytes=math.prod(image) + 1,
        evaluated=1000,
        evaluation=backward + math.prod(image),
        compiled=compiled,
        own_data=compiled,
    )


def _convolutions(
    first: Shape, second: Shape, pool_first: bool = False
) -> dict[str, Shape]:
    """The outputs of two convolutions, each with relu and then pooling by 2.

    With `pool_first` relu comes after the pooling.
    """
    outputs = {}
    for k, (c, h, w) in enumerate((first, second), 1):
        pooled = (c, h // 2, w // 2)
        outputs[f"convolution {k}"] = (c, h, w)
        outputs[f"relu {k}"] = pooled if pool_first else (c, h, w)
        outputs[f"pooling {k}"] = pooled
    return outputs


NOISE, FACE, HIDDEN = (16, 3, 3), (3, 24, 24), (128, 12, 12)
GENERATOR = ((16, 128, 10, 10), (128,), (128,), (128, 3, 4, 4))
DISCRIMINATOR = (
    (8, 3, 5, 5), (8,), (16, 8, 5, 5), (16,), (32, 144), (32,), (1, 32), (1,),
)  # fmt: skip


def gan_layers(settings: dict) -> Layers:
    """Both networks of :mod:`d2lpar.gan.networks`, at the peak: the generator's update.

    By then the outputs of the generator are kept, and those of the discriminator for as
    many real as generated faces, which its compiled graph holds on to. With
    "sync_batch_norm", BatchNorm keeps the centred input and its square too, and the
    generator's blocks are called one by one: for the evaluation they hold 11 hidden
    arrays, as measured.
    """
    synchronised, first = settings.get("sync_batch_norm"), (8, 20, 20)
    generating = {
        "noise": NOISE,
        "transposed convolution 1": HIDDEN,
        "batch norm": HIDDEN,
        "relu of the generator": HIDDEN,
        "transposed convolution 2": FACE,
        "sigmoid": FACE,
    }
    if synchronised:
        generating |= {"centred": HIDDEN, "square": HIDDEN}
    judging = {"faces": FACE, **_convolutions(first, (16, 6, 6), pool_first=True)}
    judging |= {"dense 1": (32,), "relu 3": (32,), "dense 2": (1,)}
    hidden, face = math.prod(HIDDEN), math.prod(FACE)
    return Layers(
        parameters=(*DISCRIMINATOR, *GENERATOR),
        samples=(10_000, 0),
        kept=(
            *((*output, 1) for output in generating.items()),
            *((*output, 2) for output in judging.items()),
        ),
        backward=2 * hidden + 2 * math.prod(first),
        batch=2 * face,
        sample_bytes=face,
        evaluated=500,
        evaluation=(11 if synchronised else 2) * hidden + 2 * face,
        noise=math.prod(NOISE),
        moments=2,
        temporary=5_760,  # the average over the buffers, as measured
        judged=2 * face,
        compiled=True,
        share=False,
    )
