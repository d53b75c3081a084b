"""The drawn faces: their contract, and that all of the sprites are in use."""

import hashlib

import numpy as np
import pytest

from d2lpar.datasets import drawn_faces, synthetic_punks
from d2lpar.errors import SettingError

N = 2000


@pytest.fixture(scope="module")
def drawn():
    return synthetic_punks(N, seed=0)


def test_a_seed_draws_the_same_faces_for_ever(drawn):
    """Records name the data by its hash, so the faces of a seed must not change."""
    assert drawn.shape == (N, 3, 24, 24) and drawn.dtype == np.uint8
    assert drawn.flags["C_CONTIGUOUS"]
    assert hashlib.sha256(drawn.tobytes()).hexdigest() == (
        "6088e3dd7b27fce537c5400f1ad8ce95b3d9bc8d0b2fb532cc7ec88e0139b6be"
    )
    assert (synthetic_punks(N, seed=1) != drawn).any(axis=(1, 2, 3)).mean() > 0.99
    assert synthetic_punks().shape == (10_000, 3, 24, 24)


# 500 is the size of a chunk: at, below, above and well beyond its edge.
@pytest.mark.parametrize("n", [1, 499, 500, 501, np.int64(1234)])
def test_fewer_faces_are_the_first_of_more(drawn, n):
    np.testing.assert_array_equal(synthetic_punks(n, seed=0), drawn[:n])


def test_the_global_random_state_plays_no_part(drawn):
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    np.testing.assert_array_equal(synthetic_punks(20), drawn[:20])
    np.testing.assert_array_equal(np.random.get_state()[1], before)


def test_they_are_like_the_real_ones(drawn):
    """Hardly two alike; a head in the middle of black; few flat colours in each."""
    assert len({face.tobytes() for face in drawn}) > 0.99 * N
    assert not drawn[:, :, 0].any() and not drawn[:, :, :, [0, -1]].any()
    # 36 % of a CryptoPunk is opaque on average, 26 % at least and 58 % at most.
    lit = drawn.any(axis=1).mean(axis=(1, 2))
    assert 0.33 < lit.mean() < 0.45 and lit.min() > 0.2 and lit.max() < 0.65
    mean = drawn.mean(axis=(0, 1))
    assert mean[10:18, 8:14].min() > 60 and mean[:, [0, 1, -2, -1]].max() < 10
    red, green, blue = drawn.mean(axis=(0, 2, 3))
    assert red > green + 5 > blue + 10  # skin
    for face in drawn[:200]:
        assert 6 <= len(np.unique(face.reshape(3, -1), axis=1).T) <= 32


def test_heads_come_in_two_builds(monkeypatch):
    monkeypatch.setattr(
        drawn_faces, "LAYERS", {name: (n, share * (name == "head"))
                                for name, (n, share) in drawn_faces.LAYERS.items()}
    )  # fmt: skip
    heads = synthetic_punks(500).any(axis=1)
    builds, counts = np.unique(heads, axis=0, return_counts=True)
    assert len(builds) == 2 and counts.min() > 180
    # One is two columns narrower and a row lower than the other.
    width, height = (builds.any(axis=k).sum(axis=1) for k in (1, 2))
    assert np.ptp(width) == 2 and np.ptp(height) == 1


@pytest.mark.parametrize("row, layer", [*enumerate(drawn_faces.LAYERS)])
def test_every_sprite_shows_in_its_share_of_the_faces(drawn, monkeypatch, row, layer):
    count, share = drawn_faces.LAYERS[layer]
    sprites, palette = drawn_faces._sheet()
    assert sprites[row, :count].any(axis=(1, 2)).all()
    assert not sprites[row, count:].any()
    assert sprites[row].max() < len(palette)
    changed = 0
    for k in range(count):
        without = sprites.copy()
        without[row, k] = 0
        monkeypatch.setattr(drawn_faces, "_sheet", lambda s=without: (s, palette))
        differ = (synthetic_punks(500) != drawn[:500]).any(axis=(1, 2, 3)).mean()
        assert 0 < differ <= 1
        changed += differ
    # Sprites are hidden by later ones at times, and never shown more often.
    assert changed <= share + 5 * np.sqrt(share * (1 - share) / 500) + 1e-9
    assert changed > share / 4


@pytest.mark.parametrize("n", [0, -1, 2.0, "3", True, 10**6 + 1])
def test_counts_out_of_range_are_refused(n):
    with pytest.raises(SettingError, match=str(n)):
        synthetic_punks(n)
