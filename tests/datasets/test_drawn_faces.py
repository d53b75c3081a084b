"""The drawn faces: their contract, their hash, and the sheet of sprites."""

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


def test_the_sheet_has_the_sprites_that_layers_name():
    sprites, palette = drawn_faces._sheet()
    tones = {entry for entries in drawn_faces.TONES for entry in entries}
    assert sprites.max() < len(palette) and max(tones) < len(palette)
    for row, (count, _) in zip(sprites, drawn_faces.LAYERS.values()):
        assert row[:count].any(axis=(1, 2)).all() and not row[count:].any()


@pytest.mark.parametrize("n", [0, -1, 2.0, "3", True, 10**6 + 1])
def test_counts_out_of_range_are_refused(n):
    with pytest.raises(SettingError, match=str(n)):
        synthetic_punks(n)
