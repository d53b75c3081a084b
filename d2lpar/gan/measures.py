"""How good generated faces are, as a set: measures that noise cannot beat.

Every measure compares features of generated faces with features of as many real ones.
The features are those of a small convolutional network whose weights are random and
always the same: they see edges and their arrangement, which independent pixels have
not, and no network has to be trained or downloaded for them. What a value means is told
by references, sets of faces that everybody can judge: other real faces, noise of the
data's mean and deviation, the mean face, and black ones.

Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local
Nash Equilibrium" (2017), for the distance; Naeem et al., "Reliable Fidelity and
Diversity Metrics for Generative Models" (2020), for density and coverage.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy

from d2lpar._mxnet import mx, np, npx

NEIGHBOURS = 5  # k of density and coverage
SEED = 7  # of the weights
# Channels and strides of the network's convolutions, each 3 x 3 with a relu; their
# outputs (128, 6, 6) are then averaged over 2 x 2: 1,152 features.
CHANNELS, STRIDES = (3, 32, 64, 128), (1, 2, 2)
AT_ONCE = 100  # faces
MAX_COMPARED = 2_000  # generated and real faces each, which are compared


def number_compared(n_train: int) -> int:
    """How many of `n_train` real faces are compared: half, others are references."""
    return min(MAX_COMPARED, n_train // 2)


@dataclass(frozen=True)
class Quality:
    """The quality of a set of faces, compared with the same number of real ones.

    `frechet` is the squared Fréchet distance of the features: 0 is best. `coverage` is
    the share of the real faces with a generated one among their nearest neighbours,
    `distinct` the number of different real faces that are the nearest to a generated
    one, divided by the number of faces: both fall when faces are all alike. `density`
    is how often a face lies among the neighbours of a real one: near 1 for real ones,
    more for a few typical faces again and again. Density alone does not measure
    quality: the mean of the drawn faces scores higher than real faces.
    """

    frechet: float
    density: float
    coverage: float
    distinct: float

    def as_dict(self) -> dict[str, float]:
        """The values by name, rounded, for a record."""
        return {name: round(value, 5) for name, value in asdict(self).items()}


def features(faces: numpy.ndarray, device: mx.Context) -> numpy.ndarray:
    """Features float64 (n, 1152) of faces uint8 (n, 3, 24, 24), taken on a device."""
    rng = numpy.random.default_rng(SEED)
    weights = []
    for before, after in zip(CHANNELS, CHANNELS[1:]):
        bound = numpy.sqrt(6 / (9 * before))  # He et al.: relu keeps the scale
        shapes = (after, before, 3, 3), (after,)
        values = [rng.uniform(-bound, bound, s).astype("float32") for s in shapes]
        weights.append([np.array(value, ctx=device) for value in values])
    parts = []
    for start in range(0, len(faces), AT_ONCE):
        x = np.array(faces[start : start + AT_ONCE], dtype="uint8", ctx=device)
        x = x.astype("float32") / 127.5 - 1
        for (weight, bias), stride in zip(weights, STRIDES):
            x = npx.convolution(
                x, weight, bias, kernel=(3, 3), stride=(stride, stride), pad=(1, 1),
                num_filter=len(bias),
            )  # fmt: skip
            x = npx.activation(x, act_type="relu")
        x = npx.pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="avg")
        parts.append(x.reshape((len(x), -1)).asnumpy())
    return numpy.concatenate(parts).astype(float)


class RealFaces:
    """Features (n, d) of real faces, with which those of other faces are compared."""

    def __init__(self, real: numpy.ndarray) -> None:
        self.features = real
        gaps = _distances(real, real)
        self._radii = numpy.partition(gaps, NEIGHBOURS, axis=1)[:, NEIGHBOURS]
        values, vectors = numpy.linalg.eigh(numpy.cov(real.T))
        self._root = (vectors * numpy.sqrt(values.clip(min=0))) @ vectors.T

    def quality(self, generated: numpy.ndarray) -> Quality:
        """The quality of faces, given their features (m, d)."""
        gaps = _distances(self.features, generated)
        inside = gaps < self._radii[:, None]
        return Quality(
            frechet=self.frechet(generated),
            density=float(inside.sum() / (NEIGHBOURS * len(generated))),
            coverage=float(inside.any(axis=1).mean()),
            distinct=len(numpy.unique(gaps.argmin(axis=0))) / len(generated),
        )

    def frechet(self, generated: numpy.ndarray) -> float:
        """Squared Fréchet distance of normal distributions fitted to both features.

        ``|m1 - m2|^2 + tr(C1 + C2 - 2 (C1^(1/2) C2 C1^(1/2))^(1/2))``.
        """
        shift = self.features.mean(axis=0) - generated.mean(axis=0)
        covariance = numpy.cov(generated.T)
        values = numpy.linalg.eigvalsh(self._root @ covariance @ self._root)
        traces = numpy.square(self._root).sum() + numpy.trace(covariance)
        squared = shift @ shift + traces - 2 * numpy.sqrt(values.clip(min=0)).sum()
        return max(0.0, float(squared))


def references(
    real: RealFaces, others: numpy.ndarray, device: mx.Context
) -> dict[str, Quality]:
    """The quality of sets that everybody can judge, by name.

    `others` uint8 (n, 3, 24, 24) are real faces that are not among `real`. Noise has
    their mean and deviation, pixel by pixel; mean and black faces get noise of one
    shade, so that no two are equal.
    """
    mean, deviation = others.mean(axis=0), others.std(axis=0)
    shape = (len(others), *mean.shape)
    noise = numpy.random.default_rng(0).standard_normal(shape, dtype=numpy.float32)
    mean, deviation = mean.astype("float32"), deviation.astype("float32")
    made = {  # one after the other, since they are as large as the data
        "other real faces": lambda: others,
        "noise": lambda: mean + deviation * noise,
        "mean face": lambda: mean + noise,
        "black": lambda: numpy.abs(noise),
    }
    qualities = {}
    for name, make in made.items():
        faces = numpy.rint(make().clip(0, 255)).astype("uint8")
        qualities[name] = real.quality(features(faces, device))
    return qualities


def _distances(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """Squared distances (n, m) of the rows of a to those of b."""
    squares = [(x**2).sum(axis=1) for x in (a, b)]
    return squares[0][:, None] + squares[1][None, :] - 2 * a @ b.T
