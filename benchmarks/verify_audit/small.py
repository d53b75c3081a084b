"""Small data for the public programs, and stand-ins for what they only import."""

import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import numpy


def batch(n, seed):
    """Draw rows of six numbers in float64, with one of three labels."""
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)), rng.integers(0, 3, n)


def batch_of_tokens(n, seed):
    """Draw rows of five tokens of six numbers; a label of -100 is ignored."""
    rng = numpy.random.default_rng(seed)
    X, y = rng.normal(size=(n, 5, 6)), rng.integers(0, 3, (n, 5))
    y[:, 1:][rng.random((n, 4)) < 0.5] = -100
    return X, y


def absent(*names):
    """Let `import` find these modules, whatever they should contain."""
    for name in names:
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
