"""Finding, verifying and downloading Fashion-MNIST, and the sample in the package.

Most tests use a tiny stand-in with the real files' names and format but 12 and 5
images; a server on this machine plays the mirrors.
"""

import gzip
import hashlib
import os
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
PUBLISHED = fashion.FASHION_MNIST_FILES


def idx(array):
    """An IDX file's content."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.tobytes()


def flipped(content, at):
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


def publish(monkeypatch, **changes):
    """Let the files be published otherwise: ``urls``, ``read_file``."""
    published = replace(fashion.FASHION_MNIST, **changes)
    monkeypatch.setattr(fashion, "FASHION_MNIST", published)


def cache():
    return fashion.FASHION_MNIST.cache_folder


def kept_in_cache():
    return sorted(str(p.relative_to(cache())) for p in cache().rglob("*"))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The stand-in's arrays in their order; no files of this machine are found."""
    rng = np.random.default_rng(0)
    shapes = ((12, 28, 28), (12,), (5, 28, 28), (5,))
    arrays = [rng.integers(0, 10, s, np.uint8) for s in shapes]
    files = {
        name: (hashlib.sha256(idx(array)).hexdigest(), array.shape)
        for name, array in zip(PUBLISHED, arrays)
    }
    monkeypatch.setattr(fashion, "FASHION_MNIST_FILES", files)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MXNET_HOME", str(tmp_path / "mxnet"))
    monkeypatch.delenv("D2LPAR_DATA", raising=False)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: connections fail
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
        publish(monkeypatch, urls=(url,))
        yield arrays


@pytest.fixture
def contents(tiny):
    """Content of each file, by name."""
    return {name: idx(array) for name, array in zip(PUBLISHED, tiny)}


@pytest.fixture
def put(contents):
    """Write the four files, gzipped, into a folder."""

    def put(folder, level=1):
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
        content = contents[name.removesuffix(".gz")]
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
        publish(monkeypatch, urls=tuple(f"{base}/{name}/" for name in names))
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


# Where it is looked for


@pytest.mark.parametrize("best", range(6))
def test_order_of_folders(best, tmp_path, tiny, put, monkeypatch, caplog):
    asked, variable = tmp_path / "asked", tmp_path / "env"
    places = [
        asked / "fashion-mnist",
        asked,
        variable / "fashion-mnist",
        variable,
        cache(),
        tmp_path / "mxnet" / "datasets" / "fashion-mnist",
    ]
    for place in places:
        place.mkdir(parents=True, exist_ok=True)
    for place in places[best + 1 :]:
        for name in PUBLISHED:
            (place / name).write_bytes(b"whoever reads this has gone too far")
    put(places[best])
    monkeypatch.setenv("D2LPAR_DATA", str(variable))
    assert datasets.locate("auto", asked) == "fashion-mnist"
    assert_tiny(datasets.load("fashion-mnist", data_dir=asked), tiny)
    assert not any("not used" in line for line in warnings_in(caplog))


def test_folders_may_be_text_and_begin_at_home(tmp_path, tiny, put, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MXNET_HOME")
    put(tmp_path / "here")
    assert_tiny(datasets.fashion_mnist("~/here"), tiny)
    put(tmp_path / ".mxnet" / "datasets" / "fashion-mnist")
    assert_tiny(datasets.fashion_mnist(), tiny)


def test_a_folder_without_the_files_is_logged(tmp_path, tiny, put, caplog):
    put(cache())
    (tmp_path / "empty").mkdir()
    assert_tiny(datasets.load("auto", data_dir=tmp_path / "empty"), tiny)
    (line,) = warnings_in(caplog)
    assert str(tmp_path / "empty") in line


@pytest.mark.parametrize("call", [datasets.load, datasets.locate])
@pytest.mark.parametrize("kind", ["absent", "file", "locked"])
def test_a_data_dir_that_cannot_be_read(tmp_path, put, kind, call, monkeypatch):
    put(cache())
    path = tmp_path / "data"
    if kind == "file":
        path.write_bytes(b"")
    if kind == "locked":
        put(path)
        real = os.access
        monkeypatch.setattr(  # permissions do not stop root
            download.os, "access", lambda p, mode: p != path and real(p, mode)
        )
    with pytest.raises(DataError, match=f"--data-dir {path}"):
        call("auto", data_dir=path)
    monkeypatch.setenv("D2LPAR_DATA", str(path))
    with pytest.raises(DataError, match=f"D2LPAR_DATA {path}"):
        call("auto")


def test_a_file_that_cannot_be_read(tmp_path, put, monkeypatch):
    folder = put(tmp_path / "data")

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=f"{IMAGES}.gz: .*Permission denied"):
        datasets.fashion_mnist(folder)


def test_locate_reads_no_file(tmp_path, put, monkeypatch):
    folder = put(tmp_path / "data")
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail(f"read {self}"))
    assert datasets.locate("auto", folder) == "fashion-mnist"
    assert datasets.locate("sample", tmp_path / "absent") == "sample"


# What is accepted and what is not


def test_compressed_or_not(tmp_path, tiny, put, contents):
    for level in (0, 9):
        assert_tiny(datasets.fashion_mnist(put(tmp_path / str(level), level)), tiny)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert_tiny(datasets.fashion_mnist(tmp_path), tiny)


# What has become of a file, from its content: its ending and its bytes.
DAMAGE = {
    "cut short": lambda c: (".gz", gzip.compress(c)[: len(c) // 4]),
    "without its last byte": lambda c: (".gz", gzip.compress(c)[:-1]),
    "no deflate stream": lambda c: (".gz", gzip.compress(c)[:10] + b"\xff" * 99),
    "check sum flipped": lambda c: (".gz", flipped(gzip.compress(c), -8)),
    "empty": lambda c: (".gz", b""),
    "a web page": lambda c: (".gz", b"<html>404 Not Found</html>"),
    "content flipped": lambda c: (".gz", gzip.compress(flipped(c, -1))),
    "another size": lambda c: (".gz", gzip.compress(idx(np.ones((11, 28, 28), "u1")))),
    "longer": lambda c: (".gz", gzip.compress(c + b"\0")),
    "raw and cut": lambda c: ("", c[:-100]),
    "raw and in its header": lambda c: ("", c[:7]),
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


def test_damage_in_a_folder_that_was_asked_for(tmp_path, put, damage, monkeypatch):
    put(cache())  # a good copy elsewhere does not hide it
    folder = put(tmp_path / "data")
    path = damage(folder)
    with pytest.raises(DataError) as caught:
        datasets.load("auto", data_dir=folder)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "\n" not in message
    monkeypatch.setenv("D2LPAR_DATA", str(folder))
    with pytest.raises(DataError, match=str(path)):
        datasets.fashion_mnist()


def test_damage_in_the_cache_is_logged_and_replaced(tiny, put, damage, mirrors, caplog):
    path = damage(put(cache()))
    requests = mirrors("good")
    assert_tiny(datasets.load("auto"), tiny)
    (line,) = warnings_in(caplog)
    assert str(path) in line
    caplog.clear()
    assert_tiny(datasets.load("auto"), tiny)  # the download has taken its place
    assert warnings_in(caplog) == [] and len(requests) == 4


def test_three_of_four_files(tmp_path, tiny, put, mirrors, caplog):
    folder = put(tmp_path / "data")
    (folder / f"{LABELS}.gz").unlink()
    with pytest.raises(DataError, match=f"{folder}: {LABELS}.gz is missing"):
        datasets.load("auto", data_dir=folder)
    (put(cache()) / f"{LABELS}.gz").unlink()
    requests = mirrors("good")
    assert_tiny(datasets.load("auto"), tiny)
    assert len(requests) == 4 and f"{LABELS}.gz is missing" in caplog.text


# Downloading


def test_a_download_is_kept(tiny, contents, mirrors, caplog):
    requests = mirrors("good")
    assert datasets.locate("auto") == "fashion-mnist"
    assert requests == [f"good/{name}.gz" for name in contents]
    assert kept_in_cache() == sorted(f"{name}.gz" for name in contents)
    assert_tiny(datasets.load("fashion-mnist"), tiny)
    assert len(requests) == 4 and warnings_in(caplog) == []


def test_mirrors_are_tried_in_turn(tiny, contents, mirrors):
    requests = mirrors(*MIRRORS)
    assert_tiny(datasets.load("fashion-mnist"), tiny)
    for name in contents:
        tried = [r.split("/")[0] for r in requests if r.endswith(f"/{name}.gz")]
        assert list(dict.fromkeys(tried)) == list(MIRRORS)
    assert kept_in_cache() == sorted(f"{name}.gz" for name in contents)


@pytest.mark.parametrize("bad", MIRRORS[:-1])
def test_a_failed_download_leaves_nothing(bad, mirrors):
    mirrors(bad)
    with pytest.raises(DataError, match=f"/{bad}/: "):
        datasets.load("fashion-mnist")
    assert kept_in_cache() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError])
def test_a_download_that_ends_at_the_last_file_leaves_nothing(
    error, mirrors, monkeypatch
):
    mirrors("good")

    def interrupted(path):
        if path.name.startswith(LABELS):
            raise error
        return datasets.read_idx(path)

    publish(monkeypatch, read_file=interrupted)
    with pytest.raises(error):
        datasets.load("fashion-mnist")
    assert kept_in_cache() == []


def test_a_cache_that_cannot_be_written(tmp_path, mirrors):
    mirrors("good")
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    with pytest.raises(DataError, match=str(cache())):
        datasets.load("fashion-mnist")


def test_without_a_network_auto_is_the_sample(tiny, caplog):
    assert datasets.locate("auto") == "sample"
    data = datasets.load("auto", n_train=20, n_test=10, seed=3)
    assert data.name == "fashion-mnist-sample"
    assert [len(array) for array in data] == [20, 20, 10, 10]
    lines = warnings_in(caplog)
    assert len(lines) == 2 and all("sample" in line for line in lines)
    assert kept_in_cache() == []
    with pytest.raises(DataError, match="could not be downloaded"):
        datasets.load("fashion-mnist")


def test_another_name_is_refused(tiny):
    for call in (datasets.locate, datasets.load):
        with pytest.raises(SettingError, match="'mnist'.*auto, fashion-mnist, sample"):
            call("mnist")


# The sample in the package


def test_the_sample_is_balanced_and_says_what_it_is():
    data = datasets.load("sample", data_dir="/absent")
    assert data.name == "fashion-mnist-sample" and not data.synthetic
    assert data.sizes == {"n_train": 5000, "n_test": 1000}
    assert data.X_train.shape == (5000, 28, 28) and data.X_test.shape == (1000, 28, 28)
    assert all(array.dtype == np.uint8 for array in data)
    assert np.bincount(data.y_train).tolist() == [500] * 10
    assert np.bincount(data.y_test).tolist() == [100] * 10
    assert (fashion.SAMPLE.parent / "FASHION-MNIST-LICENCE").is_file()


def test_the_seed_chooses_images_of_the_sample():
    few = datasets.fashion_sample(50, 20, seed=1)
    assert few.sizes == {"n_train": 50, "n_test": 20}
    assert few.sha256 == datasets.load("sample", n_train=50, n_test=20, seed=1).sha256
    assert few.sha256 != datasets.fashion_sample(50, 20, seed=2).sha256
    everything = datasets.fashion_sample()
    assert everything.sha256 == datasets.fashion_sample(seed=1).sha256
    images = {image.tobytes(): y for image, y in zip(*list(everything)[:2])}
    for image, y in zip(few.X_train, few.y_train):
        assert images[image.tobytes()] == y


@pytest.mark.parametrize(
    ("name", "n"), [("n_train", 12_000), ("n_test", 1001), ("n_train", 0)]
)
def test_sizes_that_the_sample_does_not_have(name, n):
    with pytest.raises(SettingError, match=f"{name} {n}"):
        datasets.load("sample", **{name: n})


# Images and batches


def test_head(tmp_path, tiny, put):
    data = datasets.load("auto", data_dir=put(tmp_path / "d"), n_train=7, n_test=2)
    for array, whole, n in zip(data, tiny, (7, 7, 2, 2)):
        np.testing.assert_array_equal(array, whole[:n])
    assert data.head() is data and data.head(7, 2).sha256 == data.sha256
    assert data.head(6).sha256 != data.sha256
    assert data.head(3).classes == data.classes and data.head(3).name == data.name
    for n in (0, -1, 8):
        with pytest.raises(SettingError, match=f"n_train {n}: .*1 to 7"):
            data.head(n)


def test_the_hash_is_of_every_byte(tiny):
    before = sha256_of(tiny)
    assert before == hashlib.sha256(b"".join(a.tobytes() for a in tiny)).hexdigest()
    for array in tiny:
        array.flat[-1] ^= 1
        assert sha256_of(tiny) != before
        array.flat[-1] ^= 1
    backwards = [a[::-1] for a in tiny]  # not contiguous
    assert sha256_of(backwards) == sha256_of([a.copy() for a in backwards])


def numbered(n):
    """n images whose every pixel is their number, which is their label too."""
    y = np.arange(n, dtype=np.uint8)
    return np.broadcast_to(y[:, None, None], (n, 28, 28)).copy(), y


@settings(deadline=None, max_examples=25)
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
        images[:] = -1
    assert (X == numbered(n)[0]).all()  # the data is not touched


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


def test_to_float_is_to_tensor_to_the_bit():
    from d2lpar._mxnet import gluon
    from d2lpar._mxnet import np as mxnp

    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    X = datasets.to_float(images)
    assert X.shape == (1, 1, 16, 16) and X.dtype == np.float32
    to_tensor = gluon.data.vision.transforms.ToTensor()
    height_width_channel = mxnp.array(images[0][:, :, None], dtype=np.uint8)
    assert X[0].tobytes() == to_tensor(height_width_channel).asnumpy().tobytes()
    assert X.tobytes() == (images.astype(np.float32) / np.float32(255)).tobytes()


# The real files


def test_the_real_data_and_the_sample_of_it(real_data):
    data = datasets.load("fashion-mnist", data_dir=real_data)
    assert np.bincount(data.y_train).tolist() == [6_000] * 10
    assert np.bincount(data.y_test).tolist() == [1_000] * 10
    assert data.classes[data.y_train[0]] == "ankle boot"
    # How the packaged sample was drawn.
    rng, sample = np.random.default_rng(0), datasets.fashion_sample()
    for X, y, X_sample, y_sample, n in (
        (data.X_train, data.y_train, sample.X_train, sample.y_train, 500),
        (data.X_test, data.y_test, sample.X_test, sample.y_test, 100),
    ):
        chosen = [rng.choice(np.flatnonzero(y == k), n, False) for k in range(10)]
        index = np.sort(np.concatenate(chosen))
        np.testing.assert_array_equal(X[index], X_sample)
        np.testing.assert_array_equal(y[index], y_sample)
