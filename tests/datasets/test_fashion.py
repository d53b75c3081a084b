"""Finding, verifying and downloading Fashion-MNIST, on a tiny stand-in for it.

The stand-in has the real files' names and format but 12 and 5 pictures; a server on
this machine plays the mirrors, and what is neither there nor on disk cannot be had.
"""

import gzip
import hashlib
import logging
import os
import re
import socket
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar import datasets
from d2lpar.datasets import download, fashion
from d2lpar.datasets.images import sha256_of
from d2lpar.errors import DataError, SettingError

LABELS = "t10k-labels-idx1-ubyte"
IMAGES = "train-images-idx3-ubyte"
MIRRORS = ("missing", "corrupt", "cut", "foreign", "good")


def idx(array):
    """An IDX file's content."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def publish(monkeypatch, **changes):
    """Let the files be published otherwise: ``urls``, ``read_file``."""
    published = replace(fashion.FASHION_MNIST, **changes)
    monkeypatch.setattr(fashion, "FASHION_MNIST", published)


@pytest.fixture(autouse=True)
def tiny(tmp_path, monkeypatch):
    """The stand-in's arrays in their order; no files of this machine are found."""
    rng = np.random.default_rng(0)
    shapes = ((12, 28, 28), (12,), (5, 28, 28), (5,))
    arrays = [rng.integers(0, 256, s, np.uint8) for s in shapes]
    for y in arrays[1], arrays[3]:
        y %= 10
    files = {
        name: (hashlib.sha256(idx(array)).hexdigest(), array.shape)
        for name, array in zip(datasets.FASHION_MNIST_FILES, arrays)
    }
    monkeypatch.setattr(fashion, "FASHION_MNIST_FILES", files)
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
        yield arrays


@pytest.fixture
def contents(tiny):
    """Content of each file, by name."""
    return {name: idx(a) for name, a in zip(datasets.FASHION_MNIST_FILES, tiny)}


@pytest.fixture
def put(contents):
    """Write the four files, gzipped, into a folder."""

    def put(folder, level=9):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, level))
        return folder

    return put


@pytest.fixture
def mirrors(contents, http_server, monkeypatch):
    """Serve good and bad mirrors; call with their names; returns the requests' log."""

    def answer(path):
        mirror, _, name = path.partition("/")
        content = contents[name[: -len(".gz")]]
        bodies = {
            "good": gzip.compress(content, 1),
            "corrupt": gzip.compress(flipped(content, -1)),
            "foreign": b"<html>Please log in to this network</html>",
            "cut": gzip.compress(content),
        }
        if mirror not in bodies:
            return None
        body = bodies[mirror]
        return body[: len(body) // 2] if mirror == "cut" else body, len(body)

    base, requests = http_server(answer)

    def serve(*names):
        urls = tuple(f"{base}/{name}/" for name in names)
        publish(monkeypatch, urls=urls)
        return requests

    return serve


def assert_tiny(data, tiny):
    assert data.name == "fashion-mnist" and not data.synthetic
    for array, expected in zip(data, tiny):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == np.uint8
    assert data.sha256 == sha256_of(tiny)


def warnings_in(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "d2lpar"]


def everything_in(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# Where it is looked for


def places(tmp_path):
    """Best first, as the documentation says."""
    asked, env = tmp_path / "asked", tmp_path / "env"
    return [
        asked / "fashion-mnist",
        asked,
        env / "fashion-mnist",
        env,
        fashion.FASHION_MNIST.cache_folder,
        tmp_path / "mxnet" / "datasets" / "fashion-mnist",
    ]


@pytest.mark.parametrize("best", range(6))
def test_each_place_is_found_and_goes_before_the_later_ones(
    best, tmp_path, tiny, put, monkeypatch, caplog
):
    for place in places(tmp_path):
        place.mkdir(parents=True, exist_ok=True)
    for place in places(tmp_path)[best + 1 :]:
        for name in datasets.FASHION_MNIST_FILES:
            (place / name).write_bytes(b"whoever reads this has gone too far")
    put(places(tmp_path)[best])
    monkeypatch.setenv("D2LPAR_DATA", str(tmp_path / "env"))
    assert_tiny(datasets.load("fashion-mnist", data_dir=tmp_path / "asked"), tiny)
    assert not any("not used" in line for line in warnings_in(caplog))


def test_data_dir_may_be_text_and_begin_at_home(tmp_path, tiny, put, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / "here")
    assert_tiny(datasets.fashion_mnist(str(tmp_path / "here")), tiny)
    assert_tiny(datasets.fashion_mnist("~/here"), tiny)


def test_mxnets_cache_is_found_in_the_home_folder(tmp_path, tiny, put, monkeypatch):
    monkeypatch.delenv("MXNET_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    put(tmp_path / ".mxnet" / "datasets" / "fashion-mnist")
    assert_tiny(datasets.fashion_mnist(), tiny)


def test_a_folder_without_the_files_is_logged_and_the_next_is_tried(
    tmp_path, tiny, put, caplog
):
    put(fashion.FASHION_MNIST.cache_folder)
    (tmp_path / "empty").mkdir()
    assert_tiny(datasets.load("auto", data_dir=tmp_path / "empty"), tiny)
    (line,) = warnings_in(caplog)
    assert f"--data-dir {tmp_path / 'empty'}" in line and "elsewhere" in line


@pytest.mark.parametrize("name", ["auto", "fashion-mnist"])
@pytest.mark.parametrize("kind", ["absent", "a file"])
def test_a_data_dir_that_is_no_folder_is_an_error(tmp_path, put, name, kind):
    put(fashion.FASHION_MNIST.cache_folder)
    path = tmp_path / "data"
    if kind == "a file":
        path.write_bytes(b"")
    with pytest.raises(DataError) as caught:
        datasets.load(name, data_dir=path)
    assert str(caught.value) == f"--data-dir {path}: not a folder that can be read"


def test_the_variable_pointing_nowhere_is_an_error_that_names_it(
    tmp_path, put, monkeypatch
):
    put(fashion.FASHION_MNIST.cache_folder)
    absent = tmp_path / "absent"
    monkeypatch.setenv("D2LPAR_DATA", str(absent))
    with pytest.raises(DataError, match=re.escape(f"D2LPAR_DATA {absent}: not a")):
        datasets.load("auto")


def test_an_empty_variable_is_as_good_as_none(tiny, put, monkeypatch):
    put(fashion.FASHION_MNIST.cache_folder)
    monkeypatch.setenv("D2LPAR_DATA", "")
    assert_tiny(datasets.fashion_mnist(), tiny)


def test_a_folder_that_may_not_be_read_is_an_error(tmp_path, put, monkeypatch):
    folder = put(tmp_path / "locked")
    if os.geteuid() == 0:  # permissions do not stop root
        monkeypatch.setattr(download.os, "access", lambda path, mode: path != folder)
    else:
        folder.chmod(0)
    try:
        with pytest.raises(DataError, match="not a folder that can be read"):
            datasets.fashion_mnist(folder)
    finally:
        folder.chmod(0o755)


def test_a_file_that_may_not_be_read_is_an_error(tmp_path, put, monkeypatch):
    folder = put(tmp_path / "data")

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=f"{IMAGES}.gz: .*Permission denied"):
        datasets.fashion_mnist(folder)


# What is accepted and what is not


@pytest.mark.parametrize("level", [0, 1, 9])
def test_compression_does_not_matter(tmp_path, tiny, put, level):
    assert_tiny(datasets.fashion_mnist(put(tmp_path / "data", level)), tiny)


def test_uncompressed_files_do(tmp_path, tiny, contents):
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert_tiny(datasets.fashion_mnist(tmp_path), tiny)


def flipped(content, at):
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


def other_idx(*shape):
    return idx(np.ones(shape, np.uint8))


# What has become of a file, from its content: its ending and its bytes.
DAMAGE = {
    "cut short": lambda c: (".gz", gzip.compress(c)[: len(c) // 2]),
    "without its last byte": lambda c: (".gz", gzip.compress(c)[:-1]),
    "compressed bytes flipped": lambda c: (".gz", flipped(gzip.compress(c), 5000)),
    "no deflate stream": lambda c: (".gz", gzip.compress(c)[:10] + b"\xff" * 99),
    "check sum flipped": lambda c: (".gz", flipped(gzip.compress(c), -8)),
    "empty": lambda c: (".gz", b""),
    "not compressed": lambda c: (".gz", c),
    "a web page": lambda c: (".gz", b"<html>404 Not Found</html>"),
    "content flipped": lambda c: (".gz", gzip.compress(flipped(c, -1))),
    "foreign": lambda c: (".gz", gzip.compress(other_idx(12, 28, 28))),
    "of another size": lambda c: (".gz", gzip.compress(other_idx(11, 28, 28))),
    "of another rank": lambda c: (".gz", gzip.compress(other_idx(12 * 28 * 28))),
    "longer": lambda c: (".gz", gzip.compress(c + b"\0")),
    "raw and cut": lambda c: ("", c[:-100]),
    "raw and in its header": lambda c: ("", c[:7]),
    "raw and empty": lambda c: ("", b""),
    "raw and flipped": lambda c: ("", flipped(c, 100)),
}


@pytest.fixture(params=DAMAGE)
def damage(request, contents):
    """Spoil the training images in a folder; returns the spoilt file."""

    def damage(folder):
        ending, content = DAMAGE[request.param](contents[IMAGES])
        (folder / f"{IMAGES}.gz").unlink()
        path = folder / f"{IMAGES}{ending}"
        path.write_bytes(content)
        return path

    return damage


@pytest.mark.parametrize("name", ["auto", "fashion-mnist"])
def test_damage_in_a_folder_that_was_asked_for_is_an_error(
    tmp_path, put, damage, name, monkeypatch
):
    put(fashion.FASHION_MNIST.cache_folder)  # a good copy elsewhere does not hide it
    folder = put(tmp_path / "data")
    path = damage(folder)
    with pytest.raises(DataError) as caught:
        datasets.load(name, data_dir=folder)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    assert "delete it" in message
    monkeypatch.setenv("D2LPAR_DATA", str(folder))
    with pytest.raises(DataError) as caught:
        datasets.locate(name)
    assert str(caught.value) == message


def test_damage_in_the_cache_is_logged_and_mended(tiny, put, damage, mirrors, caplog):
    path = damage(put(fashion.FASHION_MNIST.cache_folder))
    requests = mirrors("good")
    assert_tiny(datasets.load("auto"), tiny)
    (line,) = warnings_in(caplog)
    assert str(path) in line and line.endswith("not used")
    assert len(requests) == 4
    caplog.clear()
    assert_tiny(datasets.load("auto"), tiny)  # the download has taken its place
    assert warnings_in(caplog) == [] and len(requests) == 4


def test_messages_tell_one_damage_from_another(tmp_path, contents):
    says = {
        "cut short": "truncated",
        "a web page": "Not a gzipped file",
        "of another size": r"not an IDX file of uint8 \(12, 28, 28\)",
        "raw and cut": "9324 bytes where 9424 are announced",
        "foreign": "SHA-256",
    }
    for kind, match in says.items():
        ending, content = DAMAGE[kind](contents[IMAGES])
        path = tmp_path / f"{IMAGES}{ending}"
        path.write_bytes(content)
        with pytest.raises(DataError, match=match):
            datasets.read_idx(path)


@pytest.mark.parametrize("name", datasets.FASHION_MNIST_FILES)
def test_three_of_the_four_files_are_an_error_naming_the_fourth(tmp_path, put, name):
    folder = put(tmp_path / "data")
    (folder / f"{name}.gz").unlink()
    with pytest.raises(DataError, match=re.escape(f"{folder}: {name}.gz is missing")):
        datasets.load("auto", data_dir=folder)


def test_three_of_the_four_files_in_the_cache_are_mended(tiny, put, mirrors, caplog):
    (put(fashion.FASHION_MNIST.cache_folder) / f"{LABELS}.gz").unlink()
    mirrors("good")
    assert_tiny(datasets.load(), tiny)
    (line,) = warnings_in(caplog)
    assert f"{LABELS}.gz is missing" in line


# Downloading


def test_a_download_is_kept(tiny, contents, mirrors, caplog):
    requests = mirrors("good")
    assert datasets.locate("auto") == "fashion-mnist"
    assert requests == [f"good/{name}.gz" for name in contents]
    assert everything_in(fashion.FASHION_MNIST.cache_folder) == sorted(
        f"{n}.gz" for n in contents
    )
    assert_tiny(datasets.load("fashion-mnist"), tiny)
    assert len(requests) == 4 and warnings_in(caplog) == []


def test_the_mirrors_are_tried_in_turn(tiny, contents, mirrors):
    requests = mirrors(*MIRRORS)
    assert_tiny(datasets.load("fashion-mnist"), tiny)
    for name in contents:
        tried = [r.split("/")[0] for r in requests if r.endswith(f"/{name}.gz")]
        assert list(dict.fromkeys(tried)) == list(MIRRORS)
    assert everything_in(fashion.FASHION_MNIST.cache_folder) == sorted(
        f"{n}.gz" for n in contents
    )


@pytest.mark.parametrize("bad", MIRRORS[:-1])
def test_a_failed_download_leaves_nothing(bad, mirrors):
    mirrors(bad)
    with pytest.raises(DataError, match="could not be downloaded") as caught:
        datasets.load("fashion-mnist")
    assert f"/{bad}/: " in str(caught.value) and "\n" not in str(caught.value)
    assert everything_in(fashion.FASHION_MNIST.cache_folder) == []


def test_a_download_that_fails_at_the_last_file_leaves_nothing(mirrors, contents):
    mirrors("good")
    contents[LABELS] = b"what the mirror has in its place"
    with pytest.raises(DataError, match=f"foreign {LABELS}.gz"):
        datasets.load("fashion-mnist")
    assert everything_in(fashion.FASHION_MNIST.cache_folder) == []


def test_an_interrupted_download_leaves_nothing(mirrors, monkeypatch):
    mirrors("good")

    def interrupted(path):
        if path.name.startswith(LABELS):
            raise KeyboardInterrupt
        return datasets.read_idx(path)

    publish(monkeypatch, read_file=interrupted)
    with pytest.raises(KeyboardInterrupt):
        datasets.load("auto")
    assert everything_in(fashion.FASHION_MNIST.cache_folder) == []


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, mirrors):
    mirrors("good")
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    says = f"{re.escape(str(fashion.FASHION_MNIST.cache_folder))}: cannot be written"
    with pytest.raises(DataError, match=says):
        datasets.load("fashion-mnist")


def test_without_a_network_auto_falls_back_and_says_so_once(caplog):
    with caplog.at_level(logging.DEBUG, logger="d2lpar"):
        assert datasets.locate("auto") == "synthetic"
    (line,) = warnings_in(caplog)
    assert "not on disk and could not be downloaded" in line
    assert fashion.FASHION_MNIST.urls[-1] in line and "synthetic" in line
    assert "\n" not in line
    caplog.clear()
    data = datasets.load("auto", n_train=20, n_test=10, seed=3)
    assert data.synthetic and data.name == "synthetic-fashion"
    assert [len(a) for a in data] == [20, 20, 10, 10]
    assert len(warnings_in(caplog)) == 1
    assert everything_in(fashion.FASHION_MNIST.cache_folder) == []


def test_without_a_network_the_real_one_is_an_error():
    for call in (datasets.locate, datasets.load):
        with pytest.raises(DataError, match="not on disk and could not be downloaded"):
            call("fashion-mnist")


# What comes out


def test_synthetic_is_never_looked_for(tmp_path, caplog):
    args = {"data_dir": tmp_path / "absent", "n_train": 30, "n_test": 10}
    data = datasets.load("synthetic", **args)
    assert datasets.locate("synthetic", tmp_path / "absent") == "synthetic"
    assert data.synthetic and data.X_train.shape == (30, 28, 28)
    assert data.sha256 == sha256_of(data)
    assert datasets.load("synthetic", **args).sha256 == data.sha256
    assert datasets.load("synthetic", seed=1, **args).sha256 != data.sha256
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("name", ["n_train", "n_test"])
def test_no_synthetic_samples_are_not_all_of_them(name):
    with pytest.raises(ValueError, match=f"{name} 0: write a whole number"):
        datasets.load("synthetic", **{"n_train": 1, "n_test": 1, name: 0})


def test_another_name_is_refused_with_those_there_are():
    for call in (datasets.locate, datasets.load):
        with pytest.raises(SettingError, match="'mnist'.*auto, fashion-mnist, synth"):
            call("mnist")


def test_load_cuts_to_the_first_samples(tmp_path, tiny, put):
    data = datasets.load("auto", data_dir=put(tmp_path / "d"), n_train=7, n_test=2)
    expected = [a[:n] for a, n in zip(tiny, (7, 7, 2, 2))]
    for array, first in zip(data, expected):
        np.testing.assert_array_equal(array, first)
    assert data.sha256 == sha256_of(expected)


def test_head_of_everything_is_the_data_itself(tmp_path, put):
    data = datasets.fashion_mnist(put(tmp_path / "data"))
    assert data.head() is data
    assert data.head(12, 5).sha256 == data.sha256
    assert data.head(n_test=5).sha256 == data.sha256
    assert data.head(11).sha256 != data.sha256
    assert data.head(n_test=4).sha256 != data.sha256
    assert data.head(3).classes == data.classes and data.head(3).name == data.name


@pytest.mark.parametrize("n", [0, -1, 13])
def test_head_refuses_what_is_not_there(tmp_path, put, n):
    data = datasets.fashion_mnist(put(tmp_path / "data"))
    with pytest.raises(SettingError, match=f"n_train {n}: .* has 12; .*1 to 12"):
        data.head(n)
    with pytest.raises(SettingError, match=f"n_test {n}: .* has 5; .*1 to 5"):
        data.head(1, n)


def test_the_hash_is_of_every_byte(tiny):
    before = sha256_of(tiny)
    assert before == hashlib.sha256(b"".join(a.tobytes() for a in tiny)).hexdigest()
    for array in tiny:
        array.flat[-1] ^= 1
        assert sha256_of(tiny) != before
        array.flat[-1] ^= 1
    assert sha256_of(tiny) == before
    backwards = [a[::-1] for a in tiny]  # not contiguous
    assert sha256_of(backwards) == sha256_of([a.copy() for a in backwards])


def numbered(n):
    """n pictures whose every pixel is their number, which is their label too."""
    y = np.arange(n, dtype=np.uint8)
    return np.broadcast_to(y[:, None, None], (n, 28, 28)).copy(), y


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 220), st.booleans())
def test_an_epoch_takes_each_sample_once_with_its_label(n, batch_size, shuffled):
    X, y = numbered(n)
    order = np.random.default_rng(n).permutation(n) if shuffled else None
    taken = list(datasets.batches(X, y, batch_size, order))
    labels = np.concatenate([labels for _, labels in taken])
    assert labels.tolist() == (y if order is None else y[order]).tolist()
    sizes = [len(labels) for _, labels in taken]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    assert 1 <= sizes[-1] <= batch_size and sum(sizes) == n
    for images, labels in taken:
        assert images.dtype == np.float32 and labels.dtype == np.uint8
        assert images.shape == (len(labels), 1, 28, 28)
        np.testing.assert_array_equal(images[:, 0, 3, 4], labels / np.float32(255))


@pytest.mark.parametrize("shuffled", [True, False])
def test_batches_of_mxnet_arrays_are_those_of_numpy_arrays(shuffled):
    from d2lpar._mxnet import mx
    from d2lpar._mxnet import np as mxnp

    X, y = numbered(50)
    order = np.random.default_rng(0).permutation(50).astype("int32")
    order = order if shuffled else None
    on_device = [
        a if a is None else mxnp.array(a, dtype=a.dtype, ctx=mx.cpu(1))
        for a in (X, y, order)
    ]
    ours = datasets.batches(on_device[0], on_device[1], 16, on_device[2])
    for (X_k, y_k), (X_host, y_host) in zip(ours, datasets.batches(X, y, 16, order)):
        assert X_k.ctx == y_k.ctx == mx.cpu(1)
        np.testing.assert_array_equal(X_k.asnumpy(), X_host)
        np.testing.assert_array_equal(y_k.asnumpy(), y_host)


def test_batches_do_not_touch_the_data():
    X, y = numbered(10)
    for images, _ in datasets.batches(X, y, 4):
        images[:] = -1
    expected = numbered(10)
    assert (X == expected[0]).all() and (y == expected[1]).all()


def test_to_float_is_to_tensor_to_the_bit():
    from d2lpar._mxnet import gluon
    from d2lpar._mxnet import np as mxnp

    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    X = datasets.to_float(images)
    assert X.shape == (1, 1, 16, 16) and X.dtype == np.float32
    assert X.min() == 0 and X.max() == 1
    to_tensor = gluon.data.vision.transforms.ToTensor()
    height_width_channel = mxnp.array(images[0][:, :, None], dtype=np.uint8)
    expected = to_tensor(height_width_channel).asnumpy()
    assert X[0].tobytes() == expected.tobytes()
    assert X.tobytes() == (images.astype(np.float32) / np.float32(255)).tobytes()


def test_the_real_data(real_data, monkeypatch):
    monkeypatch.undo()  # the real files' names and hashes
    data = datasets.load("fashion-mnist", data_dir=real_data)
    assert data.name == "fashion-mnist" and not data.synthetic
    assert data.X_train.shape == (60_000, 28, 28)
    assert data.X_test.shape == (10_000, 28, 28)
    assert np.bincount(data.y_train).tolist() == [6_000] * 10
    assert np.bincount(data.y_test).tolist() == [1_000] * 10
    assert data.classes[data.y_train[0]] == "ankle boot"
    assert 72 < data.X_train.mean() < 74
