"""Faces: the drawn ones, tiles, pictures, and distances against known answers.

How ``punks.png`` is found is tested in test_download.py.
"""

import hashlib

import numpy as np
import pytest
from PIL import Image

from d2lpar.datasets import punks, synthetic_punks, uniform_problem
from d2lpar.datasets.punks import distances_to

N = 2000


def some_faces(n, seed=0, h=24, w=24):
    return np.random.default_rng(seed).integers(0, 256, (n, 3, h, w), np.uint8)


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


def test_the_seed_is_that_of_faces_and_problems():
    faces = punks.load("synthetic", n_train=3, seed=1)
    assert (faces.X == synthetic_punks(3, seed=1)).all() and faces.synthetic
    one, two = (uniform_problem(3, 2, seed) for seed in (0, 1))
    assert (one.A != two.A).all() and (one.b != two.b).all()
    content = one.A.tobytes() + one.b.tobytes()
    assert one.sha256 == hashlib.sha256(content).hexdigest()


def test_fewer_faces_are_the_first_of_more(drawn):
    for n in (1, 500, 501):  # 500 is the size of a chunk
        np.testing.assert_array_equal(synthetic_punks(n, seed=0), drawn[:n])


# Tiles


def test_tiles_are_cut_as_the_notebook_cuts_them(tmp_path, monkeypatch):
    """Of 4 x 4 faces; every fourth pixel is transparent, and yet of some colour."""
    pixels = np.random.default_rng(0).integers(0, 256, (96, 96, 4), np.uint8)
    pixels[::2, ::2, 3] = 0
    path = tmp_path / "punks.png"
    Image.fromarray(pixels).save(path)
    monkeypatch.setattr(punks, "TILES", 4)
    found = punks.read_tiles(path)
    assert found.dtype == np.uint8 and found.flags["C_CONTIGUOUS"]
    for i in range(4):  # the notebook's loop over an RGB picture
        for j in range(4):
            tile = pixels[24 * i : 24 * (i + 1), 24 * j : 24 * (j + 1), :3]
            np.testing.assert_array_equal(found[j + 4 * i], tile.transpose(2, 0, 1))


# Pictures


@pytest.mark.parametrize(("n", "columns"), [(6, 3), (7, 3), (2, 5)])
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
    np.testing.assert_array_equal(punks.from_png(punks.to_png(picture), 5, 2), picture)
    expected = np.kron(picture, np.ones((4, 4, 1)))
    np.testing.assert_array_equal(punks.enlarged(picture, 4), expected)


# Distances


def test_it_is_the_least_of_all_pairs():
    a, b = some_faces(9, 1, h=5), some_faces(40, 2, h=5)
    b[7] = a[3]  # a copy
    differences = a[:, None].astype(float) / 255 - b[None].astype(float) / 255
    all_pairs = np.sqrt(np.mean(differences**2, axis=(2, 3, 4)))
    distances = distances_to(a, b)
    np.testing.assert_allclose(distances, all_pairs.min(axis=1), rtol=1e-6)
    assert distances[3] == 0
