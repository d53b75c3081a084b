"""LeNet's training, from scratch and in Gluon: the two must tell the same story."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
from support.command import python
from support.steps import distance

from d2lpar import (
    datasets,
    evaluate_accuracy,
    get_params,
    init_lenet,
    lenet,
    train_batch,
)
from d2lpar._mxnet import autograd, gluon, mx, np
from d2lpar.errors import DeviceError, DivergedError, SettingError
from d2lpar.lenet import concise, network, scratch
from d2lpar.machine import host
from d2lpar.on_gpus import BIAS_AS_WEIGHT_FROM
from d2lpar.padding import CHANNELS, IN_BLOCKS, lenet_channels

BOTH = pytest.mark.parametrize("implementation", [scratch, concise])
RECIPE = {"global_batch_size": 32, "lr": 0.02, "num_epochs": 2}
CLOSE = 1e-4  # relative, of float32 without TF32


@pytest.fixture(scope="module")
def data():
    """101 images: three batches of 32 and one of 5."""
    return datasets.fashion_sample(n_train=101, n_test=30)


def test_init_lenet_has_the_books_shapes_and_scale():
    params = init_lenet(scale=0.01, seed=0)
    assert [p.shape for p in params] == [
        (20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,),
        (800, 128), (128,), (128, 10), (10,),
    ]  # fmt: skip
    assert all(p.dtype == numpy.float32 for p in params)
    assert not any(p.any() for p in params[1::2])
    assert params[4].std() == pytest.approx(0.01, rel=0.01)
    again, other = init_lenet(), init_lenet(seed=2)
    assert (params[4] == again[4]).all() and not (params[4] == other[4]).any()


def test_scores_are_numpys():
    rng = numpy.random.default_rng(0)
    params = [rng.normal(scale=0.1, size=shape) for shape in network.SHAPES]
    X = h = rng.random((3, 1, 28, 28))
    for W, b, side in ((*params[:2], 13), (*params[2:4], 4)):
        windows = numpy.lib.stride_tricks.sliding_window_view(h, W.shape[2:], (2, 3))
        h = numpy.einsum("nchwij,ocij->nohw", windows, W) + b[:, None, None]
        h = h.clip(min=0)[:, :, : 2 * side, : 2 * side]  # an odd edge is left out
        h = h.reshape(3, -1, side, 2, side, 2).mean((3, 5))
    h = (h.reshape(3, -1) @ params[4] + params[5]).clip(min=0)
    found = lenet.lenet(np.array(X, dtype="float64"), get_params(params, mx.cpu()))
    numpy.testing.assert_allclose(found.asnumpy(), h @ params[6] + params[7], rtol=1e-6)


# A training


@BOTH
@pytest.mark.parametrize("num_devices", [1, 2, 3])
def test_an_epoch_takes_the_steps_of_train_batch_on_one_device(
    implementation, num_devices, contexts, capfd
):
    """Two epochs of 33 images in batches of 32: the second step is divided by 1."""
    chosen, state = contexts(num_devices), lenet.start(3, scale=0.1)
    part = datasets.fashion_sample(n_train=33, n_test=30)
    records = [*implementation.train(devices=chosen, data=part, state=state, **RECIPE)]
    assert capfd.readouterr() == ("", "")
    one = chosen[:1]
    replicas = [get_params(init_lenet(0.1, seed=3), one[0])]
    X = datasets.to_float(part.X_train)
    for number, record in enumerate(records, 1):
        order, losses = numpy.random.default_rng([3, number]).permutation(33), []
        for rows in (order[:32], order[32:]):
            batch = X[rows], part.y_train[rows]
            losses += train_batch(*batch, replicas, one, RECIPE["lr"])
        loss = sum(float(l.sum()) for l in losses) / 33
        assert record.epoch == number
        assert record.train_loss == pytest.approx(loss, rel=1e-4)
        assert record.samples_per_sec == pytest.approx(33 / record.seconds)
    assert distance(state.params, [p.asnumpy() for p in replicas[0]]) < CLOSE
    accuracy = evaluate_accuracy(part.X_test, part.y_test, replicas, one)
    assert record.test_acc == accuracy


@BOTH
@pytest.mark.parametrize(
    ("lr", "n_train", "reason"),
    [
        (1e6, 100, "the loss of epoch 1 is not finite"),
        # One step: the loss before it is finite, the parameters after it are not.
        (3e38, 32, "a parameter after epoch 1 is not finite"),
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


@BOTH
def test_what_cannot_be_trained_is_refused(implementation, data):
    def refused(error, says, **changes):
        call = {"devices": "cpu:2", "data": data, **RECIPE, **changes}
        with pytest.raises(error, match=says):
            next(implementation.train(**call))

    refused(SettingError, "global-batch-size 2.5", global_batch_size=2.5)
    refused(SettingError, "lr nan", lr=math.nan)
    refused(DeviceError, "num-devices 3", num_devices=3)
    if implementation is concise:  # from scratch two replicas train on one context
        twice = [mx.cpu(0)] * 2
        refused(DeviceError, r"cpu\(0\), cpu\(0\).*: list each", devices=twice)
    refused(TypeError, "data is a tuple: write datasets.ImageData", data=tuple(data))
    of_a_gan = SimpleNamespace(workload="gan", seed=0)
    refused(TypeError, r"state is a SimpleNamespace: write lenet.start", state=of_a_gan)
    state = lenet.start(3)
    refused(SettingError, "seed 4: the state has seed 3; leave it", state=state, seed=4)
    from_one = replace(data, y_train=data.y_train + 1)
    refused(ValueError, "label 10: classes are 0 to 9", data=from_one)
    lists = replace(data, X_test=data.X_test.tolist())
    refused(SettingError, "images are a list: write a NumPy array", data=lists)


@pytest.mark.slow
def test_several_contexts_with_several_threads_each_do_not_hang():
    """np.dot would (`network.dense`). In a process of its own, for its threads."""
    code = """
from d2lpar import datasets, lenet, lenet_concise
data = datasets.fashion_sample(n_train=600, n_test=100)
for module in (lenet, lenet_concise):
    for record in module.train(devices="cpu:3", num_epochs=1, data=data):
        print(record.epoch)
"""
    assert python(code, OMP_NUM_THREADS="2") == "1\n1\n"


# Evaluation


def scores(X, params):
    return np.dot(X, params[0])


@pytest.mark.parametrize("num_devices", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [7, 1000])  # 30 samples: 7, 7, 7, 7, 2
def test_evaluate_accuracy_is_the_share_of_hits(num_devices, batch_size, contexts):
    rng, chosen = numpy.random.default_rng(0), contexts(num_devices)
    X, W, y = rng.normal(size=(30, 4)), rng.normal(size=(4, 3)), rng.integers(0, 3, 30)
    hits = ((X @ W).argmax(axis=1) == y).sum()
    assert 5 < hits < 25
    replicas = [get_params([W], device) for device in chosen]
    acc = evaluate_accuracy(X, y, replicas, chosen, net=scores, batch_size=batch_size)
    assert acc == hits / 30


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
    assert evaluate_accuracy(X, 1 - y, [None] * 2, two, net=brighter) == 0


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
    infinite = [get_params([numpy.full((3, 2), numpy.inf)], one[0])]
    with pytest.raises(DivergedError, match="a parameter is not finite"):
        evaluate_accuracy(numpy.zeros((4, 3)), y, infinite, one, net=scores)


@pytest.mark.parametrize(("label", "n"), [(1.9, 11), (-1, 11), (4, 1), (math.nan, 1)])
def test_labels_that_are_no_classes_are_refused_and_not_cut(label, n):
    """As whole numbers, 1.9 and 1 would be the same class."""
    y, one = numpy.zeros(n), [mx.cpu(0)]
    y[-1] = label
    replicas = [get_params([numpy.eye(4)], one[0])]
    with pytest.raises(ValueError, match=f"label {label}.*: classes are 0 to 3"):
        evaluate_accuracy(numpy.ones((n, 4)), y, replicas, one, net=scores)


# Pixels


def test_pixels_that_were_not_divided_are_refused(data):
    X, y, two = data.X_test, data.y_test, [mx.cpu(0), mx.cpu(1)]
    replicas = [get_params(init_lenet(), device) for device in two]
    pixels = X.astype("float32")
    says = pytest.raises(ValueError, match="float32, from 0 to 255: write pixels in")
    with says:
        evaluate_accuracy(pixels, y, replicas, two)
    with says:
        train_batch(pixels[:8, None], y[:8], replicas, two, 0.1)
    net, trainer, loss = concise.build(init_lenet(), two, 0.1)
    with says:
        concise.train_batch(pixels[:8, None], y[:8], net, two, trainer, loss=loss)
    with pytest.raises(ValueError, match=r"LeNet takes images \(n, 1, 28, 28\)"):
        train_batch(pixels[:8] / 255, y[:8], replicas, two, 0.1)
    assert evaluate_accuracy(pixels / 255, y, replicas, two) == evaluate_accuracy(
        X, y, replicas, two
    )


def test_pixels_of_other_kinds_are_refused(data):
    X, one = data.X_test, [mx.cpu(0)]
    for pixels, error, says in (
        (X > 128, TypeError, "images are bool: write uint8"),
        (X.astype("int32") * 257, ValueError, "from 0 to 65535"),
        (numpy.where(X > 128, numpy.nan, X / 255), ValueError, "to nan"),
    ):
        with pytest.raises(error, match=says):
            replicas = [get_params(init_lenet(), one[0])]
            evaluate_accuracy(pixels, data.y_test, replicas, one)


# The forms that devices train fastest


def test_a_bias_as_a_weight_is_the_same_convolution(contexts, monkeypatch):
    """Losses and gradients of GPUs' form with many images, beside the plain form."""
    (device,), loss = contexts(1), gluon.loss.SoftmaxCrossEntropyLoss()
    X = numpy.random.default_rng(0).random((8, 1, 28, 28), numpy.float32)
    X, y = np.array(X, ctx=device), np.arange(8, ctx=device)
    results = []
    for as_weights in (False, True):
        net = network.LeNet(as_weights)
        net.initialize(ctx=device)
        net.hybridize(static_alloc=True, static_shape=True)
        net(X)
        network.set_params(net, init_lenet(0.1))
        monkeypatch.setitem(BIAS_AS_WEIGHT_FROM, device.device_type, 9 - as_weights)
        params = get_params(init_lenet(0.1), device)
        with autograd.record():
            losses = [loss(net(X), y), loss(lenet.lenet(X, params), y)]
        autograd.backward(losses)
        gradients = [p.list_grad()[0] for p in net.collect_params().values()]
        gradients += [p.grad for p in params]
        results.append([array.asnumpy() for array in losses + gradients])
    for expected, ours in zip(*results):
        numpy.testing.assert_allclose(ours, expected, rtol=1e-4, atol=5e-5)


@BOTH
def test_channels_of_zeros_change_no_training(implementation, data, monkeypatch):
    """Two contexts, an epoch with 24 and 56 channels, beside the book's 20 and 50."""
    states = []
    for flags, channels in (("avx2 avx512f", CHANNELS), ("avx2", IN_BLOCKS)):
        monkeypatch.setattr(host, "cpuinfo", lambda flags=flags: {"flags": flags})
        assert lenet_channels("cpu") == channels
        state = lenet.start(seed=0, scale=0.1)
        recipe = {**RECIPE, "num_epochs": 1, "state": state, "data": data}
        (epoch,) = implementation.train(devices="cpu:2", **recipe)
        states.append((*state.params, [epoch.train_loss, epoch.test_acc]))
    for expected, ours in zip(*states):
        numpy.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_channels_by_vector_instructions_that_are_allowed(monkeypatch):
    monkeypatch.setattr(host, "cpuinfo", lambda: {"flags": "sse2 avx2 avx512f"})
    monkeypatch.setenv("DNNL_MAX_CPU_ISA", "AVX2")
    assert lenet_channels("cpu") == IN_BLOCKS
    assert lenet_channels("gpu") == CHANNELS
