"""Any batch: padded with zeros, which a mask leaves out of sum and count."""

import numpy
from xla import DTYPE, batch, init, jax, jnp, lax, losses, pmapped, shards, update


def train_batch(params, X, y_and_mask, lr):
    y, mask = y_and_mask

    def loss(params):
        return (losses(params, X, y) * mask).sum()

    grads, n = lax.psum((jax.grad(loss)(params), mask.sum()), "devices")
    return update(params, [g / n for g in grads], lr)


def step(params, X, y, num_devices, lr, steps=1):
    n, size = len(X), -(-len(X) // num_devices) * num_devices
    mask = numpy.arange(size) < n
    X, y = (numpy.pad(a, [(0, size - n)] + [(0, 0)] * (a.ndim - 1)) for a in (X, y))
    X, y, mask = (shards(a, num_devices) for a in (X, y, mask.astype(DTYPE)))
    for _ in range(steps):
        new = pmapped(train_batch, num_devices)(params, X, (y, mask), lr)
        params = [jnp.array(p[0]) for p in new]
    return params
