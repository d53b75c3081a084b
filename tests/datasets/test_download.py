"""Finding, verifying and downloading the published sets, on tiny stand-ins for them.

The stand-ins have the real files' names and formats, but 12 and 5 images or 4 x 4
faces; a server on this machine plays the mirrors.
"""

import gzip
import hashlib
import io
import socket
import struct
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from d2lpar import datasets
from d2lpar.datasets import fashion, punks
from d2lpar.datasets.fashion import sha256_of
from d2lpar.errors import DataError, SettingError

MIRRORS = ("missing", "corrupt", "good")
only_fashion = pytest.mark.parametrize("tiny", ["fashion-mnist"], indirect=True)
only_punks = pytest.mark.parametrize("tiny", ["cryptopunks"], indirect=True)


class Tiny:
    """A stand-in: the files' contents, decompressed, and the arrays in them."""

    def __init__(self, module, contents, arrays, monkeypatch):
        self.module, self.contents, self.arrays = module, contents, arrays
        self.constant = "FASHION_MNIST" if module is fashion else "CRYPTOPUNKS"
        self.monkeypatch = monkeypatch

    @property
    def files(self):
        return getattr(self.module, self.constant)

    def publish(self, **changes):
        """Let the files be published otherwise: ``urls``, ``read_file``."""
        self.monkeypatch.setattr(
            self.module, self.constant, replace(self.files, **changes)
        )

    def load(self, data_dir=None, name=None, **sizes):
        return self.module.load(name or self.files.name, data_dir=data_dir, **sizes)

    def check(self, data):
        assert data.name == self.files.name and not data.synthetic
        assert data.sha256 == sha256_of(self.arrays)

    def put(self, folder, change=lambda content: content):
        """Write the files into a folder, the first of them changed."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.contents.items():
            changed = change(content) if name == self.first else content
            (folder / name).write_bytes(packed(name, changed))
        return folder

    @property
    def first(self):
        return next(iter(self.contents))

    def kept(self):
        return sorted(p.name for p in self.files.cache_folder.rglob("*"))


def packed(name, content):
    return gzip.compress(content, 1) if name.endswith(".gz") else content


def flipped(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.fixture(params=["fashion-mnist", "cryptopunks"])
def tiny(request, tmp_path, monkeypatch):
    """A stand-in; no files of this machine are found, and no address answers."""
    rng, contents = np.random.default_rng(0), {}
    if request.param == "fashion-mnist":
        arrays = [
            rng.integers(0, 10, shape, np.uint8)
            for shape in ((12, 28, 28), (12,), (5, 28, 28), (5,))
        ]
        published = {}
        for name, array in zip(fashion.FASHION_MNIST_FILES, arrays):
            header = struct.pack(
                f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape
            )
            contents[f"{name}.gz"] = content = header + array.tobytes()
            published[name] = hashlib.sha256(content).hexdigest(), array.shape
        monkeypatch.setattr(fashion, "FASHION_MNIST_FILES", published)
        stand_in = Tiny(fashion, contents, arrays, monkeypatch)
    else:
        pixels = rng.integers(0, 256, (4, 24, 4, 24, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels.reshape(96, 96, 3)).save(file, format="png")
        contents["punks.png"] = content = file.getvalue()
        monkeypatch.setattr(punks, "TILES", 4)
        monkeypatch.setattr(punks, "PUNKS_SIZE", len(content))
        monkeypatch.setattr(punks, "PUNKS_SHA256", hashlib.sha256(content).hexdigest())
        arrays = [pixels.transpose(0, 2, 4, 1, 3)]
        stand_in = Tiny(punks, contents, arrays, monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "mxnet"))
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections fail
        stand_in.publish(urls=(f"http://127.0.0.1:{nobody.getsockname()[1]}/",))
        yield stand_in


@pytest.fixture
def mirrors(tiny, http_server):
    """Serve good and bad mirrors; call with their names; returns the requests' log."""

    def answer(path):
        mirror, _, name = path.partition("/")
        body = packed(name, tiny.contents[name])
        bodies = {
            "good": (body, len(body)),
            "corrupt": (packed(name, flipped(tiny.contents[name])), len(body)),
        }
        return bodies.get(mirror)

    base, requests = http_server(answer)

    def serve(*names):
        tiny.publish(urls=tuple(f"{base}/{name}/" for name in names))
        return requests

    return serve


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "d2lpar"]


# Where it is looked for


def test_order_of_folders(tmp_path, tiny, monkeypatch, caplog):
    asked, variable, name = tmp_path / "asked", tmp_path / "env", tiny.files.name
    monkeypatch.setenv("D2LPAR_DATA", str(variable))
    worse = None
    for place in (
        tmp_path / "mxnet" / "datasets" / name,
        tiny.files.cache_folder,
        variable,
        variable / name,
        asked,
        asked / name,
    ):
        for folder in (asked, variable):
            folder.mkdir(exist_ok=True)
        if worse:
            tiny.put(worse, flipped)  # whoever reads this has gone too far
        tiny.put(place)
        assert tiny.module.locate("auto", asked) == name
        tiny.check(tiny.load(asked))
        worse = place
    assert not any("not used" in line for line in warnings_in(caplog))


@only_fashion
def test_a_folder_without_the_files_is_logged_and_one_that_is_absent_refused(
    tmp_path, tiny, monkeypatch, caplog
):
    tiny.put(tiny.files.cache_folder)
    path = tmp_path / "data"
    for call in (datasets.load, datasets.locate):
        with pytest.raises(DataError, match=f"--data-dir {path}"):
            call("auto", data_dir=path)
    monkeypatch.setenv("D2LPAR_DATA", str(path))
    with pytest.raises(DataError, match=f"D2LPAR_DATA {path}"):
        datasets.load("auto")
    path.mkdir()
    tiny.check(tiny.load(path, "auto"))
    assert str(path) in warnings_in(caplog)[0]


# What is accepted and what is not


@only_fashion
def test_files_that_are_not_compressed(tmp_path, tiny):
    for name, content in tiny.contents.items():
        (tmp_path / name.removesuffix(".gz")).write_bytes(content)
    tiny.check(tiny.load(tmp_path))


ENDLESS = gzip.compress(bytes(2**22)) * 500  # 2 GiB, of 2 MB
# What has become of a file, from its name and its content.
DAMAGE = {
    "cut short": lambda name, c: packed(name, c)[: len(c) // 4],
    "another content": lambda name, c: packed(name, flipped(c)),
    "gigabytes": lambda name, c: packed(name, c) + ENDLESS,
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_in_a_folder_that_was_asked_for(tmp_path, tiny, kind, monkeypatch):
    tiny.put(tiny.files.cache_folder)  # a good copy elsewhere does not hide it
    folder = tiny.put(tmp_path / "data")
    path = folder / tiny.first
    path.write_bytes(DAMAGE[kind](tiny.first, tiny.contents[tiny.first]))
    with pytest.raises(DataError) as caught:
        tiny.load(folder, "auto")
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    monkeypatch.setenv("D2LPAR_DATA", str(folder))
    with pytest.raises(DataError, match=str(path)):
        tiny.load()


@only_fashion
def test_a_file_that_does_not_fit_in_memory_is_named(tmp_path, tiny, monkeypatch):
    def full(*args):
        raise MemoryError

    folder = tiny.put(tmp_path / "data")
    monkeypatch.setattr(gzip, "open", full)
    with pytest.raises(DataError, match=f"{tiny.first}: does not fit in .* memory"):
        tiny.load(folder)


def test_damage_in_the_cache_is_logged_and_replaced(tiny, mirrors, caplog):
    tiny.put(tiny.files.cache_folder, flipped)
    requests = mirrors("good")
    tiny.check(tiny.load(name="auto"))
    (line,) = warnings_in(caplog)
    assert str(tiny.files.cache_folder / tiny.first) in line
    caplog.clear()
    tiny.check(tiny.load(name="auto"))  # the download has taken its place
    assert warnings_in(caplog) == [] and len(requests) == len(tiny.contents)


# Downloading


def test_mirrors_are_tried_in_turn_and_a_failure_leaves_nothing(tiny, mirrors):
    mirrors(*MIRRORS[:-1])
    with pytest.raises(DataError, match=f"/{MIRRORS[-2]}/: "):
        tiny.load()
    assert tiny.kept() == []
    requests = mirrors(*MIRRORS)
    requests.clear()
    tiny.check(tiny.load())
    for name in tiny.contents:
        tried = [r.split("/")[0] for r in requests if r.endswith(f"/{name}")]
        assert list(dict.fromkeys(tried)) == list(MIRRORS)
    assert tiny.kept() == sorted(tiny.contents)


@only_fashion
def test_an_incomplete_copy_is_named(tmp_path, tiny):
    folder = tiny.put(tmp_path / "data")
    (folder / tiny.first).unlink()
    with pytest.raises(DataError, match=f"{folder}: {tiny.first} is missing"):
        tiny.load(folder, "auto")


@only_fashion
def test_a_download_that_is_interrupted_at_the_last_file_leaves_nothing(tiny, mirrors):
    mirrors("good")

    def interrupted(path):
        if path.name == list(tiny.contents)[-1]:
            raise KeyboardInterrupt
        return datasets.read_idx(path)

    tiny.publish(read_file=interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny.load()
    assert tiny.kept() == []


def test_a_cache_that_cannot_be_written(tmp_path, tiny, mirrors):
    mirrors("good")
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=str(tiny.files.cache_folder)):
        tiny.load()


def test_without_a_network_auto_takes_the_substitute_and_says_so(tiny, caplog):
    other = tiny.files.substitute
    assert tiny.module.locate("auto") == other
    data = tiny.load(name="auto", n_train=20, seed=3)
    assert data.sha256 == tiny.load(name=other, n_train=20, seed=3).sha256
    assert data.synthetic == (other == "synthetic")
    first, second = warnings_in(caplog)
    assert first == second and other in first and "\n" not in first
    with pytest.raises(DataError, match="--data-dir or D2LPAR_DATA"):
        tiny.load()


# What comes out


def test_the_first_of_them(tmp_path, tiny):
    folder = tiny.put(tmp_path / "data")
    whole, few = tiny.load(folder), tiny.load(folder, "auto", n_train=7)
    images = ("X_train", "y_train") if tiny.module is fashion else ("X",)
    for name in images:
        np.testing.assert_array_equal(getattr(few, name), getattr(whole, name)[:7])
    assert whole.head(7).sha256 == few.sha256
    for n in (0, -1, whole.sizes["n_train"] + 1):
        with pytest.raises(SettingError, match=f"n_train {n}: "):
            whole.head(n)
