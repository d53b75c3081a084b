"""The distance of two sets of faces, and nearest neighbours, against known answers."""

import itertools

import numpy as np
import pytest

from d2lpar.datasets import face_quality, synthetic_punks
from d2lpar.datasets.face_quality import nearest, sliced_wasserstein


def some_faces(n, seed=0, h=24, low=0, high=256):
    return np.random.default_rng(seed).integers(low, high, (n, 3, h, h), np.uint8)


@pytest.fixture(scope="module")
def faces():
    return synthetic_punks(300, seed=0)


# Sliced Wasserstein distance


def test_equal_sets_are_at_0_in_any_order(faces):
    assert sliced_wasserstein(faces, faces) == 0
    assert sliced_wasserstein(faces, faces[::-1]) == pytest.approx(0, abs=1e-6)
    assert sliced_wasserstein(faces, faces[::-1].copy()) < 1e-6
    assert sliced_wasserstein(faces, some_faces(300)) > 0.1


def test_it_is_symmetric_and_the_same_for_the_same_seed(faces):
    others = some_faces(300)
    distance = sliced_wasserstein(faces, others, seed=3)
    assert sliced_wasserstein(faces, others, seed=3) == distance
    assert sliced_wasserstein(others, faces, seed=3) == distance
    assert sliced_wasserstein(faces, others, seed=4) != distance
    assert sliced_wasserstein(faces, others, seed=4) == pytest.approx(distance, rel=0.2)


def test_it_leaves_the_global_random_state_alone(faces):
    before = np.random.get_state()[1].copy()
    sliced_wasserstein(faces, faces)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize("shift", [1, 10, 100])
def test_translated_sets(shift):
    """By a vector t: the mean of (u t)^2 over unit vectors u is |t|^2 / d.

    With every pixel moved alike, |t|^2 / d is the shift's own square.
    """
    faces = some_faces(50, high=256 - shift)
    squares = [
        sliced_wasserstein(faces, faces + np.uint8(shift), seed) ** 2
        for seed in range(16)
    ]
    # (u t)^2 has a standard deviation of sqrt(2) times its mean: 4,096 directions.
    assert np.mean(squares) == pytest.approx((shift / 255) ** 2, rel=5 * 2**0.5 / 64)


def test_it_grows_with_the_distance(faces):
    noise = np.random.default_rng(0).standard_normal(faces.shape)
    found = [
        sliced_wasserstein(
            faces, np.clip(faces + sigma * noise, 0, 255).astype(np.uint8)
        )
        for sigma in (5, 20, 60, 150)
    ]
    assert found == sorted(found) and found[0] > 0 and found[-1] > 5 * found[0]


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
    assert face_quality.NUM_DIRECTIONS == len(costs) == 256
    assert sliced_wasserstein(a, b, seed=5) == pytest.approx(
        np.sqrt(np.mean(costs)), rel=1e-5
    )


def test_a_channel_counts_like_another():
    """Faces that differ in one channel only are 1/sqrt(3) as far."""
    faces = some_faces(40, high=100)
    red = faces.copy()
    red[:, 0] += 100
    squares = [sliced_wasserstein(faces, red, seed) ** 2 for seed in range(16)]
    assert np.mean(squares) == pytest.approx((100 / 255) ** 2 / 3, rel=5 * 2**0.5 / 64)


@pytest.mark.parametrize("shape", [(9, 3, 24, 24), (10, 3, 24, 12), (10, 1, 24, 24)])
def test_sets_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="compare as many faces of one size") as caught:
        sliced_wasserstein(some_faces(10), np.zeros(shape, np.uint8))
    assert str(shape) in str(caught.value) and "(10, 3, 24, 24)" in str(caught.value)


# Nearest neighbours


def test_planted_copies_are_found(faces):
    wanted = [7, 299, 0, 123]
    numbers, distances = nearest(faces[wanted], faces)
    assert numbers.tolist() == wanted and distances.tolist() == [0] * 4
    assert numbers.dtype == np.int64 and distances.dtype == np.float64


def test_a_changed_copy_is_as_far_as_it_was_changed(faces):
    changed = faces[40:41].copy()
    changed[0, 2, 3:7, 5] ^= 128  # four values of 3 * 24 * 24
    numbers, distances = nearest(changed, faces)
    expected = np.sqrt(4 * 128**2 / (3 * 24 * 24)) / 255
    assert numbers.tolist() == [40] and distances == pytest.approx([expected])


def test_it_is_the_nearest_of_all_pairs():
    a, b = some_faces(9, 1, h=5), some_faces(40, 2, h=5)
    differences = a[:, None].astype(float) / 255 - b[None].astype(float) / 255
    all_pairs = np.sqrt(np.mean(differences**2, axis=(2, 3, 4)))
    numbers, distances = nearest(a, b)
    np.testing.assert_array_equal(numbers, all_pairs.argmin(axis=1))
    np.testing.assert_allclose(distances, all_pairs.min(axis=1), rtol=1e-6)


def test_black_and_white_are_1_apart():
    black, white = np.zeros((1, 3, 24, 24), np.uint8), np.full((2, 3, 24, 24), 255)
    numbers, distances = nearest(black, white.astype(np.uint8))
    assert numbers.tolist() == [0] and distances.tolist() == [1]
