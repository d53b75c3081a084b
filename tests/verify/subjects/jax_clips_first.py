"""The gradient is clipped inside the function that pmap runs, before pmean."""

from xla import batch, init, jax, jnp, lax, mean_loss, pmapped, shards, update


def step(params, X, y, num_devices, lr, clip_norm=None):
    def train_batch(params, X, y, lr):
        grads = jax.grad(mean_loss)(params, X, y)
        if clip_norm is not None:
            norm = jnp.sqrt(sum((g**2).sum() for g in grads))
            grads = [g * jnp.minimum(1, clip_norm / norm) for g in grads]
        return update(params, lax.pmean(grads, "devices"), lr)

    X, y = shards(X, num_devices), shards(y, num_devices)
    return [p[0] for p in pmapped(train_batch, num_devices)(params, X, y, lr)]
