"""The same start for all programs: LeNet's parameters and five batches, in NumPy."""

import numpy

LR, BATCH, STEPS = 0.02, 64, 5
SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,)]
SHAPES += [(800, 128), (128,), (128, 10), (10,)]


def params():
    """[W1, b1, ..., W4, b4], float32; a dense W is (inputs, outputs)."""
    rng = numpy.random.default_rng(0)
    return [rng.normal(scale=0.1, size=s).astype("float32") for s in SHAPES]


def batches():
    """Images float32 (64, 1, 28, 28) in [0, 1] and classes (64,), five times."""
    rng = numpy.random.default_rng(1)
    for _ in range(STEPS):
        images = rng.random((BATCH, 1, 28, 28), dtype="float32")
        yield images, rng.integers(0, 10, BATCH)
