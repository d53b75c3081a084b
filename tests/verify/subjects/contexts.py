"""What the MXNet programs share: d2l's functions, a network, and data."""

import os

import numpy

from d2lpar import autograd, gluon, mx, np, npx

__all__ = ["autograd", "gluon", "np"]
DTYPE = os.environ.get("D2LPAR_DTYPE", "float32")
loss = gluon.loss.SoftmaxCrossEntropyLoss()


def init(seed):
    rng = numpy.random.default_rng(seed)
    params = [rng.normal(0, 0.5, shape) for shape in ((6, 8), (8,), (8, 3), (3,))]
    return [p.astype(DTYPE) for p in params]


def batch(n, seed):
    rng = numpy.random.default_rng(seed)
    return rng.normal(size=(n, 6)).astype(DTYPE), rng.integers(0, 3, n, "int32")


def contexts(num_devices):
    return [mx.cpu(k) for k in range(num_devices)]


def net(X, params):
    W1, b1, W2, b2 = params
    return np.dot(npx.relu(np.dot(X, W1) + b1), W2) + b2


def get_params(params, device):
    new_params = [np.array(p, dtype=DTYPE, ctx=device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


def split_batch(X, y, devices):
    """The shards, without empty ones: fewer than devices if there are fewer rows."""
    X, y = np.array(X, dtype=DTYPE), np.array(y)
    X_shards = gluon.utils.split_and_load(X, devices, even_split=False)
    y_shards = gluon.utils.split_and_load(y, devices, even_split=False)
    busy = min(len(X), len(devices))
    return X_shards[:busy], y_shards[:busy]


def backward(X, y, device_params, devices, net=net):
    with autograd.record():
        losses = [
            loss(net(X_shard, params), y_shard)
            for X_shard, y_shard, params in zip(
                *split_batch(X, y, devices), device_params
            )
        ]
    for l in losses:
        l.backward()


def allreduce_gradients(device_params, allreduce=allreduce):
    for i in range(len(device_params[0])):
        allreduce([params[i].grad for params in device_params])


def sgd(device_params, lr, batch_size):
    for params in device_params:
        for p in params:
            p[:] -= lr / batch_size * p.grad


def dense(params, devices):
    """The network in Gluon with these parameters, and what reads them."""
    block = gluon.nn.HybridSequential()
    block.add(gluon.nn.Dense(8, activation="relu", in_units=6, dtype=DTYPE))
    block.add(gluon.nn.Dense(3, in_units=8, dtype=DTYPE))
    block.initialize(mx.init.Zero(), ctx=devices)
    own = list(block.collect_params().values())
    for p, value in zip(own, params):
        p.set_data(np.array(value.T if value.ndim == 2 else value, dtype=DTYPE))

    def read():
        values = [p.data(devices[0]).asnumpy() for p in own]
        return [v.T if v.ndim == 2 else v for v in values]

    return block, read


def clip(grads, clip_norm):
    """Scale gradients in place so that their norm together is at most `clip_norm`."""
    total = sum(float((g**2).sum()) for g in grads) ** 0.5
    for g in grads:
        g *= min(1, clip_norm / total)
