"""Finding, verifying and downloading the CryptoPunks, on a tiny stand-in for them.

The stand-in has the real file's name and format but 4 x 4 tiles. Only the last test
looks at the real file, where ``D2LPAR_DATA`` names a folder with it. How folders are
searched, and what becomes of a damaged cache or a download, is tested in
test_fashion.py: the code is the same.
"""

import hashlib
import io
import os
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from d2lpar import datasets
from d2lpar.datasets import punks
from d2lpar.errors import DataError, SettingError

SIDE = 4 * 24  # of the stand-in, in pixels


def as_png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="png")
    return file.getvalue()


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


@pytest.fixture(scope="module")
def picture():
    """The stand-in's pixels; every fourth is transparent, and yet of some colour."""
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 4), np.uint8)
    pixels[::2, ::2, 3] = 0
    return pixels


@pytest.fixture(scope="module")
def content(picture):
    return as_png(picture)


@pytest.fixture
def tiny(picture, content, tmp_path, monkeypatch):
    """The stand-in's faces in their order; no files of this machine are found."""
    monkeypatch.setattr(punks, "TILES", 4)
    monkeypatch.setattr(punks, "PUNKS_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "mxnet"))
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections fail
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        published = replace(punks.CRYPTOPUNKS, urls=(url,))
        monkeypatch.setattr(punks, "CRYPTOPUNKS", published)
        yield as_the_notebook(picture[:, :, :3], 4).astype(np.uint8)


@pytest.fixture
def folder(tiny, content, tmp_path):
    """A folder with the file."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "punks.png").write_bytes(content)
    return folder


def assert_tiny(data, tiny):
    assert data.name == "cryptopunks" and not data.synthetic
    np.testing.assert_array_equal(data.X, tiny)
    assert data.X.dtype == np.uint8 and data.X.flags["C_CONTIGUOUS"]
    assert data.sha256 == hashlib.sha256(tiny.tobytes()).hexdigest()
    assert data.sizes == {"n_train": len(tiny)}


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "d2lpar"]


# The file


def test_tiles_are_cut_as_the_notebook_cuts_them(folder, picture, tiny, content):
    found = punks.read_tiles(folder / "punks.png")
    np.testing.assert_array_equal(found, tiny)
    # The fifth face is the first of the second row.
    np.testing.assert_array_equal(found[4, 1], picture[24:48, :24, 1])
    # Alpha is dropped as by convert("RGB"): what is transparent keeps its colour.
    converted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(found, as_the_notebook(converted, 4))
    assert found[0][:, picture[:24, :24, 3] == 0].any()


def other_picture(width, height):
    return as_png(np.full((height, width, 3), 7, np.uint8))


def huge_picture():
    """A PNG that announces 30,000 x 30,000 pixels and has hardly any."""
    import zlib

    size = (30_000).to_bytes(4, "big")
    chunk = b"IHDR" + size + size + bytes([8, 2, 0, 0, 0])
    check = zlib.crc32(chunk).to_bytes(4, "big")
    begin = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + chunk + check
    return begin + other_picture(1, 1)[33:]


# What has become of the file, from its content, and what is said of it.
DAMAGE = {
    "cut short": (lambda c: c[: len(c) // 2], "truncated"),
    "cut in its header": (lambda c: c[:20], "truncated or corrupt|not an image"),
    "a web page": (lambda c: b"<html>404 Not Found</html>", "not an image"),
    "a byte flipped": (lambda c: c[:9000] + bytes([c[9000] ^ 1]) + c[9001:], "corrupt"),
    "foreign": (lambda c: other_picture(SIDE, SIDE), "SHA-256"),
    "smaller": (lambda c: other_picture(SIDE, 48), "96 x 48 pixels where 96 x 96"),
    "huge": (lambda c: huge_picture(), "far too large"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_in_a_folder_that_was_asked_for_is_an_error(folder, content, kind):
    spoil, why = DAMAGE[kind]
    path = folder / "punks.png"
    path.write_bytes(spoil(content))
    for name in ("auto", "cryptopunks"):
        with pytest.raises(DataError, match=why) as caught:
            punks.load(name, data_dir=folder)
        message = str(caught.value)
        assert message.startswith(f"{path}: ") and message.endswith("delete it")
        assert "\n" not in message
    assert punks.locate("auto", folder) == "cryptopunks"  # looks, and does not read


# What comes out


def test_without_a_network_auto_takes_drawn_faces_and_says_so(tiny, caplog):
    assert punks.locate("auto") == "synthetic"
    data = punks.load("auto", n_train=20, seed=3)
    assert data.synthetic and data.name == "synthetic-punks"
    np.testing.assert_array_equal(data.X, datasets.synthetic_punks(20, 3))
    for line in warnings_in(caplog):
        assert "could not be downloaded" in line
        assert "drawn faces (synthetic)" in line and "\n" not in line
    assert len(warnings_in(caplog)) == 2
    with pytest.raises(DataError, match="--data-dir or D2LPAR_DATA"):
        punks.load("cryptopunks")


def test_drawn_faces_are_never_looked_for(tiny, tmp_path, caplog):
    data = punks.load("synthetic", data_dir=tmp_path / "absent", n_train=30)
    assert punks.locate("synthetic", tmp_path / "absent") == "synthetic"
    assert data.sizes == {"n_train": 30}
    assert data.sha256 == hashlib.sha256(data.X.tobytes()).hexdigest()
    assert punks.load("synthetic", n_train=30, seed=1).sha256 != data.sha256
    assert len(punks.load("synthetic").X) == len(tiny)
    assert warnings_in(caplog) == []


def test_another_name_is_refused_with_those_there_are(tiny):
    for call in (punks.locate, punks.load):
        with pytest.raises(SettingError, match="'sample': .*auto, cryptopunks, synthe"):
            call("sample")


def test_the_first_of_them(folder, tiny):
    assert_tiny(punks.load("auto", data_dir=folder, n_train=7), tiny[:7])
    data = datasets.cryptopunks(folder)
    assert data.head() is data and data.head(16) is data
    for n in (0, -1, 17):
        with pytest.raises(SettingError, match=f"n_train {n}: .*16; ask for 1 to 16"):
            data.head(n)


def test_on_disk_finds_what_load_gave_a_run_and_never_downloads(
    folder, tiny, http_server, monkeypatch
):
    url, requests = http_server(lambda path: None)
    published = replace(punks.CRYPTOPUNKS, urls=(f"{url}/",))
    monkeypatch.setattr(punks, "CRYPTOPUNKS", published)
    for name in ("cryptopunks", "synthetic"):
        given = punks.load(name, data_dir=folder, n_train=9, seed=4)
        found = punks.on_disk(given.name, 9, 4, folder)
        assert (found.name, found.sha256) == (given.name, given.sha256)
    assert punks.on_disk("cryptopunks", 9, 0) is None and requests == []


# The real file


@pytest.fixture(scope="module")
def real_file():
    root = Path(os.environ.get("D2LPAR_DATA") or "no folder").expanduser()
    for path in (root / "cryptopunks" / "punks.png", root / "punks.png"):
        if path.is_file():
            return path
    pytest.skip("D2LPAR_DATA names no folder with punks.png in it")


def test_the_real_punks_are_those_of_the_notebooks_loop(real_file):
    real = datasets.cryptopunks(real_file.parent)
    assert real.X.shape == (10_000, 3, 24, 24) and real.X.dtype == np.uint8
    image = Image.open(real_file)
    expected = as_the_notebook(np.asarray(image.convert("RGB")), 100)
    np.testing.assert_array_equal(real.X, expected)
    alpha = np.asarray(image)[:, :, 3]
    clear = as_the_notebook(np.repeat(alpha[:, :, None], 3, axis=2), 100) == 0
    assert 0.5 < clear.mean() < 0.8 and not real.X[clear].any()  # black
