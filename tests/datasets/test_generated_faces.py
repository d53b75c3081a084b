"""The generated faces: their contract, and that all of the grammar is in use."""

import numpy as np
import pytest

from d2lpar.datasets import synthetic_punks
from d2lpar.datasets.generated import faces

N = 2000
SPRITES = [(layer, name) for layer in faces.LAYERS for name in faces.LAYERS[layer][1]]


@pytest.fixture(scope="module")
def drawn():
    return synthetic_punks(N, seed=0)


def colours(pictures):
    """The colours in pictures (n, 3, 24, 24), packed into integers (n, 24, 24)."""
    red, green, blue = np.moveaxis(pictures.astype(np.int64), 1, 0)
    return (red << 16) + (green << 8) + blue


def test_shape_dtype_and_default_count(drawn):
    assert drawn.shape == (N, 3, 24, 24) and drawn.dtype == np.uint8
    assert synthetic_punks().shape == (10_000, 3, 24, 24)


def test_same_seed_draws_the_same(drawn):
    assert np.array_equal(drawn, synthetic_punks(N, seed=0))


def test_another_seed_draws_others(drawn):
    assert (synthetic_punks(N, seed=1) != drawn).any(axis=(1, 2, 3)).mean() > 0.99


# 500 is the size of a chunk: at, below, above and well beyond its edge.
@pytest.mark.parametrize("n", [1, 7, 499, 500, 501, 1234])
def test_fewer_faces_are_the_first_of_more(drawn, n):
    assert np.array_equal(synthetic_punks(n, seed=0), drawn[:n])


def test_global_random_state_plays_no_part():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = synthetic_punks(20)
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(2)
    assert np.array_equal(synthetic_punks(20), first)


def test_hardly_a_face_is_drawn_twice(drawn):
    assert len({face.tobytes() for face in drawn}) > 0.99 * N


def test_background_is_black_around_every_face(drawn):
    assert not drawn[:, :, 0].any()  # the row above
    assert not drawn[:, :, :, [0, -1]].any()  # the columns at both sides
    assert not drawn[:, :, -1, [0, 1, -2, -1]].any()


def test_faces_fill_about_as_much_as_real_ones(drawn):
    # 36 % of a CryptoPunk is opaque on average, 26 % at least and 58 % at most.
    lit = drawn.any(axis=1).mean(axis=(1, 2))
    assert 0.33 < lit.mean() < 0.45
    assert lit.min() > 0.2 and lit.max() < 0.65


def test_mean_face_is_a_head_in_the_middle(drawn):
    mean = drawn.mean(axis=(0, 1))
    assert mean[10:18, 8:14].min() > 60
    assert mean[:, :2].max() < 10 and mean[:, -2:].max() < 10
    # Skin makes most of a picture: more red than green, more green than blue.
    red, green, blue = drawn.mean(axis=(0, 2, 3))
    assert red > green + 5 > blue + 10


def test_a_face_is_of_few_flat_colours_and_all_faces_of_many(drawn):
    packed = colours(drawn)
    each = [len(np.unique(face)) for face in packed[:200]]
    assert min(each) >= 6 and max(each) <= 32
    assert 100 < len(np.unique(packed)) < 300


def test_heads_come_in_two_builds(monkeypatch):
    monkeypatch.setattr(faces, "LAYERS", {"head": faces.LAYERS["head"]})
    heads = synthetic_punks(500).any(axis=1)
    builds, counts = np.unique(heads, axis=0, return_counts=True)
    assert len(builds) == 2 and counts.min() > 180
    # One is two columns narrower and a row lower than the other.
    width, height = (builds.any(axis=k).sum(axis=1) for k in (1, 2))
    assert np.ptp(width) == 2 and np.ptp(height) == 1


@pytest.mark.parametrize("layer, name", SPRITES)
def test_every_sprite_shows_in_some_face(drawn, monkeypatch, layer, name):
    sprite = faces.LAYERS[layer][1][name]
    monkeypatch.setitem(faces.LAYERS[layer][1], name, np.full_like(sprite, ord(".")))
    without = synthetic_punks(500, seed=0)
    changed = (without != drawn[:500]).any(axis=(1, 2, 3))
    assert changed.any()
    # Other faces stay as they were: a sprite is seen where it is drawn, only.
    assert layer == "head" or changed.mean() < 0.5


@pytest.mark.parametrize("layer", [name for name in faces.LAYERS if name != "head"])
def test_a_layer_shows_as_often_as_its_chance_says(monkeypatch, layer):
    chance, sprites = faces.LAYERS[layer]
    blank = {name: np.full_like(sprites[name], ord(".")) for name in sprites}
    head = faces.LAYERS["head"]
    monkeypatch.setattr(faces, "LAYERS", {"head": head, layer: (chance, sprites)})
    dressed = synthetic_punks(N)
    monkeypatch.setattr(faces, "LAYERS", {"head": head, layer: (chance, blank)})
    share = (dressed != synthetic_punks(N)).any(axis=(1, 2, 3)).mean()
    # Five standard deviations of a binomial share around its mean.
    assert abs(share - chance) <= 5 * np.sqrt(chance * (1 - chance) / N)


def test_every_letter_of_the_art_has_a_colour():
    palette = faces._draw_palettes(np.random.default_rng(0))
    sheets = [sprites for _, sprites in faces.LAYERS.values()]
    used = {code for sheet in sheets for s in sheet.values() for code in s.ravel()}
    letters = used - {ord("."), ord("_")}
    assert len(letters) > 20
    assert all(palette[:, code].any(axis=1).all() for code in letters)


def test_there_are_a_dozen_hair_styles_and_hats():
    assert len(faces.LAYERS["hair"][1]) >= 12
    assert len(faces.LAYERS["hat"][1]) >= 12


def test_numpy_integers_count():
    assert len(synthetic_punks(np.int64(3))) == 3


@pytest.mark.parametrize("n", [0, -1, 2.0, 1.5, "3", None, True])
def test_bad_counts_are_refused_by_value(n):
    with pytest.raises(
        ValueError, match="write a whole number, 1 to 1,000,000"
    ) as caught:
        synthetic_punks(n)
    assert repr(n) in str(caught.value) and "\n" not in str(caught.value)
