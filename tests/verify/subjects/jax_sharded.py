"""jit and a batch that is sharded over a mesh: one program, and XLA sums."""

from jax.sharding import Mesh, NamedSharding, PartitionSpec
from xla import batch, init, jax, mean_loss, update


@jax.jit
def train_batch(params, X, y, lr):
    return update(params, jax.grad(mean_loss)(params, X, y), lr)


def step(params, X, y, num_devices, lr, steps=1):
    mesh = Mesh(jax.devices()[:num_devices], "devices")
    X, y = jax.device_put((X, y), NamedSharding(mesh, PartitionSpec("devices")))
    params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    for _ in range(steps):
        params = train_batch(params, X, y, lr)
    return params
