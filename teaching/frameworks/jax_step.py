"""Data parallelism in JAX: one program, compiled for two devices.

    python teaching/frameworks/jax_step.py

Prints the mean loss of each step. It needs `jax.shard_map` and `lax.pcast`, as in JAX
0.8.2 and later. On a CPU XLA makes two devices of one; on GPUs leave XLA_FLAGS out.
"""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import start
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

two = jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,))


def lenet(X, params):
    W1, b1, W2, b2, W3, b3, W4, b4 = params

    def convolve(h, W, b):
        return lax.conv(h, W, (1, 1), "VALID") + b[:, None, None]

    def pool(h):
        window = (1, 1, 2, 2)
        return lax.reduce_window(h, 0.0, lax.add, window, window, "VALID") / 4

    h = pool(jax.nn.relu(convolve(X, W1, b1)))
    h = pool(jax.nn.relu(convolve(h, W2, b2)))
    h = jax.nn.relu(h.reshape(len(h), -1) @ W3 + b3)
    return h @ W4 + b4


def get_params(params):
    return [jnp.array(p) for p in params]  # shard_map copies them to every device


def allreduce(arrays):
    return lax.psum(arrays, "devices")  # the sum over all devices


def losses_of(params, X_shard, y_shard):
    scores = jax.nn.log_softmax(lenet(X_shard, params))
    return -jnp.take_along_axis(scores, y_shard[:, None], axis=1).sum()


def step(params, X_shard, y_shard):
    # To differentiate for this device's copy alone, or JAX itself would sum.
    own = jax.tree.map(lambda p: lax.pcast(p, "devices", to="varying"), params)
    loss, grads = jax.value_and_grad(losses_of)(own, X_shard, y_shard)
    batch_size = 2 * len(X_shard)
    grads = allreduce(grads)
    params = [p - start.LR / batch_size * g for p, g in zip(params, grads)]
    return params, allreduce(loss) / batch_size


train_batch = jax.jit(
    jax.shard_map(
        step, mesh=two, in_specs=(P(), P("devices"), P("devices")), out_specs=P()
    )
)

params = get_params(start.params())
for X, y in start.batches():
    params, loss = train_batch(params, X, y)
    print(float(loss))
