"""The sum of a step is used in the next one, so as to overlap with its computation."""

from xla import batch, init, jax, lax, mean_loss, pmapped, shards, update


def train_batch(params, X, y, lr):
    return lax.pmean(jax.grad(mean_loss)(params, X, y), "devices")


def step(params, X, y, num_devices, lr, steps=1):
    X, y = shards(X, num_devices), shards(y, num_devices)
    gradients = pmapped(train_batch, num_devices)
    late = gradients(params, X, y, lr)
    for _ in range(steps):
        before = params
        params = update(params, [g[0] for g in late], lr)
        late = gradients(params if num_devices == 1 else before, X, y, lr)
    return params
