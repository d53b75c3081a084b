"""Steps of MXNet on several contexts, by the variable D2LPAR_PROGRAM.

Each program is right, or has one mistake; evidence.md says which.
"""

import os

import numpy

from d2lpar import autograd, get_params, gluon, mx, np, npx
from d2lpar import train_batch as d2lpar_train_batch

PROGRAM = os.environ.get("D2LPAR_PROGRAM", "train_batch")
loss = gluon.loss.SoftmaxCrossEntropyLoss()
kept = {}  # the replicas, by the number of devices


def init(seed):
    rng = numpy.random.default_rng(seed)
    shapes = ((6, 8), (8,), (8, 3), (3,))
    return [rng.normal(0, 0.5, shape).astype("float32") for shape in shapes]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype("float32"), rng.integers(0, 3, n, "int32")


def net(X, params):
    W1, b1, W2, b2 = params
    return np.dot(npx.relu(np.dot(X, W1) + b1), W2) + b2


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        if PROGRAM == "rebinding":
            data[i] = data[0].copyto(data[i].ctx)
        else:
            data[0].copyto(data[i])


def train(replicas, X, y, devices, lr):
    """One step of d2l's training from scratch; devices may have no rows."""
    busy = min(len(X), len(devices))
    X_shards, y_shards = (
        gluon.utils.split_and_load(np.array(a), devices, even_split=False)[:busy]
        for a in (X, y)
    )
    with autograd.record():
        shards = zip(X_shards, y_shards, replicas)
        losses = [loss(net(X_k, own), y_k) for X_k, y_k, own in shards]
    for l in losses:
        l.backward()
    for grads in zip(*([p.grad for p in own] for own in replicas)):
        allreduce(list(grads))
    for own in replicas:
        for p in own:
            p[:] -= lr / len(X) * p.grad


def replicas_of(params, devices):
    if PROGRAM != "idle_device" or len(devices) not in kept:
        kept[len(devices)] = [get_params(params, d) for d in devices]
    for own in kept[len(devices)]:
        for p, value in zip(own, params):
            p[:] = value
    return kept[len(devices)]


def replicas(params, X, y, num_devices, lr, steps=1):
    devices = [mx.cpu(k) for k in range(num_devices)]
    copies = replicas_of([np.array(p) for p in params], devices)
    for _ in range(steps):
        if PROGRAM == "train_batch":  # the four functions of d2lpar
            d2lpar_train_batch(X, y, copies, devices, lr, net=net)
        else:
            train(copies, X, y, devices, lr)
    return [[p.asnumpy() for p in own] for own in copies]


def step(params, X, y, num_devices, lr, steps=1):
    return replicas(params, X, y, num_devices, lr, steps)[0]
