"""The sample in the package, batches of images, and the real Fashion-MNIST.

How the published files are found is tested in test_download.py.
"""

import gzip
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lpar import datasets
from d2lpar._mxnet import gluon
from d2lpar._mxnet import np as mxnp
from d2lpar.datasets import fashion
from d2lpar.datasets.download import PublishedFiles
from d2lpar.errors import DataError, SettingError

# The sample in the package


def test_the_sample_is_balanced_and_says_what_it_is():
    data = datasets.load("sample")
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
    other = datasets.fashion_sample(50, 20, seed=2)
    assert (few.X_train != other.X_train).any() and (few.X_test != other.X_test).any()
    everything = datasets.fashion_sample()
    assert everything.sha256 == datasets.fashion_sample(seed=1).sha256
    images = {image.tobytes(): y for image, y in zip(*list(everything)[:2])}
    for image, y in zip(few.X_train, few.y_train):
        assert images[image.tobytes()] == y


@pytest.mark.parametrize(("name", "n"), [("n_train", 12_000), ("n_test", 0)])
def test_sizes_that_the_sample_does_not_have(name, n):
    with pytest.raises(SettingError, match=f"{name} {n}"):
        datasets.load("sample", **{name: n})


# Images and batches


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


def test_to_float_is_to_tensor_to_the_bit():
    images = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    X = datasets.to_float(images)
    assert X.shape == (1, 1, 16, 16) and X.dtype == np.float32
    to_tensor = gluon.data.vision.transforms.ToTensor()
    height_width_channel = mxnp.array(images[0][:, :, None], dtype=np.uint8)
    assert X[0].tobytes() == to_tensor(height_width_channel).asnumpy().tobytes()
    assert X.tobytes() == (images.astype(np.float32) / np.float32(255)).tobytes()


# IDX files


def idx(array):
    """The file of MNIST's page: 0, 0, 8 (uint8), axes, their lengths, big-endian."""
    lengths = b"".join(struct.pack(">i", n) for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_an_idx_file_is_an_array(pack, tmp_path):
    numbers = (5 * np.arange(24, dtype="uint8")).reshape(2, 3, 4)
    path = tmp_path / "numbers-idx"
    path.write_bytes(pack(idx(numbers)))
    found = datasets.read_idx(path)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, numbers)


def test_the_first_of_the_published_images_are_taken(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in "abcd"]
    for path, array in zip(paths, (*numbered(5), *map(np.flip, numbered(4)))):
        path.write_bytes(idx(np.ascontiguousarray(array)))
    monkeypatch.setattr(PublishedFiles, "paths", lambda *_: paths)
    found = datasets.load("fashion-mnist", n_train=3, n_test=2)
    assert [list(array) for array in (found.y_train, found.y_test)] == [
        [0, 1, 2],
        [3, 2],
    ]
    assert found.X_train[:, 5, 5].tolist() == [0, 1, 2] and len(found.X_test) == 2


def test_another_file_is_named_and_half_a_file_is_no_array(tmp_path):
    path, good = tmp_path / "labels.gz", idx(np.arange(30, dtype="uint8"))
    for content in (b"<!DOCTYPE html>", gzip.compress(b"404"), b"\0\0\x0c" + good[3:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"^{path}: not an IDX file"):
            datasets.read_idx(path)
    for content in (good[:-3], good + b"xyz", good[:7]):
        path.write_bytes(content)
        with pytest.raises(ValueError):
            datasets.read_idx(path)


# The real files


@pytest.mark.skipif("D2LPAR_DATA" not in os.environ, reason="D2LPAR_DATA is not set")
def test_the_real_data_and_the_sample_of_it():
    data = datasets.fashion_mnist()
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
