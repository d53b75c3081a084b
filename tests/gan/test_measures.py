"""Measures of generated faces: against other formulas, and in the right order."""

import numpy
import pytest
import scipy.linalg

from d2lpar import devices
from d2lpar.datasets import punks
from d2lpar.gan import measures

(CPU,) = devices.parse("cpu:1")


@pytest.fixture(scope="module")
def sets():
    rng = numpy.random.default_rng(0)
    mixing = rng.standard_normal((6, 6))
    return rng.standard_normal((80, 6)) @ mixing, 0.3 + rng.standard_normal((70, 6))


def test_the_frechet_distance_is_that_of_its_formula(sets):
    a, b = sets
    C1, C2 = numpy.cov(a.T), numpy.cov(b.T)
    shift = a.mean(axis=0) - b.mean(axis=0)
    root = scipy.linalg.sqrtm(C1 @ C2).real
    expected = shift @ shift + numpy.trace(C1 + C2 - 2 * root)
    assert measures.RealFaces(a).frechet(b) == pytest.approx(expected, rel=1e-8)
    assert measures.RealFaces(a).frechet(a) == pytest.approx(0, abs=1e-6)


def test_coverage_counts_neighbours(sets):
    """By its definition, a face at a time."""
    real, generated = sets
    covered = 0
    for x in real:
        radius = sorted(numpy.linalg.norm(real - x, axis=1))[measures.NEIGHBOURS]
        covered += numpy.linalg.norm(generated - x, axis=1).min() < radius
    quality = measures.RealFaces(real).quality(generated)
    assert quality.coverage == pytest.approx(covered / len(real))


def test_references_are_in_the_right_order_on_drawn_faces(monkeypatch):
    """By a quarter of the channels, in an eighth of the time."""
    monkeypatch.setattr(measures, "CHANNELS", (3, 8, 16, 32))
    faces = punks.load("synthetic", n_train=600).X
    real = measures.RealFaces(measures.features(faces[:300], CPU))
    known = measures.references(real, faces[300:], CPU)
    best = known.pop("other real faces")
    for other in known.values():
        assert other.frechet > 3 * best.frechet
        assert other.coverage < 0.1 < 0.9 < best.coverage
