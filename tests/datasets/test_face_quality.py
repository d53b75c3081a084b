"""Faces as pictures and as text; distances of sets of faces against known answers."""

import base64
import itertools

import numpy as np
import pytest

from d2lpar.datasets import face_images, synthetic_punks
from d2lpar.datasets.face_quality import nearest, sliced_wasserstein
from d2lpar.errors import DataError


def some_faces(n, seed=0, h=24, w=None, high=256):
    shape = (n, 3, h, w or h)
    return np.random.default_rng(seed).integers(0, high, shape, np.uint8)


@pytest.fixture(scope="module")
def faces():
    return synthetic_punks(300, seed=0)


# Pictures


@pytest.mark.parametrize(("n", "columns"), [(6, 3), (1, 1), (7, 3), (2, 5)])
def test_faces_lie_row_by_row(n, columns):
    faces = some_faces(n, h=4, w=6)
    picture = face_images.sheet(faces, columns)
    rows = (n + columns - 1) // columns
    assert picture.shape == (4 * rows, 6 * columns, 3) and picture.dtype == np.uint8
    for k in range(rows * columns):
        y, x = 4 * (k // columns), 6 * (k % columns)
        place = picture[y : y + 4, x : x + 6]
        white = np.full((4, 6, 3), 255)  # left over
        expected = faces[k].transpose(1, 2, 0) if k < n else white
        np.testing.assert_array_equal(place, expected)


def test_a_png_as_text_gives_the_picture_back():
    picture = face_images.sheet(some_faces(25), 5)
    text = face_images.to_png(picture)
    assert base64.b64decode(text, validate=True) == face_images.png(picture)
    np.testing.assert_array_equal(face_images.from_png(text), picture)
    for other in (text[:400], "no base64!", ""):
        with pytest.raises(DataError):
            face_images.from_png(other)


def test_every_pixel_becomes_a_square():
    picture = face_images.sheet(some_faces(2, h=3, w=2), 2)
    np.testing.assert_array_equal(
        face_images.enlarged(picture, 4), np.kron(picture, np.ones((4, 4, 1)))
    )


# Sliced Wasserstein distance


def test_equal_sets_are_at_0_in_any_order(faces):
    assert sliced_wasserstein(faces, faces) == 0
    assert sliced_wasserstein(faces, faces[::-1]) == pytest.approx(0, abs=1e-6)


def test_it_is_symmetric_and_follows_from_its_seed(faces):
    others = some_faces(300)
    distance = sliced_wasserstein(faces, others, seed=3)
    assert sliced_wasserstein(others, faces, seed=3) == distance > 0.1
    assert sliced_wasserstein(faces, others, seed=4) != distance
    assert sliced_wasserstein(faces, others, seed=4) == pytest.approx(distance, rel=0.2)


@pytest.mark.parametrize("channels", [1, 3])
def test_translated_sets(channels):
    """By a vector t: the mean of (u t)^2 over unit vectors u is |t|^2 / d."""
    faces = some_faces(50, high=156)
    moved = faces.copy()
    moved[:, :channels] += 100
    squares = [sliced_wasserstein(faces, moved, seed) ** 2 for seed in range(16)]
    # (u t)^2 has a standard deviation of sqrt(2) times its mean: 4,096 directions.
    expected = (100 / 255) ** 2 * channels / 3
    assert np.mean(squares) == pytest.approx(expected, rel=5 * 2**0.5 / 64)


def test_fewer_kinds_of_faces_are_farther(faces):
    """A generator that has collapsed, to one good face, is far from the data."""
    collapsed = np.repeat(faces[:1], 150, axis=0)
    halves = sliced_wasserstein(faces[:150], faces[150:])
    assert sliced_wasserstein(collapsed, faces[150:]) > 3 * halves


def test_it_is_the_cheapest_way_to_move_the_points():
    """Against all 120 ways to pair five points with five, on the same directions."""
    a, b = some_faces(5, 1, h=3), some_faces(5, 2, h=3, high=128)
    rng = np.random.default_rng(5)
    directions = rng.standard_normal((27, 256), dtype=np.float32).astype(float)
    ways = np.array(list(itertools.permutations(range(5))))
    costs = []
    for u in directions.T / np.linalg.norm(directions.T, axis=1, keepdims=True):
        p, q = (x.reshape(5, 27) / 255 @ u for x in (a, b))
        costs.append(np.mean((p - q[ways]) ** 2, axis=1).min())
    expected = np.sqrt(np.mean(costs))
    assert sliced_wasserstein(a, b, seed=5) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(9, 3, 24, 24), (10, 3, 24, 12)])
def test_sets_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError) as caught:
        sliced_wasserstein(some_faces(10), np.zeros(shape, np.uint8))
    assert str(shape) in str(caught.value) and "(10, 3, 24, 24)" in str(caught.value)


# Nearest neighbours


def test_copies_are_found(faces):
    wanted = [7, 299, 0, 123]
    changed = faces[wanted]
    changed[1, 2, 3:7, 5] ^= 128  # four values of 3 * 24 * 24
    numbers, distances = nearest(changed, faces)
    gap = np.sqrt(4 * 128**2 / (3 * 24 * 24)) / 255
    assert numbers.tolist() == wanted
    assert distances.tolist() == pytest.approx([0, gap, 0, 0])


def test_it_is_the_nearest_of_all_pairs():
    a, b = some_faces(9, 1, h=5), some_faces(40, 2, h=5)
    differences = a[:, None].astype(float) / 255 - b[None].astype(float) / 255
    all_pairs = np.sqrt(np.mean(differences**2, axis=(2, 3, 4)))
    numbers, distances = nearest(a, b)
    np.testing.assert_array_equal(numbers, all_pairs.argmin(axis=1))
    np.testing.assert_allclose(distances, all_pairs.min(axis=1), rtol=1e-6)
