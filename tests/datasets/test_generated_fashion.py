"""The generated garments: their contract, and how hard they are to tell apart."""

import numpy as np
import pytest

from d2lpar.datasets import FASHION_CLASSES, synthetic_fashion

N_TRAIN, N_TEST = 4000, 1000


@pytest.fixture(scope="module")
def drawn():
    return synthetic_fashion(N_TRAIN, N_TEST, seed=0)


def test_classes_stand_in_the_official_order():
    assert len(FASHION_CLASSES) == 10
    assert FASHION_CLASSES[0] == "t-shirt/top"
    assert FASHION_CLASSES[6] == "shirt"
    assert FASHION_CLASSES[9] == "ankle boot"


def test_shapes_dtypes_and_ranges(drawn):
    X, y, X_test, y_test = drawn
    assert X.shape == (N_TRAIN, 28, 28) and y.shape == (N_TRAIN,)
    assert X_test.shape == (N_TEST, 28, 28) and y_test.shape == (N_TEST,)
    assert all(part.dtype == np.uint8 for part in drawn)
    assert X.min() == 0 and X.max() == 255
    assert set(np.unique(y)) == set(np.unique(y_test)) == set(range(10))


def test_light_garments_on_black(drawn):
    X = drawn[0]
    # The real data set has a mean of 73 and half of its pixels are black.
    assert 50 < X.mean() < 75
    assert 0.45 < (X == 0).mean() < 0.62
    # A picture always shows something, and never fills its frame.
    lit = (X > 0).mean(axis=(1, 2))
    assert lit.min() > 0.02 and lit.max() < 0.98


def test_same_seed_draws_the_same(drawn):
    again = synthetic_fashion(N_TRAIN, N_TEST, seed=0)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, again))


def test_another_seed_draws_others(drawn):
    X, y, _, _ = synthetic_fashion(N_TEST, 1, seed=1)
    assert not np.array_equal(y, drawn[1][:N_TEST])
    assert (X != drawn[0][:N_TEST]).any(axis=(1, 2)).all()


def test_global_random_state_plays_no_part():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = synthetic_fashion(20, 20)
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(2)
    second = synthetic_fashion(20, 20)
    assert all(np.array_equal(a, b) for a, b in zip(first, second))


# 500 is the size of a chunk: at, below, above and well beyond its edge.
@pytest.mark.parametrize("n", [1, 7, 499, 500, 501, 1234])
def test_fewer_pictures_are_the_first_of_more(drawn, n):
    X, y, X_test, y_test = synthetic_fashion(n, min(n, N_TEST), seed=0)
    assert np.array_equal(X, drawn[0][:n])
    assert np.array_equal(y, drawn[1][:n])
    assert np.array_equal(X_test, drawn[2][:n])
    assert np.array_equal(y_test, drawn[3][:n])


def test_no_picture_is_drawn_twice(drawn):
    pictures = np.concatenate([drawn[0], drawn[2]])
    assert len({picture.tobytes() for picture in pictures}) == N_TRAIN + N_TEST


def test_classes_are_balanced(drawn):
    # Five standard deviations of a binomial count around its mean.
    margin = 5 * np.sqrt(N_TRAIN * 0.1 * 0.9)
    counts = np.bincount(drawn[1], minlength=10)
    assert np.abs(counts - N_TRAIN / 10).max() < margin


def test_numpy_integers_count():
    assert len(synthetic_fashion(np.int64(3), np.uint8(2))[0]) == 3


@pytest.mark.parametrize("n", [0, -1, 2.0, 1.5, "3", None, True])
@pytest.mark.parametrize("name", ["n_train", "n_test"])
def test_bad_counts_are_refused_by_name_and_value(name, n):
    with pytest.raises(ValueError) as caught:
        synthetic_fashion(**{"n_train": 1, "n_test": 1, name: n})
    assert name in str(caught.value) and repr(n) in str(caught.value)


def nearest_mean(X, y, X_test):
    """Labels of the class whose mean picture lies nearest."""
    means = np.stack([X[y == k].mean(axis=0) for k in range(10)])
    squares = [((X_test - mean) ** 2).sum(axis=(1, 2)) for mean in means]
    return np.argmin(squares, axis=0)


def test_classes_can_be_told_apart_but_not_trivially(drawn):
    X, y, X_test, y_test = drawn
    guess = nearest_mean(X, y, X_test)
    # The same classifier reaches 0.68 on the real data set.
    assert 0.58 < (guess == y_test).mean() < 0.78
    # As there, the shirt is the hardest: it looks like any other top.
    recall = [(guess[y_test == k] == k).mean() for k in range(10)]
    assert FASHION_CLASSES[np.argmin(recall)] == "shirt"
    assert min(recall) < 0.4 and max(recall) > 0.75


def test_mistakes_stay_among_kindred_garments(drawn):
    X, y, X_test, y_test = drawn
    guess = nearest_mean(X, y, X_test)
    footwear = np.isin(np.arange(10), [5, 7, 9])
    assert (footwear[guess] == footwear[y_test]).mean() > 0.9
