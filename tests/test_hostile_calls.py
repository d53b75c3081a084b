"""Odd values for exported functions: a TypeError or ValueError of one line that names
the value. Each room's own tests have the mistakes that matter; these are the rest."""

import re

import numpy
import pytest

from d2lpar import (
    datasets,
    devices,
    evaluate_accuracy,
    gan,
    get_params,
    init_lenet,
    lenet,
    lenet_concise,
    mx,
    np,
    split_batch,
    timing,
    train_batch,
)

CPUS = [mx.cpu(0), mx.cpu(1)]
X, y = numpy.zeros((4, 1, 28, 28), "float32"), numpy.arange(4)


def train(module=lenet, **settings):
    list(module.train(**{"num_devices": 1, "devices": "cpu:1", **settings}))


def one(device):
    return np.ones(1, ctx=device)


def step(labels):
    train_batch(X, labels, [get_params(init_lenet(), mx.cpu(0))], CPUS[:1], 0.1)


def step_on_a_list():
    replicas = [get_params(init_lenet(), mx.cpu(0))]
    train_batch(X.tolist(), y, replicas, CPUS[:1], 0.1)


CALLS = [
    (lambda: get_params([X], "cpu:1"), "'cpu:1'"),
    (lambda: get_params(X, CPUS[0]), "(4, 1, 28, 28)"),
    (lambda: get_params([X * 1j], CPUS[0]), "complex64"),
    (lambda: split_batch(X, y.astype("uint16"), CPUS), "y is uint16"),
    (lambda: split_batch(X, numpy.array([None] * 4), CPUS), "y is object"),
    (step_on_a_list, "X is float64, the parameters are float32: convert X"),
    (lambda: split_batch(X, y, iter(CPUS)), "iterator"),
    (lambda: split_batch(X, y, []), "[]"),
    (lambda: split_batch(numpy.ma.masked_array(X), y, CPUS), "masked"),
    (lambda: step(y > 1), "y is bool"),
    (lambda: evaluate_accuracy(X[:, 0], y, [], CPUS), "0 replicas for 2"),
    (lambda: init_lenet(-1), "scale < 0"),
    (lambda: train(lr="a"), "lr 'a'"),
    (lambda: train(num_epochs=2**31), "num-epochs 2147483648"),
    (lambda: train(global_batch_size=numpy.inf), "global-batch-size inf"),
    (lambda: train(num_devices="1"), "num-devices '1'"),
    (lambda: train(devices=[]), "[]"),
    (lambda: train(devices=None), "None"),
    (lambda: train(lenet_concise, lr="a"), "lr 'a'"),
    (lambda: train(gan, lr="a"), "lr 'a'"),
    (lambda: train(gan, beta1=1), "beta1 1"),
    (lambda: train(gan, frames_every=1.5), "frames-every 1.5"),
    (lambda: train(gan, micro_batch_size="a"), "micro-batch-size 'a'"),
    (lambda: gan.sample(gan.start(), 0, 0, CPUS[0]), "n 0"),
    (lambda: gan.Nets(gan.start(), "cpu:1", 1e-4), "'cpu:1'"),
    (lambda: datasets.load("mnist"), "'mnist'"),
    (lambda: datasets.load(None), "None"),
    (lambda: datasets.fashion_sample(1.5), "n_train 1.5"),
    (lambda: devices.parse(2), "devices 2"),
    (lambda: list(datasets.batches(X, y, -1)), "-1"),
    (lambda: timing.measure(one, "cpu:2"), "'cpu:2'"),
    (lambda: timing.measure(one, CPUS, repeats=0), "repeats 0"),
]


@pytest.mark.parametrize(("call", "value"), CALLS, ids=[value for _, value in CALLS])
def test_an_odd_value_is_named(call, value):
    with pytest.raises((TypeError, ValueError), match=re.escape(value)) as caught:
        call()
    assert "\n" not in str(caught.value)
