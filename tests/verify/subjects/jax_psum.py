"""psum in place of pmean: the means of the devices are summed."""

from xla import batch, init, jax, lax, mean_loss, pmapped, shards, update


def train_batch(params, X, y, lr):
    grads = lax.psum(jax.grad(mean_loss)(params, X, y), "devices")
    return update(params, grads, lr)


def step(params, X, y, num_devices, lr):
    X, y = shards(X, num_devices), shards(y, num_devices)
    return [p[0] for p in pmapped(train_batch, num_devices)(params, X, y, lr)]
