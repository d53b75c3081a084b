"""LeNet in Gluon, d2lpar's training: `lenet_concise.train_batch`."""

import numpy
from contexts import contexts

from d2lpar import init_lenet, lenet_concise
from d2lpar.lenet.network import get_host_params


def init(seed):
    return init_lenet(0.1, seed=seed)


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.random((n, 1, 28, 28), "float32"), rng.integers(0, 10, n, "int32")


def step(params, X, y, num_devices, lr, steps=1):
    devices = contexts(num_devices)
    net, trainer, loss = lenet_concise.build(params, devices, lr)
    for _ in range(steps):
        lenet_concise.train_batch(X, y, net, devices, trainer, loss=loss)
    return get_host_params(net)
