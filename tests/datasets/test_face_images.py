"""Sheets of faces, and PNG files as text: what goes in comes out, in its place."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from d2lpar.datasets import face_images


def some_faces(n, h=24, w=24):
    return np.random.default_rng(n).integers(0, 256, (n, 3, h, w), np.uint8)


@pytest.mark.parametrize(("n", "columns"), [(25, 5), (6, 3), (1, 1), (7, 3), (2, 5)])
def test_faces_lie_row_by_row(n, columns):
    faces = some_faces(n, h=4, w=6)
    picture = face_images.sheet(faces, columns)
    rows = (n + columns - 1) // columns
    assert picture.shape == (4 * rows, 6 * columns, 3) and picture.dtype == np.uint8
    for k in range(rows * columns):
        y, x = 4 * (k // columns), 6 * (k % columns)
        place = picture[y : y + 4, x : x + 6]
        if k < n:
            for channel in range(3):
                np.testing.assert_array_equal(place[..., channel], faces[k, channel])
        else:
            assert (place == 255).all()  # left over: white


def test_a_png_gives_the_picture_back():
    picture = face_images.sheet(some_faces(25), 5)
    text = face_images.to_png(picture)
    assert isinstance(text, str) and text.isascii() and "\n" not in text
    back = face_images.from_png(text)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, picture)


def test_the_text_is_a_png_file():
    picture = face_images.sheet(some_faces(4), 2)
    content = base64.b64decode(face_images.to_png(picture), validate=True)
    assert content == face_images.png(picture)
    image = Image.open(io.BytesIO(content))
    assert (image.format, image.size, image.mode) == ("PNG", (48, 48), "RGB")
    np.testing.assert_array_equal(np.asarray(image), picture)


def test_every_pixel_becomes_a_square():
    picture = face_images.sheet(some_faces(2, h=3, w=2), 2)
    larger = face_images.enlarged(picture, 4)
    assert larger.shape == (12, 16, 3)
    for dy in range(4):
        for dx in range(4):
            np.testing.assert_array_equal(larger[dy::4, dx::4], picture)
