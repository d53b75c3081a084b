"""LeNet's training, from scratch and in Gluon: the two must tell the same story."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
from support.command import python

from d2lpar import datasets, evaluate_accuracy, init_lenet, lenet
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.errors import DeviceError, DivergedError, SettingError
from d2lpar.lenet import concise, network, scratch
from d2lpar.machine import host
from d2lpar.parallel import get_params, train_batch

BOTH = pytest.mark.parametrize("implementation", [scratch, concise])
RECIPE = {"global_batch_size": 32, "lr": 0.05, "num_epochs": 2}


@pytest.fixture(scope="module")
def data():
    """100 images: three batches of 32 and one of 4."""
    return datasets.fashion_sample(n_train=100, n_test=30)


def same(a, b):
    return all(numpy.array_equal(p, q) for p, q in zip(a, b))


def test_init_lenet_has_the_books_shapes_and_scale():
    params = init_lenet(scale=0.01, seed=0)
    assert [p.shape for p in params] == [
        (20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,),
        (800, 128), (128,), (128, 10), (10,),
    ]  # fmt: skip
    assert all(p.dtype == numpy.float32 for p in params)
    assert not any(p.any() for p in params[1::2])
    assert params[4].std() == pytest.approx(0.01, rel=0.01)
    assert same(params, init_lenet()) and not same(params, init_lenet(seed=2))


def test_evaluate_accuracy_is_the_share_of_hits(data):
    params = init_lenet(scale=0.3, seed=0)
    y_hat = lenet.lenet(
        mx.np.array(datasets.to_float(data.X_test)), get_params(params, mx.cpu(0))
    )
    expected = (y_hat.asnumpy().argmax(axis=1) == data.y_test).mean()
    for num_devices in (1, 2, 3):
        devices = [mx.cpu(k) for k in range(num_devices)]
        replicas = [get_params(params, device) for device in devices]
        for batch_size in (7, 1000):  # 30 images: 7, 7, 7, 7, 2, fewer than devices
            acc = evaluate_accuracy(
                data.X_test, data.y_test, replicas, devices, batch_size=batch_size
            )
            assert acc == pytest.approx(expected)


@BOTH
def test_a_record_an_epoch_and_not_a_word(implementation, data, capfd):
    records = list(implementation.train(2, devices="cpu:2", data=data, **RECIPE))
    assert [r.epoch for r in records] == [1, 2]
    for r in records:
        assert r.samples_per_sec == pytest.approx(100 / r.seconds)
        assert r.train_loss == pytest.approx(math.log(10), abs=0.1)  # the plateau
    assert capfd.readouterr() == ("", "")


@BOTH
def test_the_last_partial_batch_is_trained_on(implementation, data):
    """An epoch of 33 in batches of 32 has a second step, divided by 1."""
    state, expected = lenet.start(0, scale=0.1), lenet.start(0, scale=0.1)
    part = data.head(n_train=33)
    settings = {"global_batch_size": 32, "lr": 0.1, "num_epochs": 1}
    next(implementation.train(devices="cpu:1", data=part, state=state, **settings))
    order = numpy.random.default_rng([0, 1]).permutation(33)
    replicas = [get_params(expected.params, mx.cpu(0))]
    X, y = datasets.to_float(part.X_train[order]), part.y_train[order]
    for rows in (slice(32), slice(32, 33)):
        train_batch(X[rows], y[rows], replicas, [mx.cpu(0)], 0.1)
    for ours, theirs in zip(state.params, replicas[0]):
        numpy.testing.assert_allclose(ours, theirs.asnumpy(), atol=1e-5)


@pytest.fixture(scope="module")
def on_one_device(data):
    """Losses and parameters, from weights that learn at once, unlike the book's."""
    state = lenet.start(0, scale=0.1)
    records = list(lenet.train(devices="cpu:1", data=data, state=state, **RECIPE))
    return [r.train_loss for r in records], state.params


@BOTH
@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_devices_and_implementation_do_not_matter(
    implementation, num_devices, data, on_one_device
):
    """Same batches in the same order: same losses, same parameters."""
    state, (losses, params) = lenet.start(0, scale=0.1), on_one_device
    devices = f"cpu:{num_devices}"
    records = implementation.train(devices=devices, data=data, state=state, **RECIPE)
    assert [r.train_loss for r in records] == pytest.approx(losses, rel=1e-4)
    assert losses[1] < losses[0]  # it learns
    for ours, expected in zip(state.params, params):
        numpy.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"global_batch_size": 2.5}, SettingError),
        ({"lr": math.nan}, SettingError),
        ({"num_devices": 3}, DeviceError),
    ],
)
@BOTH
def test_settings_that_cannot_be(implementation, data, changed, error):
    ((name, value),) = changed.items()
    with pytest.raises(error, match=f"{name.replace('_', '-')} {value}"):
        next(implementation.train(devices="cpu:2", data=data, **{**RECIPE, **changed}))


@BOTH
@pytest.mark.parametrize(
    ("lr", "n_train", "reason"),
    [
        (1e6, 100, "loss of epoch 1 is (nan|inf)"),
        # One step: the loss before it is finite, the parameters after it are not.
        (3e38, 32, "epoch 1 ended with parameters that are not finite"),
    ],
)
def test_divergence_leaves_the_state_as_it_was(
    implementation, data, lr, n_train, reason
):
    params = [p * 1e3 for p in init_lenet(scale=0.1)]
    state = lenet.TrainingState(params, epoch=0, seed=0)
    recipe = {**RECIPE, "lr": lr, "data": data.head(n_train=n_train)}
    with pytest.raises(DivergedError, match=reason):
        list(implementation.train(devices="cpu:2", state=state, **recipe))
    assert state.params is params and state.epoch == 0


def brighter(X, params):
    """Class 1 is an image brighter than 0.3."""
    mean = X.mean(axis=(1, 2, 3)) - 0.3
    return np.stack([-mean, mean], axis=1)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("on_device", [False, True])
def test_integers_are_pixels_and_floats_are_what_they_are(dtype, on_device):
    y = numpy.array([0, 1, 1, 0, 1])
    X = y[:, None, None] * numpy.full((5, 28, 28), 0.5)
    X = (X * 256).astype(dtype) if "int" in dtype else X.astype(dtype)
    if on_device:
        X, y = np.array(X, dtype=dtype), np.array(y, dtype="int32")
    two = [mx.cpu(0), mx.cpu(1)]
    assert evaluate_accuracy(X, y, [None] * 2, two, net=brighter) == 1


def test_what_cannot_be_evaluated_is_refused():
    X, y, one = numpy.zeros((4, 28, 28), "uint8"), numpy.zeros(4), [mx.cpu(0)]
    for images, labels in ((X[:0], y[:0]), (X, y[:3]), (X[0, 0, 0], y[0])):
        with pytest.raises(ValueError, match="write samples"):
            evaluate_accuracy(images, labels, [None], one, net=brighter)
    with pytest.raises(ValueError, match="1 replicas for 2 devices"):
        evaluate_accuracy(X, y, [None], one * 2, net=brighter)
    replica = [[np.zeros((3, 2))]]
    with pytest.raises(TypeError, match="X is float64, the parameters are float32"):
        evaluate_accuracy(numpy.zeros((4, 3)), y, replica, one, net=scores)


def scores(X, params):
    return np.dot(X, params[0])


def test_pixels_that_were_not_divided_are_refused(data):
    X, y, two = data.X_test, data.y_test, [mx.cpu(0), mx.cpu(1)]
    replicas = [get_params(init_lenet(), device) for device in two]
    pixels = X.astype("float32")
    for images in (pixels, np.array(pixels)):
        with pytest.raises(ValueError, match="float32, from 0 to 255: write pixels in"):
            evaluate_accuracy(images, y, replicas, two)
        with pytest.raises(ValueError, match="float32, from 0 to 255: write pixels in"):
            next(datasets.batches(images, y, 8))
    batch = pixels[:8, None], y[:8], replicas, two, 0.1
    with pytest.raises(ValueError, match="float32, from 0 to 255"):
        train_batch(*batch)
    net, trainer, loss = concise.build(init_lenet(), two, 0.1)
    with pytest.raises(ValueError, match="float32, from 0 to 255"):
        concise.train_batch(*batch[:2], net, two, trainer, loss=loss)
    assert evaluate_accuracy(pixels / 255, y, replicas, two) == evaluate_accuracy(
        X, y, replicas, two
    )


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda X: X > 128, TypeError, "images are bool: write uint8"),
        (lambda X: X.astype("int32") * 257, ValueError, "from 0 to 65535"),
        (lambda X: X.view("int8"), ValueError, "X is int8, from -1.* to 1"),
        (lambda X: numpy.where(X > 128, numpy.nan, X / 255), ValueError, "to nan"),
    ],
)
def test_pixels_of_other_kinds_are_refused(data, change, error, says):
    X, y, one = change(data.X_test), data.y_test, [mx.cpu(0)]
    with pytest.raises(error, match=says):
        evaluate_accuracy(X, y, [get_params(init_lenet(), one[0])], one)
    with pytest.raises(error, match=says):
        next(datasets.batches(X, y, 8))


@pytest.mark.parametrize(("label", "n"), [(1.9, 11), (-1, 11), (4, 1), (math.nan, 1)])
def test_labels_that_are_no_classes_are_refused_and_not_cut(label, n):
    """As whole numbers, 1.9 and 1 would be the same class."""
    y, one = numpy.zeros(n), [mx.cpu(0)]
    y[-1] = label
    replicas = [get_params([numpy.eye(4)], one[0])]
    with pytest.raises(ValueError, match=f"label {label}.*: classes are 0 to 3"):
        evaluate_accuracy(numpy.ones((n, 4)), y, replicas, one, net=scores)


def test_several_contexts_with_several_threads_each_do_not_hang(data):
    """np.dot would (`book_lenet.dense`). In a process of its own, for its threads."""
    code = """
from d2lpar import datasets, lenet, lenet_concise
data = datasets.fashion_sample(n_train=600, n_test=100)
for module in (lenet, lenet_concise):
    for record in module.train(devices="cpu:3", num_epochs=1, data=data):
        print(record.epoch)
"""
    assert python(code, OMP_NUM_THREADS="2") == "1\n1\n"


def test_a_bias_as_a_weight_is_the_same_convolution():
    """Scores and gradients of GPUs' form with many images, against Gluon's own."""
    host, loss = init_lenet(0.1, seed=0), gluon.loss.SoftmaxCrossEntropyLoss()
    X = np.array(numpy.random.default_rng(0).random((8, 1, 28, 28), numpy.float32))
    results = []
    for biases_as_weights in (False, True):
        net = network.LeNet(biases_as_weights)
        net.initialize()
        net.hybridize(static_alloc=True, static_shape=True)
        net(X)
        network.set_params(net, host)
        with autograd.record():
            losses = loss(net(X), np.arange(8))
        losses.backward()
        gradients = [p.grad().asnumpy() for p in net.collect_params().values()]
        results.append([losses.asnumpy(), *gradients])
    for expected, ours in zip(*results):
        numpy.testing.assert_allclose(ours, expected, rtol=1e-4, atol=5e-5)


@BOTH
def test_channels_of_zeros_change_no_training(implementation, data, monkeypatch):
    """Two contexts, an epoch with 24 and 56 channels, beside the book's 20 and 50."""
    replicas, states = [], []

    def spied(make):
        def spy(*args):
            replicas.append(make(*args))
            return replicas[-1]

        return spy

    monkeypatch.setattr(scratch, "Bucket", spied(scratch.Bucket))
    monkeypatch.setattr(concise, "build", spied(concise.build))
    for flags in ("avx2 avx512f", "avx2"):
        monkeypatch.setattr(host, "cpuinfo", lambda flags=flags: {"flags": flags})
        state = lenet.start(seed=0, scale=0.1)
        recipe = {**RECIPE, "num_epochs": 1, "state": state, "data": data}
        (epoch,) = implementation.train(devices="cpu:2", **recipe)
        states.append((*state.params, [epoch.train_loss, epoch.test_acc]))
    for expected, ours in zip(*states):
        numpy.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
    params = replicas[-1]
    if implementation is concise:
        params = [*params[0].collect_params().values()]
    assert params[0].shape == (24, 1, 3, 3) and 896 in params[4].shape


@pytest.mark.parametrize(
    ("flags", "allowed", "expected"),
    [
        ("sse2 avx2", "", True),
        ("sse2 avx2 avx512f", "", False),
        ("sse2 avx2 avx512f", "AVX2", True),
    ],
)
def test_channels_by_vector_instructions(monkeypatch, flags, allowed, expected):
    monkeypatch.setattr(host, "cpuinfo", lambda: {"flags": flags})
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", allowed)
    chosen = network.IN_BLOCKS if expected else network.CHANNELS
    assert network.device_channels("cpu") == chosen
    assert network.device_channels("gpu") == network.CHANNELS


@BOTH
def test_data_and_states_of_another_kind_are_named(implementation, data):
    def refused(error, says, **changes):
        call = {"devices": "cpu:1", "data": data, **changes}
        with pytest.raises(error, match=says):
            next(implementation.train(**call))

    refused(TypeError, "data is a tuple: write datasets.ImageData", data=tuple(data))
    of_a_gan = SimpleNamespace(workload="gan", seed=0)
    refused(TypeError, r"state is a SimpleNamespace: write lenet.start", state=of_a_gan)
    state = lenet.start(3)
    refused(SettingError, "seed 4: the state has seed 3; leave it", state=state, seed=4)
    text = replace(data, y_train=data.y_train.astype(str))
    refused(SettingError, "training labels are <U.*: write integers", data=text)
    lists = replace(data, X_test=data.X_test.tolist())
    refused(SettingError, "test images are a list: write a NumPy array", data=lists)
    X, y = (numpy.ma.masked_array(a, a > 5) for a in (data.X_train, data.y_test))
    refused(TypeError, "training images is a masked", data=replace(data, X_train=X))
    refused(TypeError, "test labels is a masked array", data=replace(data, y_test=y))


def test_gluon_has_one_replica_per_context(data):
    """From scratch two replicas on one context train as on two."""
    twice = {"devices": [mx.cpu(0)] * 2, "data": data, **RECIPE, "num_epochs": 1}
    with pytest.raises(DeviceError, match=r"cpu\(0\), cpu\(0\).*: list each context"):
        next(concise.train(**twice))
    (record,) = lenet.train(**twice)
    (expected,) = lenet.train(**{**twice, "devices": "cpu:2"})
    assert record.train_loss == expected.train_loss
