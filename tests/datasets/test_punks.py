"""Finding, verifying and downloading the CryptoPunks, on a tiny stand-in for them.

The stand-in has the real file's name and format but 4 x 4 tiles; a server on this
machine plays the publisher, and what is neither there nor on disk cannot be had. Only
the last tests look at the real file, where ``D2LPAR_DATA`` names a folder with it.
"""

import hashlib
import io
import logging
import os
import re
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from d2lpar import datasets
from d2lpar.datasets import download, punks
from d2lpar.errors import DataError, SettingError

SIDE = 4 * 24  # of the stand-in, in pixels


@pytest.fixture(scope="module")
def real_punks():
    """The folder with the real ``punks.png``, named by D2LPAR_DATA."""
    value = os.environ.get("D2LPAR_DATA")
    if not value:
        pytest.skip("D2LPAR_DATA is not set: name a folder with punks.png in it")
    root = Path(value).expanduser()
    for folder in (root / "cryptopunks", root):
        if (folder / "punks.png").is_file():
            return folder
    pytest.skip(f"D2LPAR_DATA={value} holds no punks.png")


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


def publish(monkeypatch, **changes):
    """Let the file be published otherwise: ``urls``, ``read_file``."""
    published = replace(punks.CRYPTOPUNKS, **changes)
    monkeypatch.setattr(punks, "CRYPTOPUNKS", published)


@pytest.fixture
def tiny(picture, content, tmp_path, monkeypatch):
    """The stand-in's faces in their order; no files of this machine are found."""
    monkeypatch.setattr(punks, "TILES", 4)
    monkeypatch.setattr(punks, "PUNKS_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "mxnet"))
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections fail
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        publish(monkeypatch, urls=(url,))
        yield as_the_notebook(picture[:, :, :3], 4).astype(np.uint8)


@pytest.fixture
def put(tiny, content):
    """Write the file into a folder; returns the folder."""

    def put(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "punks.png").write_bytes(content)
        return folder

    return put


@pytest.fixture
def publisher(tiny, content, http_server, monkeypatch):
    """Serve some content as the publisher's; returns the requests' log."""
    served = {}

    def answer(path):
        body = served["body"]
        return None if body is None else (body, served["length"])

    base, requests = http_server(answer)

    def serve(body=content, length=None):
        served["body"], served["length"] = body, length or len(body or b"")
        publish(monkeypatch, urls=(f"{base}/",))
        return requests

    return serve


def assert_tiny(data, tiny):
    assert data.name == "cryptopunks" and not data.synthetic
    np.testing.assert_array_equal(data.X, tiny)
    assert data.X.dtype == np.uint8 and data.X.flags["C_CONTIGUOUS"]
    assert data.sha256 == hashlib.sha256(tiny.tobytes()).hexdigest()


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "d2lpar"]


def everything_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


def message_of(call, *args, **kwargs):
    """What the DataError says that a call raises: one line."""
    with pytest.raises(DataError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Where it is looked for


def places(tmp_path):
    """Best first, as the documentation says."""
    asked, env = tmp_path / "asked", tmp_path / "env"
    return [
        asked / "cryptopunks",
        asked,
        env / "cryptopunks",
        env,
        punks.CRYPTOPUNKS.cache_folder,
        tmp_path / "mxnet" / "datasets" / "cryptopunks",
    ]


@pytest.mark.parametrize("best", range(6))
def test_each_place_is_found_and_goes_before_the_later_ones(
    best, tmp_path, tiny, put, monkeypatch, caplog
):
    for place in places(tmp_path):
        place.mkdir(parents=True, exist_ok=True)
    for place in places(tmp_path)[best + 1 :]:
        (place / "punks.png").write_bytes(b"whoever reads this has gone too far")
    put(places(tmp_path)[best])
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path / "env"))
    assert_tiny(punks.load("cryptopunks", data_dir=tmp_path / "asked"), tiny)
    assert not any("not used" in line for line in warnings_in(caplog))


def test_the_folders_of_the_cache_are_d2lpars_own(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert punks.CRYPTOPUNKS.cache_folder == Path("/somewhere/d2lpar/cryptopunks")


def test_a_folder_without_the_file_is_logged_and_the_next_is_tried(
    tmp_path, tiny, put, caplog
):
    put(punks.CRYPTOPUNKS.cache_folder)
    (tmp_path / "empty").mkdir()
    assert_tiny(punks.load("auto", data_dir=tmp_path / "empty"), tiny)
    (line,) = warnings_in(caplog)
    assert f"no CryptoPunks in --data-dir {tmp_path / 'empty'}" in line
    assert "elsewhere" in line


@pytest.mark.parametrize("name", ["auto", "cryptopunks"])
@pytest.mark.parametrize("path", ["absent", "file", "~nobody-of-this-name"])
def test_a_data_dir_that_is_no_folder_is_an_error(tmp_path, put, name, path):
    put(punks.CRYPTOPUNKS.cache_folder)
    (tmp_path / "file").write_bytes(b"")
    path = path if path.startswith("~") else tmp_path / path
    message = message_of(punks.load, name, data_dir=path)
    assert message == f"--data-dir {path}: not a folder that can be read"


def test_the_variable_pointing_nowhere_is_an_error_that_names_it(
    tmp_path, put, monkeypatch
):
    put(punks.CRYPTOPUNKS.cache_folder)
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path / "absent"))
    message = message_of(punks.load, "auto")
    assert message.startswith(f"D2LPAR_DATA {tmp_path / 'absent'}: not a folder")


@pytest.mark.parametrize("locked", ["data", "data/cryptopunks"])
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, put, monkeypatch, locked):
    put(tmp_path / "data" / "cryptopunks")
    locked = tmp_path / locked
    if os.geteuid() == 0:  # permissions do not stop root
        monkeypatch.setattr(download.os, "access", lambda path, mode: path != locked)
    else:
        locked.chmod(0)
    try:
        message = message_of(datasets.cryptopunks, tmp_path / "data")
    finally:
        locked.chmod(0o755)
    assert message == f"--data-dir {locked}: not a folder that can be read"


def test_a_file_that_may_not_be_read_is_an_error(tmp_path, put, monkeypatch):
    folder = put(tmp_path / "data")

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    message = message_of(datasets.cryptopunks, folder)
    assert message == f"{folder / 'punks.png'}: cannot be read (Permission denied)"


# What is accepted and what is not


def test_tiles_are_cut_as_the_notebook_cuts_them(tmp_path, picture, tiny, put):
    found = punks.read_tiles(put(tmp_path) / "punks.png")
    np.testing.assert_array_equal(found, tiny)
    # The fifth face is the first of the second row.
    np.testing.assert_array_equal(found[4, 1], picture[24:48, :24, 1])


def test_alpha_is_dropped_as_by_convert(tmp_path, content, picture, tiny, put):
    found = punks.read_tiles(put(tmp_path) / "punks.png")
    converted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
    np.testing.assert_array_equal(found, as_the_notebook(converted, 4))
    transparent = picture[:24, :24, 3] == 0
    assert transparent.sum() >= 144 and found[0][:, transparent].any()


def other_picture(width, height, mode="RGB"):
    return as_png(np.asarray(Image.new(mode, (width, height), 7)))


def huge_picture():
    """A PNG that announces 30,000 x 30,000 pixels and has hardly any."""
    return as_png_header(30_000) + other_picture(1, 1)[33:]


def as_png_header(side):
    import zlib

    chunk = b"IHDR" + side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    check = zlib.crc32(chunk).to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + chunk + check


# What has become of the file, from its content, and what is said of it.
DAMAGE = {
    "cut short": (lambda c: c[: len(c) // 2], "truncated"),
    "without its last data": (lambda c: c[:-40], "truncated"),
    "cut in its header": (lambda c: c[:20], "truncated or corrupt|not an image"),
    "empty": (lambda c: b"", "not an image"),
    "a web page": (lambda c: b"<html>404 Not Found</html>", "not an image"),
    "a byte flipped": (
        lambda c: c[:9000] + bytes([c[9000] ^ 1]) + c[9001:],
        "truncated or corrupt",
    ),
    "longer": (lambda c: c + b"\0", "SHA-256 differs.*foreign"),
    "foreign": (lambda c: other_picture(SIDE, SIDE), "SHA-256 differs.*foreign"),
    "foreign and grey": (lambda c: other_picture(SIDE, SIDE, "L"), "SHA-256 differs"),
    "smaller": (
        lambda c: other_picture(SIDE, 48),
        "an image of 96 x 48 pixels where 96 x 96",
    ),
    "larger": (lambda c: other_picture(120, SIDE), "an image of 120 x 96 pixels"),
    "huge": (lambda c: huge_picture(), "far too large"),
}


@pytest.fixture(params=DAMAGE)
def damage(request, content):
    """Spoil the file in a folder; returns its path and what is said of it."""

    def damage(folder):
        spoil, says = DAMAGE[request.param]
        path = folder / "punks.png"
        path.write_bytes(spoil(content))
        return path, says

    return damage


@pytest.mark.parametrize("name", ["auto", "cryptopunks"])
def test_damage_in_a_folder_that_was_asked_for_is_an_error(
    tmp_path, put, damage, name, monkeypatch
):
    put(punks.CRYPTOPUNKS.cache_folder)  # a good copy elsewhere does not hide it
    folder = put(tmp_path / "data")
    path, says = damage(folder)
    message = message_of(punks.load, name, data_dir=folder)
    assert message.startswith(f"{path}: ") and message.endswith("delete it")
    assert re.search(says, message)
    monkeypatch.setenv("D2LPAR_DATA", str(folder))
    assert message_of(punks.locate, name) == message


def test_damage_in_the_cache_is_logged_and_mended(tiny, put, damage, publisher, caplog):
    path, _ = damage(put(punks.CRYPTOPUNKS.cache_folder))
    requests = publisher()
    assert_tiny(punks.load("auto"), tiny)
    (line,) = warnings_in(caplog)
    assert str(path) in line and line.endswith("not used")
    assert requests == ["punks.png"]
    caplog.clear()
    assert_tiny(punks.load("auto"), tiny)  # the download has taken its place
    assert warnings_in(caplog) == [] and len(requests) == 1


# Downloading


def test_a_download_is_verified_and_kept(tiny, content, publisher, caplog):
    requests = publisher()
    assert punks.locate("auto") == "cryptopunks"
    assert requests == ["punks.png"]
    assert everything_in(punks.CRYPTOPUNKS.cache_folder) == ["punks.png"]
    assert (punks.CRYPTOPUNKS.cache_folder / "punks.png").read_bytes() == content
    assert_tiny(punks.load("cryptopunks"), tiny)
    assert len(requests) == 1 and warnings_in(caplog) == []


@pytest.mark.parametrize("kind", ["missing", "cut", "corrupt", "foreign"])
def test_a_failed_download_leaves_nothing(kind, content, publisher):
    bodies = {
        "missing": (None, 0),
        "cut": (content[:5000], len(content)),
        "corrupt": (content[:-1] + b"?", 0),
        "foreign": (other_picture(SIDE, SIDE), 0),
    }
    publisher(*bodies[kind])
    message = message_of(punks.load, "cryptopunks")
    assert "CryptoPunks is not on disk and could not be downloaded" in message
    assert punks.CRYPTOPUNKS.urls[0] in message
    if kind in ("corrupt", "foreign"):
        assert "sent a truncated, corrupt or foreign punks.png" in message
    assert everything_in(punks.CRYPTOPUNKS.cache_folder) == []


def test_an_interrupted_download_leaves_nothing(publisher, monkeypatch):
    publisher()

    def interrupted(path):
        assert path.is_file()
        raise KeyboardInterrupt

    publish(monkeypatch, read_file=interrupted)
    with pytest.raises(KeyboardInterrupt):
        punks.load("auto")
    assert everything_in(punks.CRYPTOPUNKS.cache_folder) == []


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, publisher):
    publisher()
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    message = message_of(punks.load, "cryptopunks")
    assert message.startswith(f"{punks.CRYPTOPUNKS.cache_folder}: cannot be written")


def test_without_a_network_auto_falls_back_and_says_so_once(tiny, caplog):
    with caplog.at_level(logging.DEBUG, logger="d2lpar"):
        assert punks.locate("auto") == "synthetic"
    (line,) = warnings_in(caplog)
    assert "CryptoPunks is not on disk and could not be downloaded" in line
    assert punks.CRYPTOPUNKS.urls[0] in line and "generated faces (synthetic)" in line
    assert "\n" not in line
    caplog.clear()
    data = punks.load("auto", n_train=20, seed=3)
    assert data.synthetic and data.name == "synthetic-punks"
    np.testing.assert_array_equal(data.X, datasets.synthetic_punks(20, 3))
    assert len(warnings_in(caplog)) == 1
    assert everything_in(punks.CRYPTOPUNKS.cache_folder) == []


def test_without_a_network_the_real_ones_are_an_error(tiny):
    for call in (punks.locate, punks.load):
        message = message_of(call, "cryptopunks")
        assert "not on disk and could not be downloaded" in message
        assert punks.CRYPTOPUNKS.urls[0] in message
        assert "name a folder that holds it with --data-dir or D2LPAR_DATA" in message


# What comes out


def test_synthetic_is_never_looked_for(tiny, tmp_path, caplog):
    args = {"data_dir": tmp_path / "absent", "n_train": 30}
    data = punks.load("synthetic", **args)
    assert punks.locate("synthetic", tmp_path / "absent") == "synthetic"
    assert data.synthetic and data.name == "synthetic-punks"
    assert data.sizes == {"n_train": 30}
    assert data.sha256 == hashlib.sha256(data.X.tobytes()).hexdigest()
    assert punks.load("synthetic", seed=1, **args).sha256 != data.sha256
    assert warnings_in(caplog) == []


def test_there_are_as_many_synthetic_ones_as_real_ones(tiny):
    assert len(punks.load("synthetic").X) == len(tiny) == 16


def test_another_name_is_refused_with_those_there_are(tiny):
    for call in (punks.locate, punks.load):
        with pytest.raises(
            SettingError, match="'fashion-mnist': .*auto, cryptopunks, synthetic"
        ):
            call("fashion-mnist")


def test_load_cuts_to_the_first(tmp_path, tiny, put):
    data = punks.load("auto", data_dir=put(tmp_path / "data"), n_train=7)
    assert_tiny(data, tiny[:7])
    assert data.sizes == {"n_train": 7}


def test_head_of_everything_is_the_data_itself(tmp_path, tiny, put):
    data = datasets.cryptopunks(put(tmp_path / "data"))
    assert data.head() is data and data.head(16) is data
    assert_tiny(data.head(15), tiny[:15])
    assert data.head(15).sha256 != data.sha256


@pytest.mark.parametrize("n", [0, -1, 17])
def test_head_refuses_what_is_not_there(tmp_path, put, n):
    data = datasets.cryptopunks(put(tmp_path / "data"))
    with pytest.raises(
        SettingError, match=f"n_train {n}: cryptopunks has 16; ask for 1 to 16"
    ):
        data.head(n)


# What a run had, for its pictures


def test_on_disk_finds_what_load_gave_a_run(tmp_path, put):
    folder = put(tmp_path / "data")
    for name in ("cryptopunks", "synthetic"):
        given = punks.load(name, data_dir=folder, n_train=9, seed=4)
        found = punks.on_disk(given.name, 9, 4, folder)
        assert (found.name, found.sha256) == (given.name, given.sha256)
        np.testing.assert_array_equal(found.X, given.X)


def test_on_disk_never_downloads(publisher, caplog):
    requests = publisher()
    assert punks.on_disk("cryptopunks", 9, 0) is None
    assert requests == [] and not punks.CRYPTOPUNKS.cache_folder.exists()
    assert punks.locate("cryptopunks") == "cryptopunks"  # where it could have been had
    assert requests == ["punks.png"]
    assert len(punks.on_disk("cryptopunks", 9, 0).X) == 9
    assert warnings_in(caplog) == []


# The real file


@pytest.fixture(scope="module")
def real(real_punks):
    return datasets.cryptopunks(real_punks)


def test_the_real_punks(real):
    assert real.name == "cryptopunks" and not real.synthetic
    assert real.X.shape == (10_000, 3, 24, 24) and real.X.dtype == np.uint8
    assert real.sizes == {"n_train": 10_000}


def test_the_real_punks_are_those_of_the_notebooks_loop(real, real_punks):
    content = (real_punks / "punks.png").read_bytes()
    assert hashlib.sha256(content).hexdigest() == punks.PUNKS_SHA256
    image = Image.open(io.BytesIO(content))
    expected = as_the_notebook(np.asarray(image.convert("RGB")), 100)
    for idx in (0, 1, 99, 100, 4_321, 9_900, 9_999):
        np.testing.assert_array_equal(real.X[idx], expected[idx])
    np.testing.assert_array_equal(real.X, expected)


def test_transparent_pixels_of_the_real_punks_are_black(real, real_punks):
    alpha = np.asarray(Image.open(real_punks / "punks.png"))[:, :, 3]
    clear = as_the_notebook(np.repeat(alpha[:, :, None], 3, axis=2), 100) == 0
    assert 0.5 < clear.mean() < 0.8 and not real.X[clear].any()
