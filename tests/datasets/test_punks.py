"""Faces: the drawn ones, tiles, pictures, and distances against known answers.

How ``punks.png`` is found is tested in test_download.py.
"""

import base64
import hashlib

import numpy as np
import pytest
from PIL import Image

from d2lpar.datasets import punks, synthetic_punks
from d2lpar.datasets.punks import nearest
from d2lpar.errors import SettingError

N = 2000


def some_faces(n, seed=0, h=24, w=None, high=256):
    shape = (n, 3, h, w or h)
    return np.random.default_rng(seed).integers(0, high, shape, np.uint8)


# Drawn faces


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


# 500 is the size of a chunk: below, at, above and well beyond its edge.
@pytest.mark.parametrize("n", [1, 500, 501, np.int64(1234)])
def test_fewer_faces_are_the_first_of_more(drawn, n):
    np.testing.assert_array_equal(synthetic_punks(n, seed=0), drawn[:n])


@pytest.mark.parametrize("n", [0, -1, 10**6 + 1])
def test_counts_out_of_range_are_refused(n):
    with pytest.raises(SettingError, match=str(n)):
        synthetic_punks(n)


def test_drawn_faces_are_never_looked_for(tmp_path, caplog):
    data = punks.load("synthetic", data_dir=tmp_path / "absent", n_train=30)
    assert punks.locate("synthetic", tmp_path / "absent") == "synthetic"
    assert data.synthetic and data.sizes == {"n_train": 30}
    assert data.sha256 == hashlib.sha256(data.X.tobytes()).hexdigest()
    assert punks.load("synthetic", n_train=30, seed=1).sha256 != data.sha256
    assert caplog.records == []


# Tiles


def as_the_notebook(pixels, tiles):
    """The CryptoPunks notebook's loop over an RGB picture (its ``finalArray``)."""
    found = np.empty((tiles**2, 3, 24, 24))
    for i in range(tiles):
        for j in range(tiles):
            a, b = 24 * i, 24 * (i + 1)
            c, d = 24 * j, 24 * (j + 1)
            idx = j + i * tiles
            found[idx, 0, :, :] = pixels[a:b, c:d, 0]
            found[idx, 1, :, :] = pixels[a:b, c:d, 1]
            found[idx, 2, :, :] = pixels[a:b, c:d, 2]
    return found


def test_tiles_are_cut_as_the_notebook_cuts_them(tmp_path, monkeypatch):
    """Of 4 x 4 faces; every fourth pixel is transparent, and yet of some colour."""
    pixels = np.random.default_rng(0).integers(0, 256, (96, 96, 4), np.uint8)
    pixels[::2, ::2, 3] = 0
    path = tmp_path / "punks.png"
    Image.fromarray(pixels).save(path)
    monkeypatch.setattr(punks, "TILES", 4)
    found = punks.read_tiles(path)
    assert found.dtype == np.uint8 and found.flags["C_CONTIGUOUS"]
    # Alpha is dropped as by convert("RGB"): what is transparent keeps its colour.
    converted = np.asarray(Image.open(path).convert("RGB"))
    np.testing.assert_array_equal(found, as_the_notebook(converted, 4))
    # The fifth face is the first of the second row.
    np.testing.assert_array_equal(found[4, 1], pixels[24:48, :24, 1])


# Pictures


@pytest.mark.parametrize(("n", "columns"), [(6, 3), (1, 1), (7, 3), (2, 5)])
def test_faces_lie_row_by_row(n, columns):
    faces = some_faces(n, h=4, w=6)
    picture = punks.sheet(faces, columns)
    rows = (n + columns - 1) // columns
    assert picture.shape == (4 * rows, 6 * columns, 3) and picture.dtype == np.uint8
    for k in range(rows * columns):
        y, x = 4 * (k // columns), 6 * (k % columns)
        place = picture[y : y + 4, x : x + 6]
        white = np.full((4, 6, 3), 255)  # left over
        expected = faces[k].transpose(1, 2, 0) if k < n else white
        np.testing.assert_array_equal(place, expected)


def test_a_png_as_text_gives_the_picture_back():
    picture = punks.sheet(some_faces(10), 5)
    text = punks.to_png(picture)
    assert base64.b64decode(text, validate=True) == punks.png(picture)
    np.testing.assert_array_equal(punks.from_png(text, 5, 2), picture)


def test_every_pixel_becomes_a_square():
    picture = punks.sheet(some_faces(2, h=3, w=2), 2)
    expected = np.kron(picture, np.ones((4, 4, 1)))
    np.testing.assert_array_equal(punks.enlarged(picture, 4), expected)


# Distances


def test_it_is_the_nearest_of_all_pairs():
    a, b = some_faces(9, 1, h=5), some_faces(40, 2, h=5)
    b[7] = a[3]  # a copy
    differences = a[:, None].astype(float) / 255 - b[None].astype(float) / 255
    all_pairs = np.sqrt(np.mean(differences**2, axis=(2, 3, 4)))
    numbers, distances = nearest(a, b)
    np.testing.assert_array_equal(numbers, all_pairs.argmin(axis=1))
    np.testing.assert_allclose(distances, all_pairs.min(axis=1), rtol=1e-6)
    assert numbers[3] == 7 and distances[3] == 0
