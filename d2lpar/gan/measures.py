"""The quality of a set of faces, by features of random convolutions.

Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local
Nash Equilibrium" (2017), for the distance; Naeem et al., "Reliable Fidelity and
Diversity Metrics for Generative Models" (2020), for the coverage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from d2lpar._mxnet import mx, np, npx

NEIGHBOURS = 5  # k of the coverage
SEED = 7  # of the weights
# Of convolutions of 3 x 3, each with a relu; their outputs (128, 6, 6) are then
# averaged over 2 x 2: 1,152 features.
CHANNELS, STRIDES = (3, 32, 64, 128), (1, 2, 2)
AT_ONCE = 100  # faces
MAX_COMPARED = 2_000  # generated and real faces each, which are compared


class Quality(NamedTuple):
    """The quality of a set of faces, compared with the same number of real ones.

    `frechet` is the squared Fréchet distance of the features: 0 is best. `coverage` is
    the share of real faces with a generated one among their neighbours: it falls when
    faces are alike.
    """

    frechet: float
    coverage: float


def features(faces: numpy.ndarray, device: mx.Context) -> numpy.ndarray:
    """Return features float64 (n, 1152) of faces uint8 (n, 3, 24, 24)."""
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
    """Hold the :func:`features` (n, d) of real faces, to judge others by."""

    def __init__(self, real: numpy.ndarray) -> None:
        self.features = real
        gaps = _distances(real, real)
        self._radii = numpy.partition(gaps, NEIGHBOURS, axis=1)[:, NEIGHBOURS]
        values, vectors = numpy.linalg.eigh(numpy.cov(real.T))
        self._root = (vectors * numpy.sqrt(values.clip(min=0))) @ vectors.T

    def quality(self, generated: numpy.ndarray) -> Quality:
        """Return the quality of faces, given their features (m, d), to five digits."""
        inside = _distances(self.features, generated) < self._radii[:, None]
        coverage = float(inside.any(axis=1).mean())
        return Quality(round(self.frechet(generated), 5), round(coverage, 5))

    def frechet(self, generated: numpy.ndarray) -> float:
        """Return the squared Fréchet distance of normals fitted to both."""
        mean = generated.mean(axis=0)
        shift = self.features.mean(axis=0) - mean
        centred = (generated - mean) / numpy.sqrt(len(generated) - 1)
        # A' A is root C root. A A' has the same eigenvalues, and is smaller where there
        # are fewer faces than features.
        A = centred @ self._root
        values = numpy.linalg.eigvalsh(A @ A.T if len(A) < A.shape[1] else A.T @ A)
        traces = numpy.square(self._root).sum() + numpy.square(centred).sum()
        squared = shift @ shift + traces - 2 * numpy.sqrt(values.clip(min=0)).sum()
        return max(0.0, float(squared))


def references(
    real: RealFaces, others: numpy.ndarray, device: mx.Context
) -> dict[str, Quality]:
    """Return the quality, by name, of `others`, real uint8 (n, 3, 24, 24), and noise.

    Noise has their mean and deviation by pixel; mean and black faces get noise of one
    shade.
    """
    mean = others.mean(axis=0).astype("float32")
    deviation = others.std(axis=0).astype("float32")
    noise = numpy.random.default_rng(0).standard_normal(others.shape, numpy.float32)
    sets = {
        "other real faces": others,
        "noise": mean + deviation * noise,
        "mean face": mean + noise,
        "black": numpy.abs(noise),
    }
    qualities = {}
    for name, values in sets.items():
        faces = numpy.rint(values.clip(0, 255)).astype("uint8")
        qualities[name] = real.quality(features(faces, device))
    return qualities


def _distances(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    """Return the squared distances (n, m) of the rows of a to those of b."""
    squares = [(x**2).sum(axis=1) for x in (a, b)]
    return squares[0][:, None] + squares[1][None, :] - 2 * a @ b.T
