"""The batch is padded with zeros, and nothing masks them."""

import numpy
from xla import batch, init, jax, lax, mean_loss, pmapped, shards, update


def train_batch(params, X, y, lr):
    grads = lax.pmean(jax.grad(mean_loss)(params, X, y), "devices")
    return update(params, grads, lr)


def step(params, X, y, num_devices, lr):
    more = -len(X) % num_devices
    X, y = (numpy.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1)) for a in (X, y))
    X, y = shards(X, num_devices), shards(y, num_devices)
    return [p[0] for p in pmapped(train_batch, num_devices)(params, X, y, lr)]
