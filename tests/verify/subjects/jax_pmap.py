"""pmap and pmean: even batches only."""

from xla import batch, init, jax, lax, mean_loss, pmapped, shards, update


def train_batch(params, X, y, lr):
    grads = lax.pmean(jax.grad(mean_loss)(params, X, y), "devices")
    return update(params, grads, lr)


def replicas(params, X, y, num_devices, lr):
    X, y = shards(X, num_devices), shards(y, num_devices)
    new = pmapped(train_batch, num_devices)(params, X, y, lr)
    return [[p[k] for p in new] for k in range(num_devices)]


def step(*arguments):
    return replicas(*arguments)[0]
